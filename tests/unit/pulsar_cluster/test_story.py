"""The history of a Pulsar cluster: kept in an archive, told for one bundle, and audited."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from pathlib import Path

import pytest

from equipoise.channel.core.errors import CallerError, OperatorError, PeerError
from equipoise.channel.core.ranges import parse_bundle
from equipoise.channel.system.deadline import Deadline
from equipoise.pulsar_cluster.archive import Members, Report, open_archive
from equipoise.pulsar_cluster.reading import Address
from equipoise.pulsar_cluster.records import Message, message_of
from equipoise.pulsar_cluster.sources import opened
from equipoise.pulsar_cluster.story import Writers, as_document, overlapping, story_of
from equipoise.pulsar_cluster.table import Table, table_document
from equipoise.pulsar_cluster.verify import Audit, Kind, Result
from tests.unit.pulsar_cluster.written import BUNDLE, LEFT, RIGHT, SECOND_MS, Written, a_life

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


def audited(written: Written, *, now_ms: int = 0) -> Result:
    table, audit = Table(), Audit()
    for message in messages(written):
        audit.see(table.fold(message))
    return audit.result(now_ms=now_ms)


def kinds(written: Written) -> list[Kind]:
    return [finding.kind for finding in audited(written).findings]


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
    child = f"public/default/{LEFT}"
    assert len(told(a_life())) - 1 == len(told(a_life(), child))
    assert [child] == overlapping(
        [child, f"public/default/{RIGHT}", "other/default/0x00000000_0xffffffff", "no bundle"],
        parse_bundle(child),
    )


def test_a_rejected_record_says_why() -> None:
    """Two brokers assign at once, and the second is ignored."""
    written = Written()
    written.add(BUNDLE, "a:80", "Assigning", to="a:80", version=1)
    written.add(BUNDLE, "b:80", "Assigning", to="b:80", version=1)
    assert told(written)[1].endswith(
        "to b:80  rejected: old version | old version: the bundle had version 1 at offset 0;"
        " another writer was first"
    )
    changes = [change for change, _ in story_of(messages(written), parse_bundle(BUNDLE), Writers())]
    document = as_document(changes[1], Writers())
    assert (False, "old version", 1) == (
        document["accepted"],
        document["reason"],
        document["offset"],
    )


def test_hostile_text_cannot_leave_its_line() -> None:
    written = Written()
    written.assign(BUNDLE, "a:80\x1b[2J\n")
    assert all("\x1b" not in line and "\n" not in line for line in told(written))


def test_a_forced_record_names_the_broker_that_is_gone() -> None:
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.add(BUNDLE, "leader:80", "Owned", to="b:80", source="a:80", force=True)
    assert (
        "forced: the leader took it from a:80, which was gone or did not finish in time"
        in told(written)[2]
    )


def test_a_healthy_channel_is_in_order() -> None:
    """Moves, an unload, a split and a lost race are normal, and each is counted."""
    written = a_life()
    written.add(f"public/default/{LEFT}", "c:80", "Assigning", to="c:80", version=1)
    result = audited(written)
    assert result.in_order
    assert (1, 1, {"old version": 1}) == (result.splits, result.lost_races, dict(result.rejected))
    assert (1, 2 * SECOND_MS) == (result.transfers.number, result.transfers.max)
    # When it was placed, in the transfer, and when it was placed again, each for a second. While it
    # was free, nobody waited.
    assert (3, SECOND_MS) == (result.without_owner.number, result.without_owner.max)
    assert {
        "Assigning",
        "Free",
        "Owned",
        "Releasing",
        "Splitting",
        "Deleted",
    } <= result.in_state.keys()


def test_a_bundle_that_nobody_took_is_named() -> None:
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.add(BUNDLE, "leader:80", "Releasing", source="a:80")
    written.add(BUNDLE, "a:80", "Free", source="a:80")
    assert {} == audited(written).unowned
    written.add(BUNDLE, "b:80", "Assigning", to="c:80")
    assert {BUNDLE: written.now_ms} == audited(written).unowned


@pytest.mark.parametrize("is_live", [True, False])
def test_a_move_that_is_stuck_now_is_found(is_live: bool) -> None:
    """It has no next record: now is the present, or the end of the archive."""
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.add(BUNDLE, "leader:80", "Releasing", source="a:80", to="b:80")
    assert audited(written).in_order
    if not is_live:
        written.now_ms += 60_000
        written.assign("public/other/0x00000000_0xffffffff", "a:80")
    result = audited(written, now_ms=written.now_ms + 60_000 if is_live else 0)
    assert [Kind.STUCK] == [finding.kind for finding in result.findings]
    assert "it has been Releasing to b:80 from a:80 for 6" in result.findings[0].text


def test_an_old_version_is_found() -> None:
    """A race is lost within seconds. Later, the writer's table was far behind."""
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.transfer(BUNDLE, "a:80", "c:80")
    written.add(BUNDLE, "b:80", "Assigning", to="b:80", version=4)
    assert [] == kinds(written)
    written.add(BUNDLE, "b:80", "Assigning", 20_000, to="b:80", version=4)
    assert [Kind.OLD_VERSION] == kinds(written)


def test_missing_records_are_found() -> None:
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.add(BUNDLE, "a:80", "Releasing", source="a:80", version=7)
    assert [Kind.GAP] == kinds(written)


def test_a_second_owner_is_found() -> None:
    """A gap of versions is taken without a check: so Pulsar's brokers accept it."""
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.assign("public/default/0x40000000_0x80000000", "b:80")
    written.add(BUNDLE, "b:80", "Owned", to="b:80", version=9)
    result = audited(written)
    assert [Kind.SECOND_OWNER] == [finding.kind for finding in result.findings]
    assert (
        "b:80 owns it (Owned, version 9), and a:80 has not released it" == result.findings[0].text
    )


def test_a_parent_that_comes_back_after_its_split_is_found() -> None:
    """A tombstone forgets the version, so that Pulsar's brokers accept whatever comes late."""
    written = a_life()
    written.add(BUNDLE, "b:80", "Owned", to="b:80", version=1)
    result = audited(written)
    assert [Kind.SECOND_OWNER] == [finding.kind for finding in result.findings]
    assert f"although its child public/default/{LEFT} is served" in result.findings[0].text


def test_a_namespace_that_is_made_again_is_in_order() -> None:
    """Pulsar forgets free children up to an hour later."""
    written = a_life()
    for child in (LEFT, RIGHT):
        written.add(f"public/default/{child}", "a:80", "Releasing", source="a:80", force=True)
        written.add(f"public/default/{child}", "a:80", "Free", source="a:80")
    written.assign(BUNDLE, "b:80")
    assert [] == kinds(written)


def taken_over() -> Written:
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.add(BUNDLE, "leader:80", "Owned", to="b:80", source="a:80", force=True)
    return written


def test_bundles_of_a_broker_that_vanished_are_counted() -> None:
    result = audited(taken_over())
    assert ({"a:80": 1}, 1, True) == (dict(result.vanished), result.forced, result.in_order)


def test_a_record_of_a_broker_that_was_gone_is_found() -> None:
    """It had lost its bundles, and still wrote over its old connection."""
    written = taken_over()
    written.transfer(BUNDLE, "b:80", "c:80", by="a:80")
    assert [Kind.GONE_BROKER] == kinds(written)
    written = taken_over()
    written.add(BUNDLE, "nobody", "Owned", to="a:80", version=9)
    assert {Kind.GONE_BROKER, Kind.SECOND_OWNER} == set(kinds(written))


def test_a_broker_that_lost_its_session_may_go_on() -> None:
    """The leader took its bundles, and it takes others over its old connection."""
    written = taken_over()
    written.assign("public/other/0x00000000_0xffffffff", "a:80", by="b:80")
    written.transfer(BUNDLE, "b:80", "a:80")
    written.transfer(BUNDLE, "a:80", "c:80")
    assert [] == kinds(written)


def test_a_broker_that_came_back_may_take_bundles() -> None:
    written = taken_over()
    written.add(BUNDLE, "leader:80", "Releasing", to="a:80", source="b:80")
    written.add(BUNDLE, "b:80", "Assigning", to="a:80", source="b:80")
    written.add(BUNDLE, "a again", "Owned", to="a:80", source="b:80")
    assert [] == kinds(written)


def test_a_move_that_nobody_finished_is_found() -> None:
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.transfer(BUNDLE, "a:80", "b:80", wait_ms=45_000)
    assert [Kind.STUCK] == kinds(written)
    assert "it was Releasing for 45 s" == audited(written).findings[0].text


def test_moves_back_are_counted() -> None:
    """A bundle that was unloaded and comes back without having been elsewhere does not bounce."""
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.transfer(BUNDLE, "a:80", "b:80")
    written.transfer(BUNDLE, "b:80", "a:80")
    written.add(BUNDLE, "leader:80", "Releasing", source="a:80")
    written.add(BUNDLE, "a:80", "Free", source="a:80")
    written.assign(BUNDLE, "a:80")
    assert {BUNDLE: 1} == audited(written).bounced


def test_what_is_unreadable_and_states_of_the_future_are_found() -> None:
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.add(BUNDLE, "a:80", "Warming", to="a:80")
    written.reads.append(written.reads[0]._replace(value=b"?"))
    assert [Kind.UNKNOWN_STATE, Kind.UNREADABLE] == kinds(written)


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
        names = archive.bundles("public/default")
        assert {BUNDLE, f"public/default/{LEFT}", f"public/default/{RIGHT}"} == set(names)
        assert messages(written) == list(archive.messages_of(names))
        assert [Report(7, "loadbalancer-broker-load-data", "a:80", b"{}")] == list(
            archive.reports()
        )
        assert Members(8, "a:80", ("a:80", "b:80")) == archive.members()


def test_what_was_lost_between_two_recordings_is_no_gap(tmp_path: Path) -> None:
    """Pulsar compacted its channel meanwhile. All that its brokers hold follows again, and bundles
    that do not follow are gone.
    """
    other, written = "public/other/0x00000000_0xffffffff", Written()
    written.assign(BUNDLE, "a:80")
    written.assign(other, "a:80")
    old = written.reads
    written.reads = []
    written.add(BUNDLE, "c:80", "Owned", to="c:80", version=9)
    written.reads[0] = written.reads[0]._replace(begins_anew=True)
    written.transfer(BUNDLE, "c:80", "b:80")
    table, audit = Table(), Audit()
    with open_archive(tmp_path / "pulsar.db", create_for=URL) as archive:
        archive.append(old)
        archive.append(written.reads)
        for message in archive.messages():
            audit.see(table.fold(message))
        result = audit.result()
        assert ([BUNDLE], 1, True) == (list(table.bundles), result.losses, result.in_order)
        of_bundle = [
            " | ".join(text)
            for _, text in story_of(archive.messages_of([BUNDLE]), parse_bundle(BUNDLE), Writers())
        ]
        assert "messages before this one are lost" in of_bundle[2]
        assert ["own", "transfer", "closed", "own"] == [line.split()[0] for line in of_bundle[2:]]
        assert ["assign", "own", "forget"] == [
            text[0].split()[0]
            for _, text in story_of(archive.messages_of([other]), parse_bundle(other), Writers())
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


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to be read as one" * 20]
)
def test_another_file_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pulsar.db"
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
