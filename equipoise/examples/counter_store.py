"""Store the counters in one SQLite file for all brokers, and refuse a write with an older token
than one already seen.

This refusal is the purpose of the token. A broker can stall between its last ownership check and
the arrival of its write, while another broker comes to own the key. Only the store sees both
writes.

All waiting writes become one transaction, in the store's own thread. `synchronous=NORMAL` does not
wait for the disk: writes survive the death of a process, but a power failure may undo the newest
ones, counters and tokens together. A store that must survive that uses FULL, at the cost of a disk
write per batch.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import sqlite3
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from equipoise.errors import (
    CallerError,
    EquipoiseError,
    OperatorError,
    Overloaded,
    PeerError,
    StaleToken,
)

# A transaction of this size takes about 5 ms, which is how long other brokers wait.
BATCH_MAX: Final = 256
QUEUE_MAX: Final = 4_096  # Sixteen batches, a tenth of a second of work.
BUSY_SECONDS_MAX: Final = 5.0  # How long a batch waits for the writes of other brokers.
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
        self._is_open = True
        self._queue = queue.Queue[tuple[Increment, Future[Stored]] | None](maxsize=QUEUE_MAX)
        self._thread = threading.Thread(target=self._run, name="counter store", daemon=True)
        self._thread.start()

    async def increment(self, increment: Increment) -> Stored:
        """Apply an increment, or return the result of its earlier application.

        Raises `StaleToken`, `Overloaded`, or `CallerError` for a request id of another key, if
        nothing was written, and another `PeerError` if that is not known.
        """
        if not self._is_open:
            raise PeerError("the counters' store is closed; ask another broker")
        future: Future[Stored] = Future()
        try:
            self._queue.put_nowait((increment, future))
        except queue.Full:
            raise Overloaded(what="the queue of the counters' store", limit=QUEUE_MAX) from None
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Write the queued increments, and close the file."""
        self._is_open = False
        self._queue.put(None)
        self._thread.join()
        self._connection.close()

    # --- in the thread ---

    def _run(self) -> None:
        is_open = True
        while is_open:
            items = [self._queue.get()]
            while len(items) < BATCH_MAX and not self._queue.empty():
                items.append(self._queue.get())
            is_open = None not in items
            # Drop the writes of callers that have gone.
            self._write(
                [
                    item
                    for item in items
                    if item is not None and item[1].set_running_or_notify_cancel()
                ]
            )

    def _write(self, batch: Sequence[tuple[Increment, Future[Stored]]]) -> None:
        outcomes: Sequence[Stored | EquipoiseError]
        try:
            self._begin()
            try:
                outcomes = [self._apply(increment) for increment, _ in batch]
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.rollback()
                raise
        except Exception as error:  # noqa: BLE001 - after any error, no caller may wait for ever
            outcomes = [
                PeerError(
                    f"the counters' store failed: {error}; ask again with the same request id"
                )
            ] * len(batch)
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Stored):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

    def _begin(self) -> None:
        self._execute_patiently("BEGIN IMMEDIATE", seconds_max=BUSY_SECONDS_MAX)

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
