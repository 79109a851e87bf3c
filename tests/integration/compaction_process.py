"""Run a compactor in its own process, and kill it at a step, at an SQL statement or after a
time.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from multiprocessing.queues import SimpleQueue

from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.log.open_log import open_log
from equipoise.channel.sqlite import log as sqlite_log
from equipoise.channel.sqlite import snapshot_store as sqlite_snapshot_store
from equipoise.compaction.compactor import compact
from equipoise.compaction.retention import Retention

TIMEOUT_MS = 10_000

# So that a small channel takes many transactions to write and to remove.
STEP_ROWS, TRUNCATE_STEP_ENTRIES = 3, 7


@dataclass(frozen=True, kw_only=True)
class Death:
    """When to die; never, if nothing is set. A statement is counted from 1, and not executed."""

    statement: int | None = None
    after_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class Lived:
    """What a compactor tells that was not killed: how many SQL statements it took, and how it
    failed, if it did.
    """

    statements: int
    took_ms: float
    error: str | None


def die() -> None:
    """Die as a process dies that is killed: nothing is tidied up."""
    os.kill(os.getpid(), signal.SIGKILL)


def compact_and_die(url: str, retain: Retention, death: Death, told: SimpleQueue[Lived]) -> None:
    """Compact a log, as one that has been quiet for an hour, and die on the way."""
    sqlite_snapshot_store.STEP_ROWS, sqlite_log.TRUNCATE_STEP_ENTRIES = (  # type: ignore[misc]
        STEP_ROWS,
        TRUNCATE_STEP_ENTRIES,
    )
    statements = 0

    class Mortal(sqlite3.Connection):
        def count(self) -> None:
            nonlocal statements
            statements += 1
            if statements == death.statement:
                die()

        def execute(self, *args: object) -> sqlite3.Cursor:
            self.count()
            return super().execute(*args)  # type: ignore[arg-type] # as it was called

        def executemany(self, *args: object) -> sqlite3.Cursor:
            self.count()
            return super().executemany(*args)  # type: ignore[arg-type] # as it was called

    sqlite3.connect = partial(sqlite3.connect, factory=Mortal)  # type: ignore[assignment]
    with closing(open_log(url)) as log:
        if death.after_ms is not None:
            threading.Timer(death.after_ms / 1_000, die).start()
        began, error = time.monotonic(), None
        try:
            compact(
                log,
                retain=retain,
                timeout_ms=TIMEOUT_MS,
                now_ms=lambda: time.time_ns() // 1_000_000 + 3_600_000,
            )
        except EquipoiseError as failed:
            error = str(failed)
        told.put(
            Lived(statements=statements, took_ms=(time.monotonic() - began) * 1e3, error=error)
        )
    os._exit(0)  # The timer may still run.
