"""SQLite logs for unit tests: opening them, filling them, and changing their files behind their
backs.
"""

from __future__ import annotations

import resource
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from equipoise.channel.sqlite.log import SqliteLog

TIMEOUT_MS = 10_000
URL = "sqlite:log.db"


def open_at(path: Path, **options: object) -> SqliteLog:
    """A handle on the log at a path."""
    # Each test knows its options.
    return partial(SqliteLog, str(path), name=URL, **options)()  # type: ignore[arg-type]


def append(log: SqliteLog, *records: bytes) -> list[int]:
    """The offsets of some records that are appended as one batch."""
    return list(log.append(records, timeout_ms=TIMEOUT_MS))


def make(path: Path, *records: bytes) -> list[int]:
    """The offsets of the records of a log that is made and closed, so that all of it is in one
    file.
    """
    with closing(open_at(path)) as log:
        return append(log, *records)


def edit(path: Path, *statements: str, **values: object) -> None:
    """Change the file by SQL, as somebody might who thinks that it is theirs."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement, values)
        connection.commit()


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size: a write beyond it fails as on a broken
    disk.
    """
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
