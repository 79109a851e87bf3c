"""The commands that show the past, on compacted logs: they print what they print of a whole log,
from the first offset on.
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.propose import Author
from equipoise.channel.core.snapshot_store import SnapshotRow
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import restored
from equipoise.compaction.retention import Retention
from tests.channels.compacting import TIMEOUT_MS, compacted, digests_of, restored_to_end
from tests.unit.cli.fabricated import owned_channel, run, write

KEPT = Retention(unit="offsets", amount=6)
RENEWALS = 5


def renew(url: str, times: int) -> None:
    with closing(open_log(url)) as log:
        for _ in range(times):
            view = restored_to_end(log)
            broker = view.brokers["a"]
            author = Author(
                publisher="a", incarnation=broker.incarnation, sequence=broker.sequence + 1
            )
            log.append([encode(propose.renewed(author, broker))], timeout_ms=TIMEOUT_MS)


@pytest.fixture
def whole(tmp_path: Path) -> str:
    """A log of nine records, and fifteen renewals after them."""
    url = write(owned_channel().entries, tmp_path)
    renew(url, 3 * RENEWALS)
    return url


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The same log, compacted after each five renewals."""
    (tmp_path / "compacted").mkdir()
    url = write(owned_channel().entries, tmp_path / "compacted")
    for _ in range(3):
        renew(url, RENEWALS)
        with closing(open_log(url)) as opened:
            compacted(opened, retain=KEPT)
    return url


def digests_in(url: str) -> dict[int, str]:
    """The digest at each offset of a whole log, as it is printed."""
    with closing(open_log(url)) as log:
        entries = [(entry.offset, entry.data) for entry in log.read(1, limit=100)]
    return {offset: f"0x{digest:016x}" for offset, digest in digests_of(entries).items()}


def test_every_offset_on_the_log_can_be_shown(log: str, whole: str) -> None:
    expected = digests_in(whole)
    for offset in range(18, 25):
        assert (
            expected[offset]
            == json.loads(run("channel", "at", str(offset), "--json", log=log).stdout)["digest"]
        )
    for command in ("at", "show"):
        result = run("channel", command, "17", log=log)
        assert ("", 2) == (result.stdout, result.exit_code)
        assert "no longer has the view at" in result.stderr
        assert "the records before offset 18 have been compacted" in result.stderr


@pytest.mark.parametrize(
    "command", [["show", "20"], ["diff", "18", "24"], ["tail", "--from", "19", "--renewals"]]
)
def test_a_compacted_log_prints_what_the_whole_log_prints(
    log: str, whole: str, command: list[str]
) -> None:
    result = run("channel", *command, log=log)
    assert (run("channel", *command, log=whole).stdout, 0) == (result.stdout, result.exit_code)


def test_a_compacted_copy_is_shown_from_its_beginning(whole: str, tmp_path: Path) -> None:
    with closing(open_log(whole)) as opened:
        view = restored_to_end(opened)
        for name in ("a", "b", "c"):
            opened.append(
                [
                    encode(
                        propose.left(
                            Author(
                                publisher=name,
                                incarnation=view.brokers[name].incarnation,
                                sequence=view.brokers[name].sequence + 1,
                            ),
                            view.brokers[name],
                        )
                    )
                ],
                timeout_ms=TIMEOUT_MS,
            )
    copy = f"sqlite:{tmp_path}/copy.db"
    assert 0 == run("channel", "copy", whole, copy).exit_code
    with closing(open_log(copy)) as opened:
        base = restored(opened).view.offset
        for retain in (Retention(unit="offsets", amount=100), Retention(unit="offsets", amount=50)):
            policy = propose.set_policy(
                Author(publisher="admin:ops", as_of=opened.end() + base),
                restored_to_end(opened),
                name="p",
                document={},
            )
            opened.append([encode(policy)], timeout_ms=TIMEOUT_MS)
            compacted(opened, retain=retain)
    for offset in range(base, base + 4):
        result = run("channel", "at", str(offset), "--json", log=copy)
        assert (offset, 0) == (json.loads(result.stdout)["offset"], result.exit_code)
    assert 0 == run("channel", "verify", log=copy).exit_code


def test_a_tail_from_an_offset_that_is_not_on_the_log_is_refused(log: str) -> None:
    for place, code, words in (
        ("17", 2, "no longer has the view at offset 17"),
        ("0", 2, "no longer has the view at offset 0"),
        ("25", 2, "its last record is at 24"),
    ):
        result = run("channel", "tail", "--from", place, log=log)
        assert ("", code) == (result.stdout, result.exit_code)
        assert words in result.stderr
    assert 2 == run("channel", "at", "25", log=log).exit_code
    assert 2 == run("channel", "tail", "--from", "26", "--follow", log=log).exit_code
    # A renewal, which is not shown.
    assert "" == run("channel", "tail", "--from", "24", log=log).stdout


def test_without_its_history_snapshot_a_log_starts_at_the_snapshot(log: str) -> None:
    with closing(open_log(log)) as opened:
        image = opened.history_snapshot().load()
        assert image is not None
        opened.history_snapshot().claim(timeout_ms=TIMEOUT_MS)
        opened.history_snapshot().replace(
            [SnapshotRow("broker:a", b"{}")], image.marker, timeout_ms=TIMEOUT_MS
        )
    assert 2 == run("channel", "at", "20", log=log).exit_code
    result = run("channel", "at", "24", log=log)
    assert 0 == result.exit_code
    verified = run("channel", "verify", log=log)
    assert 1 == verified.exit_code
    assert (
        "offset 0: history_snapshot: the history snapshot up to there: its row 'broker:a' does not"
        " match its checksum\n" in verified.stdout
    )
