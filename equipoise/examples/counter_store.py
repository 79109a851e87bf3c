"""Store the counters in one SQLite file for all brokers, and refuse a write with an older token
than one already seen.

This refusal is the purpose of the token. A broker can stall between its last ownership check and
the arrival of its write, while another broker comes to own the key. Only the store sees both
writes.

Each write is a transaction in the store's own thread. `synchronous=NORMAL` does not wait for the
disk: writes survive the death of a process, but a power failure may undo the newest ones, counters
and tokens together. A store that must survive that uses FULL, at the cost of a disk write for each.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from equipoise.errors import (
    CallerError,
    OperatorError,
    Overloaded,
    PeerError,
    StaleToken,
)

WAITING_MAX: Final = 4_096  # Writes that wait: about a second of work.
BUSY_SECONDS_MAX: Final = 5.0  # How long a write waits for those of other brokers.
OPEN_SECONDS_MAX: Final = 5.0

_PRIMARY_CODE: Final = 0xFF

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS counters(
    key TEXT PRIMARY KEY, value INTEGER NOT NULL, token INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS writes(
    position INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, value INTEGER, token INTEGER,
    broker TEXT, request TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS refusals(
    position INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, token INTEGER, highest INTEGER,
    broker TEXT, request TEXT);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """Add one to `key` under `token`, for `broker`. Repeats with the same `request` count once."""

    key: str
    token: int
    broker: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The row of an increment: the new value of the counter, and the token and broker that wrote
    it.
    """

    value: int
    token: int
    broker: str


class CounterStore:
    """A handle on the store in one file, with its own thread. Close it, or let the process end."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, and create a missing one. Raises `OperatorError`."""
        if not str(path):
            raise OperatorError(
                "the counter has no store: set EQUIPOISE_COUNTER_STORE to one file for all brokers"
            )
        try:
            # For its owner only; SQLite gives its other files the same mode. An existing file keeps
            # its mode.
            with suppress(FileExistsError):
                os.mknod(path, 0o600)
            self._connection = sqlite3.connect(
                path, timeout=OPEN_SECONDS_MAX, isolation_level=None, check_same_thread=False
            )
            # SQLite does not wait for other brokers here, which may switch a new file to WAL at the
            # same time.
            self._execute_patiently("PRAGMA journal_mode=WAL", seconds_max=OPEN_SECONDS_MAX)
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA)
            # Its waits double up to 100 ms; see `_execute_patiently`.
            self._connection.execute("PRAGMA busy_timeout=0")
        except (OSError, sqlite3.Error) as error:
            raise OperatorError(
                f"the counters cannot be kept in {path}: {error}; name another file"
            ) from error
        # SQLite blocks its thread while it waits for the disk, or for another broker.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="counter store")
        self._is_open = True
        self._waiting = 0

    async def increment(self, increment: Increment) -> Stored:
        """Apply an increment, or return the result of its earlier application.

        Raises `StaleToken`, `Overloaded`, or `CallerError` for a request id of another key, if
        nothing was written, and another `PeerError` if that is not known.
        """
        if not self._is_open:
            raise PeerError("the counters' store is closed; ask another broker")
        if self._waiting >= WAITING_MAX:
            raise Overloaded(what="the queue of the counters' store", limit=WAITING_MAX)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._write, increment
            )
        except sqlite3.Error as error:
            raise PeerError(
                f"the counters' store failed: {error}; ask again with the same request id"
            ) from error
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Write the increments that wait, and close the file."""
        self._is_open = False
        self._thread.shutdown()
        self._connection.close()

    # --- in the thread ---

    def _write(self, increment: Increment) -> Stored:
        self._execute_patiently("BEGIN IMMEDIATE", seconds_max=BUSY_SECONDS_MAX)
        with self._connection:  # Commits, or rolls back after an error.
            outcome = self._apply(increment)
        if isinstance(outcome, Stored):
            return outcome
        raise outcome  # After the commit: a refusal is stored, too.

    def _execute_patiently(self, statement: str, *, seconds_max: float) -> None:
        """Execute a statement that needs a lock. Pauses are short and random; equal, growing ones
        let brokers starve one another.
        """
        give_up = time.monotonic() + seconds_max
        while True:
            try:
                self._connection.execute(statement)
            except sqlite3.OperationalError as error:
                # The low byte. The higher bytes hold the cause, such as the recovery of a killed
                # broker's writes.
                if (
                    error.sqlite_errorcode & _PRIMARY_CODE != sqlite3.SQLITE_BUSY
                    or time.monotonic() > give_up
                ):
                    raise
                time.sleep(random.uniform(0.0001, 0.001))  # noqa: S311 - jitter, no secret
            else:
                return

    def _apply(self, increment: Increment) -> Stored | StaleToken | CallerError:
        execute, key, token = self._connection.execute, increment.key, increment.token
        row = execute(
            "SELECT key, value, token, broker FROM writes WHERE request = ?", (increment.request,)
        ).fetchone()
        if row is not None:
            if row[0] != key:
                return CallerError(
                    f"request {increment.request} was already used for {row[0]}; use another id"
                )
            return Stored(value=row[1], token=row[2], broker=row[3])
        value, highest = execute(
            "SELECT value, token FROM counters WHERE key = ?", (key,)
        ).fetchone() or (0, 0)
        if token < highest:
            refusal = (key, token, highest, increment.broker, increment.request)
            execute(
                "INSERT INTO refusals(key, token, highest, broker, request) VALUES (?, ?, ?, ?, ?)",
                refusal,
            )
            return StaleToken(key=key, token=token, seen=highest)
        execute(
            "INSERT OR REPLACE INTO counters(key, value, token) VALUES (?, ?, ?)",
            (key, value + 1, token),
        )
        write = (key, value + 1, token, increment.broker, increment.request)
        execute(
            "INSERT INTO writes(key, value, token, broker, request) VALUES (?, ?, ?, ?, ?)", write
        )
        return Stored(value=value + 1, token=token, broker=increment.broker)
