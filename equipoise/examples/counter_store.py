"""The counters' store: one SQLite file for all brokers, which refuses a write whose token is older than one it has seen.

That refusal is what the token is for. A broker can stall between its last look at its ownership and the moment at which
its write arrives; meanwhile another broker may own the key. Only the store sees both writes, so only it can tell.

All writes that wait become one transaction, made in a thread of the store's own. `synchronous=NORMAL` does not wait for the
disk: whatever a process dies of, its writes survive; a power cut may take the last ones back, all of them together, so that
the counters stay in step with the tokens. A store that must survive that too says FULL, and pays a disk write per batch.
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

from equipoise.errors import CallerError, EquipoiseError, OperatorError, Overloaded, PeerError

BATCH_MAX: Final = 256  # A transaction of so many writes takes some 5 ms, which is what another broker's may wait for.
QUEUE_MAX: Final = 4_096  # Sixteen batches: whoever comes after them would wait for a tenth of a second.
BUSY_SECONDS_MAX: Final = 5.0  # How long a batch waits for the writes of other brokers.
OPEN_SECONDS_MAX: Final = 5.0

_PRIMARY_CODE: Final = 0xFF

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS counters(key TEXT PRIMARY KEY, value INTEGER NOT NULL, token INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS writes(
    position INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, value INTEGER, token INTEGER, broker TEXT, request TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS refusals(
    position INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, token INTEGER, highest INTEGER, broker TEXT, request TEXT);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """Add one to `key`, under `token`, on behalf of `broker`. The same `request` is applied once, however often it comes."""

    key: str
    token: int
    broker: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The row of an increment: the counter's value after it, and the token and broker that it was made under."""

    value: int
    token: int
    broker: str


class StaleToken(PeerError):
    """The write came from a broker that had lost the key already; nothing was written."""


class RequestReused(CallerError):
    """The request's id was used for another key before; nothing was written."""


class StoreFailed(PeerError):
    """The store cannot say whether the write was made."""


class StoreUnusable(OperatorError):
    """The store's file cannot be opened."""


class CounterStore:
    """A handle on the store in one file, with a thread of its own. Close it, or let the process end."""

    def __init__(self, path: str | Path) -> None:
        """Open the file, making it if it is not there. Raises `StoreUnusable`."""
        try:
            # For its owner alone; SQLite gives its other files the same mode. A file that is there keeps its own.
            with suppress(FileExistsError):
                os.mknod(path, 0o600)
            self._connection = sqlite3.connect(path, timeout=OPEN_SECONDS_MAX, isolation_level=None, check_same_thread=False)
            # The change to WAL, which several brokers may make of a new file at once, waits for nobody by itself.
            self._execute_patiently("PRAGMA journal_mode=WAL", seconds_max=OPEN_SECONDS_MAX)
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.executescript(_SCHEMA)
            self._connection.execute("PRAGMA busy_timeout=0")  # Its waits double up to 100 ms; see `_execute_patiently`.
        except (OSError, sqlite3.Error) as error:
            raise StoreUnusable(f"the counters cannot be kept in {path}: {error}; name another file") from error
        self._is_open = True
        self._queue = queue.Queue[tuple[Increment, Future[Stored]] | None](maxsize=QUEUE_MAX)
        self._thread = threading.Thread(target=self._run, name="counter store", daemon=True)
        self._thread.start()

    async def increment(self, increment: Increment) -> Stored:
        """Apply an increment, or find that it was applied before.

        Raises `StaleToken`, `RequestReused` or `Overloaded` if nothing was written, `StoreFailed` if that is not known.
        """
        if not self._is_open:
            raise StoreFailed("the counters' store is closed; ask another broker")
        future: Future[Stored] = Future()
        try:
            self._queue.put_nowait((increment, future))
        except queue.Full:
            raise Overloaded(what="the queue of the counters' store", limit=QUEUE_MAX) from None
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Write what is queued, and close the file."""
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
            # A caller that has gone away meanwhile takes its write along.
            self._write([item for item in items if item is not None and item[1].set_running_or_notify_cancel()])

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
        except Exception as error:  # noqa: BLE001 - whatever it was, no caller may wait for ever
            outcomes = [StoreFailed(f"the counters' store failed: {error}; ask again with the same request id")] * len(batch)
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Stored):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

    def _begin(self) -> None:
        self._execute_patiently("BEGIN IMMEDIATE", seconds_max=BUSY_SECONDS_MAX)

    def _execute_patiently(self, statement: str, *, seconds_max: float) -> None:
        """Execute what needs a lock. Brokers that wait with equal, growing pauses starve each other; short and random ones do not."""
        give_up = time.monotonic() + seconds_max
        while True:
            try:
                self._connection.execute(statement)
            except sqlite3.OperationalError as error:
                # The low byte: those above tell for what it is busy, such as what a broker that was killed left to be recovered.
                if error.sqlite_errorcode & _PRIMARY_CODE != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                    raise
                time.sleep(random.uniform(0.0001, 0.001))  # noqa: S311 - jitter, no secret
            else:
                return

    def _apply(self, increment: Increment) -> Stored | StaleToken | RequestReused:
        execute, key, token = self._connection.execute, increment.key, increment.token
        row = execute("SELECT key, value, token, broker FROM writes WHERE request = ?", (increment.request,)).fetchone()
        if row is not None:
            if row[0] != key:
                return RequestReused(f"request {increment.request} was made for {row[0]} before; give this one an id of its own")
            return Stored(value=row[1], token=row[2], broker=row[3])
        value, highest = execute("SELECT value, token FROM counters WHERE key = ?", (key,)).fetchone() or (0, 0)
        if token < highest:
            refusal = (key, token, highest, increment.broker, increment.request)
            execute("INSERT INTO refusals(key, token, highest, broker, request) VALUES (?, ?, ?, ?, ?)", refusal)
            return StaleToken(f"token {token} of {key} is older than {highest}: another broker owns it now; ask again who")
        execute("INSERT OR REPLACE INTO counters(key, value, token) VALUES (?, ?, ?)", (key, value + 1, token))
        write = (key, value + 1, token, increment.broker, increment.request)
        execute("INSERT INTO writes(key, value, token, broker, request) VALUES (?, ?, ?, ?, ?)", write)
        return Stored(value=value + 1, token=token, broker=increment.broker)
