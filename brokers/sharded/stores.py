"""Stores for `Keyed` that refuse the late write of a former owner by its fencing token."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Final

from equipoise.brokers.sharded.keyed import StaleToken

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS states (
    namespace TEXT, key TEXT, token INTEGER NOT NULL, state BLOB NOT NULL,
    PRIMARY KEY (namespace, key)) WITHOUT ROWID"""

_SAVE: Final = """
INSERT INTO states (namespace, key, token, state) VALUES (?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET token = excluded.token, state = excluded.state
    WHERE token <= excluded.token"""

_BUSY_S: Final = 5.0


class SqliteStore:
    """A store in an SQLite file, which all processes of one machine may use. A state is on the disk
    when `save` returns.
    """

    def __init__(self, path: Path | str) -> None:
        """The file is made at the first use, in a folder that exists."""
        self._path = path
        # SQLite blocks its thread while it waits for the disk, or for another process.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="equipoise-store")

    def __repr__(self) -> str:
        return f"<SqliteStore {self._path}>"

    async def load(self, namespace: str, key: str) -> bytes | None:
        """See `Store.load`. Raises `sqlite3.Error`."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread, self._load, namespace, key
        )

    async def save(self, namespace: str, key: str, state: bytes, *, token: int) -> None:
        """See `Store.save`. Raises `StaleToken` and `sqlite3.Error`."""
        is_saved = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._save, namespace, key, state, token
        )
        if not is_saved:
            raise StaleToken(namespace=namespace, key=key, token=token)

    def _load(self, namespace: str, key: str) -> bytes | None:
        found = self._connection.execute(
            "SELECT state FROM states WHERE namespace = ? AND key = ?", (namespace, key)
        ).fetchone()
        return None if found is None else bytes(found[0])

    def _save(self, namespace: str, key: str, state: bytes, token: int) -> bool:
        return bool(self._connection.execute(_SAVE, (namespace, key, token, state)).rowcount)

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(_TABLE)
        return connection
