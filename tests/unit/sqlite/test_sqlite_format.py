"""Files of an older format, and the times that entries bear."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from equipoise.channel.core.errors import LogDamaged
from equipoise.channel.core.log import Entry
from equipoise.channel.core.snapshot_store import SnapshotRow
from equipoise.channel.sqlite.file import BOOT_ID, this_boot
from equipoise.channel.sqlite.format import (
    APPLICATION_ID,
    FORMAT,
    FORMAT_WITH_HISTORY,
    SKIP_AFTER_RESTART,
)
from equipoise.channel.sqlite.log import SqliteLog
from tests.unit.sqlite.sqlite_files import TIMEOUT_MS, append, edit, make, open_at

RECORDS = [b"%d" % number * 30 for number in range(200)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log is."""
    return tmp_path / "log.db"


def make_of_format_1(path: Path) -> None:
    """A log as the first version made it, with some entries."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN")
        connection.execute(
            "CREATE TABLE entries (offset INTEGER PRIMARY KEY, data BLOB NOT NULL, checksum INTEGER"
            " NOT NULL)"
        )
        connection.execute(
            "CREATE TABLE log (identity TEXT NOT NULL, start_offset INTEGER NOT NULL, end_offset"
            " INTEGER NOT NULL, boot TEXT NOT NULL)"
        )
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        connection.execute(
            "INSERT INTO log VALUES ('an identity', 1, ?, ?)", (len(RECORDS), this_boot(BOOT_ID))
        )
        rows = [(offset, data, crc32(data, offset)) for offset, data in enumerate(RECORDS, 1)]
        connection.executemany("INSERT INTO entries VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")


def tables(path: Path) -> list[tuple[str, str]]:
    """The tables of a file, as they are spelled in it."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


def format_of(path: Path) -> int:
    """The format that a file says it has."""
    with closing(sqlite3.connect(path)) as connection:
        [(file_format,)] = connection.execute("PRAGMA user_version").fetchall()
    return int(file_format)


def test_an_older_file_is_brought_up(path: Path, tmp_path: Path) -> None:
    """A log of format 1 is opened with all that is on it, and is then like one that was made today,
    also for the next.
    """
    make_of_format_1(path)
    for number in range(2):
        log = open_at(path)
        assert ("an identity", len(RECORDS) + number) == (log.identity, log.end())
        assert list(map(Entry, range(1, 201), RECORDS)) == list(log.read(1, limit=200))
        assert [201 + number] == append(log, b"new")
        log.close()
    make(tmp_path / "today.db")
    assert tables(tmp_path / "today.db") == tables(path)
    assert FORMAT == format_of(path)


def test_older_entries_count_as_of_then(path: Path) -> None:
    """Entries of format 1 bear the time at which the file was brought up: nothing of them is old
    yet.
    """
    before_ms = time.time_ns() // 1_000_000
    make_of_format_1(path)
    log = open_at(path)
    after_ms = time.time_ns() // 1_000_000
    assert 1 == log.position_at(before_ms)
    assert 201 == log.position_at(after_ms + 1)
    append(log, b"new")
    assert 1 == log.position_at(before_ms)
    log.close()


def test_entries_of_an_older_process_count_as_new(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process of format 1 appends, which has the file open still, is taken for as young as
    the next entry that bears a time.
    """
    make_of_format_1(path)
    log = open_at(path)
    append(log, b"timed")
    with closing(sqlite3.connect(path, isolation_level=None)) as older:
        for offset in (202, 203):
            older.execute(
                "INSERT INTO entries (offset, data, checksum) VALUES (?, ?, ?)",
                (offset, b"x", crc32(b"x", offset)),
            )
            older.execute("UPDATE log SET end_offset = ?", (offset,))
    after_ms = time.time_ns() // 1_000_000 + 1
    assert 202 == log.position_at(after_ms)
    monkeypatch.setattr(time, "time_ns", lambda: (after_ms + 5) * 1_000_000)
    append(log, b"timed again")
    assert [202, 205] == [log.position_at(time_ms) for time_ms in (after_ms, 2**50)]
    assert 1 == log.position_at(0)
    log.close()


def test_a_file_gets_a_history_when_that_is_first_claimed(path: Path) -> None:
    """Reading a history snapshot leaves the file format as it is; a claim raises it to a format
    that all can open.
    """
    make(path, b"a")
    before, other = open_at(path), open_at(path)
    assert before.history_snapshot().load() is None
    assert FORMAT == format_of(path)
    before.history_snapshot().claim(timeout_ms=TIMEOUT_MS)
    before.history_snapshot().replace([SnapshotRow("a", b"1")], b"marker", timeout_ms=TIMEOUT_MS)
    assert FORMAT_WITH_HISTORY == format_of(path)
    for log in (other, open_at(path)):
        image = log.history_snapshot().load()
        assert image is not None
        assert {"a": b"1"} == image.rows
        log.history_snapshot().claim(timeout_ms=TIMEOUT_MS)
        log.close()
    before.close()


def test_a_file_with_a_history_is_opened_after_a_restart(path: Path, tmp_path: Path) -> None:
    """A machine that was started anew finds the newer format as it is, and skips ahead on it."""
    make(path, b"a")
    log = open_at(path)
    log.history_snapshot().claim(timeout_ms=TIMEOUT_MS)
    log.close()
    (tmp_path / "boot").write_text("another start")
    log = SqliteLog(str(path), name="a log", boot_id=tmp_path / "boot")
    assert 1 + SKIP_AFTER_RESTART == log.end()
    assert FORMAT_WITH_HISTORY == format_of(path)
    log.close()


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
    log = open_at(path)
    compacted_snapshot = log.compacted_snapshot()
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    for number in range(3):
        compacted_snapshot.replace(
            [SnapshotRow("a", b"%d" % number), SnapshotRow("b", None if number else b"b")],
            b"marker",
            timeout_ms=TIMEOUT_MS,
        )
    assert [(b"a", 3, b"2")] == rows_in(path)
    log.close()


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
