"""A read of an SQLite log that fails or is wrong once, although the file is whole: it is read
again, and nothing advises a restore.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from equipoise.channel.core.errors import LogUnavailable
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.sqlite import log as logs
from equipoise.channel.sqlite.log import SqliteLog
from tests.unit.sqlite.sqlite_files import append, make, open_at

CODES = {
    "corrupt": (sqlite3.SQLITE_CORRUPT, "database disk image is malformed"),
    "not a database": (sqlite3.SQLITE_NOTADB, "file is not a database"),
    "I/O error": (sqlite3.SQLITE_IOERR, "disk I/O error"),
}

# What reads the file, and the statement whose first page is misread.
READS: dict[str, tuple[str, Callable[[SqliteLog], object]]] = {
    "read": (
        "SELECT offset, data",
        lambda log: [entry.data for entry in log.read(FIRST_OFFSET, limit=9)],
    ),
    "read at its beginning": (
        "BEGIN",
        lambda log: [entry.data for entry in log.read(FIRST_OFFSET, limit=9)],
    ),
    "wait": ("SELECT start_offset", lambda log: log.wait(FIRST_OFFSET, timeout_ms=0)),
    "end": ("SELECT start_offset", lambda log: log.end()),
    "append": ("SELECT start_offset", lambda log: append(log, b"c")),
}


class Disk:
    """Fails `left` times at statements that begin with `at`. `opened` counts connections."""

    def __init__(self) -> None:
        self.left = 0
        self.at = ""
        self.code = ("", 0)
        self.opened = 0

    def fail(self, at: str, code: str, *, times: int = 1) -> None:
        self.at, self.left = at, times
        number, text = CODES[code]
        self.code = text, number

    def check(self, statement: str) -> None:
        if self.left and statement.startswith(self.at):
            self.left -= 1
            error = sqlite3.DatabaseError(self.code[0])
            error.sqlite_errorcode = self.code[1]
            raise error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()

    class Connection(sqlite3.Connection):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type] # as it was called
            disk.opened += 1

        def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
            disk.check(statement)
            return super().execute(statement, *values)  # type: ignore[arg-type] # as it was called

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Connection))
    return disk


@pytest.fixture
def log(disk: Disk, tmp_path: Path) -> Iterator[SqliteLog]:
    make(tmp_path / "log.db", b"a", b"b")
    log = open_at(tmp_path / "log.db")
    yield log
    log.close()


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("read", READS)
def test_a_page_that_is_misread_once_is_read_again(
    log: SqliteLog, disk: Disk, read: str, code: str
) -> None:
    """At once, or by the next call, as after an outage: nothing is damaged. A fresh connection
    reads it.
    """
    at, ask = READS[read]
    expected = (
        [b"a", b"b"]
        if read.startswith("read")
        else True
        if read == "wait"
        else 2
        if read == "end"
        else [3]
    )
    disk.fail(at, code)
    opened = disk.opened
    try:
        found = ask(log)
    except LogUnavailable:
        found = ask(log)
    assert expected == found
    assert opened + 1 == disk.opened


@pytest.mark.parametrize("code", CODES)
def test_a_page_that_is_always_misread_is_an_outage_while_the_file_is_whole(
    log: SqliteLog, disk: Disk, code: str
) -> None:
    disk.fail("BEGIN", code, times=9)
    for _ in range(3):
        with pytest.raises(LogUnavailable, match=r"log.db finds it whole|disk I/O error") as caught:
            log.read(FIRST_OFFSET, limit=9)
        assert not caught.value.in_doubt
    disk.left = 0
    assert [b"a", b"b"] == [entry.data for entry in log.read(FIRST_OFFSET, limit=9)]


@pytest.mark.parametrize("code", CODES)
def test_an_opening_reads_again(disk: Disk, tmp_path: Path, code: str) -> None:
    make(tmp_path / "log.db", b"a", b"b")
    disk.fail("SELECT type, name", code)
    with closing(open_at(tmp_path / "log.db")) as log:
        assert 2 == log.end()


def test_an_entry_that_is_misread_once_is_read_again(
    log: SqliteLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checksum shows it, not SQLite."""
    misread = iter([0])
    checksum_of = logs.checksum_of
    monkeypatch.setattr(
        logs,
        "checksum_of",
        lambda offset, data: 0 if next(misread, None) == 0 else checksum_of(offset, data),
    )
    assert [b"a", b"b"] == [entry.data for entry in log.read(FIRST_OFFSET, limit=9)]
