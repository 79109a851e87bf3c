"""Implement `SideLog` in a file beside that of an SQLite log: a table for each topic.

A file of its own, so that damage to it, or a process that is stopped while it holds its lock, does
not affect the log. Each call opens the file, which takes a millisecond: a handle that is kept open
would miss a replaced file.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.core.side_log import Document, Kept, SideLogUnavailable, SideTopic
from equipoise.channel.sqlite.file import connect, usable_path
from equipoise.channel.system.file_system import refuse_network_file_system

FILE_SUFFIX: Final = ".observations"

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS {0} (id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL,"
    " key TEXT NOT NULL, document TEXT)"
)
_INDEX: Final = "CREATE INDEX IF NOT EXISTS {0}_at_ms ON {0} (at_ms)"
_INSERT: Final = "INSERT INTO {0} (at_ms, key, document) VALUES (?, ?, ?)"
_DELETE_OLD: Final = "DELETE FROM {0} WHERE id <= (SELECT max(id) FROM {0}) - ?"
_READ: Final = "SELECT id, at_ms, key, document FROM {0} WHERE id >= ? ORDER BY id LIMIT ?"
# Two queries, since SQLite finds one end of a table without reading it, but not both.
_BOUNDS: Final = "SELECT (SELECT min(id) FROM {0}), (SELECT max(id) FROM {0})"
_FIRST_AT: Final = "SELECT min(id) FROM {0} WHERE at_ms >= ?"


class SqliteSideLog:
    """A handle on one topic beside the log at `path`, whose URL is `name`. See `SideLog`."""

    def __init__(self, path: str, topic: SideTopic, *, name: str) -> None:
        self.place = f"in {path}{FILE_SUFFIX}"
        self._log_path = path
        self._topic = topic
        self._name = name

    def append(self, documents: Sequence[Document]) -> None:
        """See `SideLog.append`. All of the documents are kept, or none."""
        if not documents:
            return
        now_ms = time.time_ns() // 1_000_000
        rows = [
            (now_ms, each.key, None if each.value is None else each.value.decode())
            for each in documents
        ]
        with self._opened(create=True) as connection:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in (_TABLE, _INDEX):
                connection.execute(statement.format(self._topic.name))
            connection.executemany(_INSERT.format(self._topic.name), rows)
            # SQLite never gives an id again, since the newest row stays.
            connection.execute(_DELETE_OLD.format(self._topic.name), (self._topic.rows_max,))
            connection.execute("COMMIT")

    def read(self, position: int, *, limit: int) -> Sequence[Kept]:
        """See `SideLog.read`. What another program wrote into a row may come as no value."""
        with self._table() as connection:
            if connection is None:
                return ()
            _, end = self._bounds(connection)
            first = position if position <= end else FIRST_OFFSET
            rows = connection.execute(_READ.format(self._topic.name), (first, limit)).fetchall()
        return [
            Kept(
                number,
                at_ms if isinstance(at_ms, int) else 0,
                key.decode(errors="replace") if isinstance(key, bytes) else "",
                document if isinstance(document, bytes) else None,
            )
            for number, at_ms, key, document in rows
        ]

    def bounds(self) -> tuple[int, int]:
        """See `SideLog.bounds`."""
        with self._table() as connection:
            return (FIRST_OFFSET,) * 2 if connection is None else self._bounds(connection)

    def position_at(self, time_ms: int) -> int:
        """See `SideLog.position_at`."""
        with self._table() as connection:
            if connection is None:
                return FIRST_OFFSET
            query = _FIRST_AT.format(self._topic.name)
            [(first,)] = connection.execute(query, (time_ms,)).fetchall()
            return self._bounds(connection)[1] if first is None else int(first)

    def close(self) -> None:
        """See `SideLog.close`."""

    def _bounds(self, connection: sqlite3.Connection) -> tuple[int, int]:
        [(first, newest)] = connection.execute(_BOUNDS.format(self._topic.name)).fetchall()
        return (FIRST_OFFSET,) * 2 if newest is None else (int(first), int(newest) + 1)

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection | None]:
        """Yield a connection that can read the table; None if there is no such table yet."""
        with self._opened(create=False) as connection:
            query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
            [(known,)] = connection.execute(query, (self._topic.name,)).fetchall()
            yield connection if known else None

    @contextmanager
    def _opened(self, *, create: bool) -> Iterator[sqlite3.Connection]:
        """Yield a connection to the file; to an empty database if there is no file and `create` is
        false.
        """
        try:
            log = usable_path(self._log_path, url=self._name, create=False)
            path = Path(f"{log}{FILE_SUFFIX}")
            refuse_network_file_system(path)
            is_there = create or path.exists()
            with closing(
                connect(path, create=create) if is_there else sqlite3.connect(":memory:")
            ) as connection:
                connection.execute(f"PRAGMA busy_timeout = {self._topic.lock_ms_max}").fetchall()
                yield connection
        except (EquipoiseError, OSError, sqlite3.Error) as error:
            raise SideLogUnavailable(self._topic, place=self.place, problem=error) from error
