"""SQLite files whose snapshot was damaged: a log that is whole leads on without it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.channel.core.errors import SnapshotFenced
from equipoise.channel.inspect.verify import verify
from equipoise.channel.snapshots.restore import earliest
from equipoise.channel.sqlite.log import SqliteLog
from equipoise.compaction.retention import Retention
from tests.channels.carried import cut_off
from tests.channels.compacting import all_of, compacted, renewed, restored_to_end
from tests.channels.folding import Channel, channel_with
from tests.unit.sqlite.sqlite_files import TIMEOUT_MS, edit, open_at

DAMAGES = {
    "a marker that is gone": ("DELETE FROM snapshot_marker", "the table snapshot_marker contains"),
    "a marker of which there are two": (
        "INSERT INTO snapshot_marker SELECT * FROM snapshot_marker",
        "the table snapshot_marker contains",
    ),
    "a marker of text": (
        "UPDATE snapshot_marker SET data = 'x'",
        "its row .marker. does not match",
    ),
    "a marker that is a number": (
        "UPDATE snapshot_marker SET data = 7",
        "the table snapshot_marker contains",
    ),
    "a generation of text": (
        "UPDATE snapshot_marker SET generation = 'x'",
        "the table snapshot_marker contains",
    ),
    "a row that is a number": (
        "UPDATE snapshot SET data = 7 WHERE key = CAST('level' AS BLOB)",
        "'level'",
    ),
    "a row that is text": (
        "UPDATE snapshot SET data = 'x' WHERE key = CAST('level' AS BLOB)",
        "'level'",
    ),
    "a key that is a number": (
        "UPDATE snapshot SET key = 7 WHERE key = CAST('level' AS BLOB)",
        "has the key 7",
    ),
    "a key that is no text": (
        "UPDATE snapshot SET key = x'ff' WHERE key = CAST('level' AS BLOB)",
        "row",
    ),
}
"""What is done to a snapshot's tables, and what is said of it."""

HEALED = {"a row that is a number", "a row that is text"}
"""Where the key is known, the next compaction writes the row anew."""


KEPT = Retention(unit="offsets", amount=5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log is."""
    return tmp_path / "log.db"


@pytest.fixture
def channel() -> Channel:
    """What stands on the log."""
    return channel_with("a:1", bundles=2)


@pytest.fixture
def log(path: Path, channel: Channel) -> Iterator[SqliteLog]:
    """A log that is whole, and has a snapshot."""
    with closing(open_at(path)) as log:
        log.append([data for _, data in channel.entries], timeout_ms=TIMEOUT_MS)
        cut_off(log, horizon=log.end(), below=1)
        yield log


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_whole_log_is_folded_from_zero(
    damage: str, log: SqliteLog, channel: Channel, path: Path
) -> None:
    """Its snapshot only saves time; brokers start, and `verify` says what is wrong."""
    statement, problem = DAMAGES[damage]
    edit(path, statement)
    assert all_of(channel.view) == all_of(restored_to_end(log))
    assert any(re.search(problem, finding.text) for finding in verify(log).findings), verify(
        log
    ).findings


@pytest.mark.parametrize("damage", sorted(HEALED))
def test_compaction_writes_a_damaged_row_anew(
    damage: str, log: SqliteLog, channel: Channel, path: Path
) -> None:
    """Afterwards the snapshot is as good as before."""
    edit(path, DAMAGES[damage][0])
    compacted(log)
    image = log.compacted_snapshot().load()
    assert image is not None
    assert image.rows["level"].startswith(b"{")
    assert all_of(channel.view) == all_of(restored_to_end(log))


HISTORY_DAMAGES = (
    "DELETE FROM history_marker",
    "UPDATE history_marker SET data = 'x'",
    "UPDATE history_marker SET claim = -1",
    "INSERT INTO history VALUES (5, 1, x'00')",
    "UPDATE history SET data = 5",
    "UPDATE history SET key = 'level' WHERE key = CAST('level' AS BLOB)",
)


@pytest.mark.parametrize("damage", HISTORY_DAMAGES)
def test_a_damaged_history_is_made_anew(damage: str, path: Path) -> None:
    """It tells of the past alone: compaction goes on, and what is kept from then on can be told."""
    channel = renewed(channel_with("a:1", bundles=4), 7)
    with closing(open_at(path)) as log:
        log.append([data for _, data in channel.entries], timeout_ms=TIMEOUT_MS)
        compacted(log, retain=KEPT)
        late = open_at(path)
        late.history_snapshot().claim(timeout_ms=TIMEOUT_MS)
        edit(path, damage)
        known = len(channel.entries)
        renewed(channel, 9)
        log.append([data for _, data in channel.entries[known:]], timeout_ms=TIMEOUT_MS)
        start = compacted(log, retain=KEPT).start
        assert (start, True) == (earliest(log).position, verify(log).in_order)
        with pytest.raises(SnapshotFenced):
            late.history_snapshot().replace([], b"marker", timeout_ms=TIMEOUT_MS)
        late.close()


def test_a_log_with_a_damaged_beginning_is_told_from_its_snapshot(
    log: SqliteLog, channel: Channel, path: Path
) -> None:
    """What a broker starts from is enough to tell what came after it."""
    edit(path, "UPDATE entries SET checksum = 0 WHERE offset = 1")
    assert earliest(log).position == log.end() + 1
    assert all_of(channel.view) == all_of(restored_to_end(log))
