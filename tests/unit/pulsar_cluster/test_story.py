"""The history of a Pulsar cluster: kept in an archive, told for one bundle, and audited."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from pathlib import Path

import pytest

from equipoise.channel.core.errors import CallerError, OperatorError, PeerError
from equipoise.channel.core.ranges import parse_bundle
from equipoise.channel.system.clocks import Deadline
from equipoise.pulsar_cluster.archive import Members, open_archive
from equipoise.pulsar_cluster.reading import Address
from equipoise.pulsar_cluster.records import Message, Report, message_of
from equipoise.pulsar_cluster.sources import opened
from equipoise.pulsar_cluster.story import Writers, as_document, story_of
from equipoise.pulsar_cluster.table import Table, table_document
from equipoise.pulsar_cluster.verify import Audit
from tests.unit.pulsar_cluster.written import BUNDLE, LEFT, RIGHT, Written, a_life

URL = "pulsar://127.0.0.1:6650"


def messages(written: Written) -> list[Message]:
    return [
        message_of(
            (offset, read.message_id, read.key, read.published_ms, read.value, read.producer)
        )
        for offset, read in enumerate(written.reads)
    ]


def told(written: Written, bundle: str = BUNDLE) -> list[str]:
    return [
        " | ".join(text) for _, text in story_of(messages(written), parse_bundle(bundle), Writers())
    ]


def test_the_story_of_a_bundle_names_each_step_and_its_author() -> None:
    """The author is known from the moment at which its connection took a bundle."""
    verbs = [line.split()[0] for line in told(a_life())]
    assert [
        "assign",
        "own",
        "transfer",
        "closed",
        "own",
        "unload",
        "release",
        "assign",
        "own",
        "splitting",
        "own",
        "own",
        "delete",
        "forget",
    ] == verbs
    lines = told(a_life())
    assert f"transfer   {BUNDLE}  a:80 -> b:80" == lines[2]
    assert f"closed     {BUNDLE}  a:80 -> b:80  by a:80" == lines[3]
    assert f"own        {BUNDLE}  a:80 -> b:80  by b:80" == lines[4]
    assert f"splitting  {BUNDLE}  on a:80  by a:80 | children: {LEFT}, {RIGHT}" == lines[9]


def test_the_story_of_a_child_begins_with_its_parent() -> None:
    assert len(told(a_life())) - 1 == len(told(a_life(), f"public/default/{LEFT}"))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        # Two brokers assign at once, and the second is ignored.
        (
            Written()
            .add(BUNDLE, "a:80", "Assigning", to="a:80", version=1)
            .add(BUNDLE, "b:80", "Assigning", to="b:80", version=1),
            (
                "to b:80  rejected: old version | old version: the bundle had version 1 at offset"
                " 0; another writer was first"
            ),
        ),
        (
            Written()
            .assign(BUNDLE, "a:80")
            .add(BUNDLE, "leader:80", "Owned", to="b:80", source="a:80", force=True),
            "forced: the leader took it from a:80, which was gone or did not finish in time",
        ),
        # Hostile text cannot leave its line.
        (Written().assign(BUNDLE, "a:80\x1b[2J\n"), "by a:80\\x1b[2J\\n"),
    ],
)
def test_the_last_line_of_a_story(written: Written, expected: str) -> None:
    assert told(written)[-1].endswith(expected)


def test_a_change_is_a_document_for_programs() -> None:
    written = Written().assign(BUNDLE, "a:80").add(BUNDLE, "b:80", "Assigning", version=1)
    changes = [change for change, _ in story_of(messages(written), parse_bundle(BUNDLE), Writers())]
    document = as_document(changes[2], Writers())
    assert (False, "old version", 2) == (
        document["accepted"],
        document["reason"],
        document["offset"],
    )


def test_an_archive_keeps_everything_and_goes_on_exactly(tmp_path: Path) -> None:
    """The position moves in the transaction of the messages. Reports and members are kept beside
    them.
    """
    path, written = tmp_path / "pulsar.db", a_life()
    with open_archive(path, create_for=URL) as archive:
        assert (None, -1) == (archive.position, archive.end)
        archive.append(written.reads[:5])
        archive.add_reports([Report(7, "loadbalancer-broker-load-data", "a:80", b"{}")])
        archive.add_members(Members(8, "a:80", ("a:80", "b:80")))
        archive.add_members(Members(9, "a:80", ("a:80", "b:80")))
    with open_archive(path, create_for=URL) as archive:
        assert (written.reads[4].position, 4) == (archive.position, archive.end)
        archive.append(())
        archive.append(written.reads[5:])
        assert messages(written)[5:] == list(archive.messages(after=4))
    with open_archive(path) as archive:
        assert messages(written) == list(archive.messages())
        assert messages(written) == list(archive.messages_of(parse_bundle(BUNDLE)))
        assert [Report(7, "loadbalancer-broker-load-data", "a:80", b"{}")] == list(
            archive.reports()
        )
        assert Members(8, "a:80", ("a:80", "b:80")) == archive.members()


def test_what_was_lost_between_two_recordings_is_no_gap(tmp_path: Path) -> None:
    """Pulsar compacted its channel meanwhile. All that its brokers hold follows again, and bundles
    that do not follow are gone.
    """
    other = "public/other/0x00000000_0xffffffff"
    mine, gone = parse_bundle(BUNDLE), parse_bundle(other)
    old = Written().assign(BUNDLE, "a:80").assign(other, "a:80")
    written = Written().later(9_000).add(BUNDLE, "c:80", "Owned", to="c:80", version=9)
    written.reads[0] = written.reads[0]._replace(begins_anew=True)
    written.transfer(BUNDLE, "c:80", "b:80")
    table, audit = Table(), Audit()
    with open_archive(tmp_path / "pulsar.db", create_for=URL) as archive:
        archive.append(old.reads)
        archive.append(written.reads)
        for message in archive.messages():
            audit.see(table.fold(message))
        result = audit.result()
        assert ([BUNDLE], 1, True) == (list(table.bundles), result.losses, result.in_order)
        of_bundle = [
            " | ".join(text) for _, text in story_of(archive.messages_of(mine), mine, Writers())
        ]
        assert "messages before this one are lost" in of_bundle[2]
        assert ["own", "transfer", "closed", "own"] == [line.split()[0] for line in of_bundle[2:]]
        assert ["assign", "own", "forget"] == [
            text[0].split()[0] for _, text in story_of(archive.messages_of(gone), gone, Writers())
        ]
        assert [4] == [offset for offset, _ in archive.beginnings()]


def test_two_recorders_of_one_archive_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "pulsar.db"
    with open_archive(path, create_for=URL) as archive, open_archive(path) as read:
        archive.append(a_life().reads)
        assert 14 == len(list(read.messages()))
        with (
            pytest.raises(PeerError, match="another `equipoise pulsar record` writes"),
            open_archive(path, create_for=URL),
        ):
            pass


@pytest.mark.parametrize("script", ["PRAGMA journal_mode = WAL", ""])
def test_a_recorder_that_was_killed_at_its_start_may_begin_again(
    tmp_path: Path, script: str
) -> None:
    path = tmp_path / "pulsar.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(script)
    with open_archive(path, create_for=URL) as archive:
        archive.append(a_life().reads)
    with open_archive(path) as archive:
        assert (URL, 13) == (archive.service_url, archive.end)


def test_a_follower_of_an_archive_misses_nothing(tmp_path: Path) -> None:
    """What is added between the two reads is among the news."""
    path, written = tmp_path / "pulsar.db", a_life()
    with open_archive(path, create_for=URL) as archive:
        archive.append(written.reads[:5])
        with opened(
            Address(service_url=str(path)), deadline=Deadline.after(timeout_ms=1_000)
        ) as history:
            assert 5 == len(list(history.messages()))
            archive.append(written.reads[5:7])
            assert [5, 6] == [message.offset for message in itertools.islice(history.news(), 2)]


def test_an_archive_follows_one_cluster(tmp_path: Path) -> None:
    path = tmp_path / "pulsar.db"
    with pytest.raises(CallerError, match="there is no archive"), open_archive(path):
        pass
    with open_archive(path, create_for=URL):
        pass
    with (
        pytest.raises(CallerError, match="holds the cluster at pulsar://127"),
        open_archive(path, create_for="pulsar://elsewhere:6650"),
    ):
        pass


def test_another_file_is_no_archive(tmp_path: Path) -> None:
    path, content = tmp_path / "pulsar.db", b"not a database, but long enough to be one" * 20
    path.write_bytes(content)
    with pytest.raises(OperatorError, match="cannot be used as an archive"), open_archive(path):
        pass
    assert content == path.read_bytes()


def test_the_table_is_described_as_rows() -> None:
    table = Table()
    for message in messages(a_life()):
        table.fold(message)
    document = table_document(table)
    assert [{"broker": "a:80", "bundles": 2, "incoming": 0}] == document["brokers"]
    assert [
        {"namespace": "public/default", "bundles": 2, "owned": 2, "moving": 0, "free": 0}
    ] == document["namespaces"]
