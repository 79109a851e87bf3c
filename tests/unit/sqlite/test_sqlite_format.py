"""The times that entries have, and which rows of a snapshot a file keeps."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.channel.core.errors import LogDamaged
from equipoise.channel.core.log import SnapshotRow
from tests.unit.sqlite.sqlite_files import TIMEOUT_MS, edit, make, open_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log is."""
    return tmp_path / "log.db"


@pytest.mark.parametrize(
    "statement", ["UPDATE entries SET appended_ms = 'noon'", "UPDATE log SET appended_ms = 'noon'"]
)
def test_a_time_that_is_none_is_damage(path: Path, statement: str) -> None:
    """A time that is no number is told as damage, to who asks for times."""
    make(path, b"a", b"b")
    edit(path, statement)
    with pytest.raises(LogDamaged):
        open_at(path).position_at(2**40)


def rows_in(path: Path) -> list[tuple[bytes, int, bytes | None]]:
    """All rows of the table of the snapshot, also those that do not count."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT key, generation, data FROM snapshot ORDER BY key"
        ).fetchall()


def test_what_does_not_count_is_removed(path: Path) -> None:
    """After a replacement the table holds each key once, and none that is gone."""
    with closing(open_at(path)) as log:
        compacted_snapshot = log.compacted_snapshot()
        compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
        for number in range(3):
            compacted_snapshot.replace(
                [SnapshotRow("a", b"%d" % number), SnapshotRow("b", None if number else b"b")],
                b"marker",
                timeout_ms=TIMEOUT_MS,
            )
        assert [(b"a", 3, b"2")] == rows_in(path)


def test_what_a_dead_writer_left_is_removed_by_the_next_claim(path: Path) -> None:
    """Rows that never came to count, and such as count no longer, go when somebody claims the
    snapshot next.
    """
    log = open_at(path)
    compacted_snapshot = log.compacted_snapshot()
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    compacted_snapshot.replace(
        [SnapshotRow("a", b"1"), SnapshotRow("b", b"1")], b"marker", timeout_ms=TIMEOUT_MS
    )
    litter = (
        "INSERT INTO snapshot VALUES (x'61', 2, x'32'), (x'62', 0, x'30'), (x'63', 0, NULL),"
        " (x'64', 2, x'32')"
    )
    edit(path, litter, "UPDATE snapshot_marker SET is_tidy = 0")
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    assert [(b"a", 1, b"1"), (b"b", 1, b"1")] == rows_in(path)
    log.close()
