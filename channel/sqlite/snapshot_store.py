"""Implement `SnapshotStore` in the file of an SQLite log, for its snapshot and its history
snapshot.

Theory of operation (the tables of both have the same form):

* Each `replace` has a number, its generation, and writes its rows beside older rows of the same
  keys. The marker table holds the newest generation that counts. A reader takes, per key, the
  newest row up to that generation. So the transaction that makes 100,000 rows visible changes one
  row.
* Rows are written, and obsolete rows removed, in small steps. Between two steps the write lock is
  free for as long as the step held it, so appends wait for one step at most.
* A claim raises the number in the marker table, and each step checks it. So older claimants cannot
  write, and rows left by a dead one can be removed.
* The first step clears `is_tidy`; it is set again when all obsolete rows are gone. A claimant that
  finds it cleared removes them before it writes: rows of a generation that never counted must not
  start to count.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from equipoise.channel.core.errors import (
    CompactedSnapshotDamaged,
    LogDamaged,
    LogStorageFull,
    LogUnavailable,
    SnapshotFenced,
)
from equipoise.channel.core.log import (
    Check,
    CompactedSnapshot,
    Progress,
    SnapshotRow,
    unchecked,
    unwatched,
)
from equipoise.channel.sqlite.format import (
    HISTORY,
    SNAPSHOT,
    remake_history_snapshot,
)
from equipoise.channel.sqlite.storage import READ_MS_MAX, SqliteStorage

STEP_ROWS: Final = 200
"""Rows per transaction: 50 KB, about 15 pages, 1 ms of the write lock."""

STEP_BYTES_MAX: Final = 1 << 16
"""Bytes after which a step takes no further row, so that giant rows do not hold the lock for
longer."""

LOAD_ROWS: Final = 1_000
"""Rows read between two calls of `check`."""


_NO_CLAIM: Final = -1
"""Never equals a stored claim."""

_Version = tuple[bytes, int, bytes | None]
"""A row of the table: key, generation, data (None is a tombstone)."""


class _State(NamedTuple):
    claim: int
    generation: int
    is_tidy: bool
    marker: bytes | None


class SqliteSnapshotStore:
    """The snapshot in the file of `storage`. See `SnapshotStore` for the contract."""

    def __init__(self, storage: SqliteStorage, *, table: str = SNAPSHOT) -> None:
        """`table` is `SNAPSHOT` or `HISTORY`."""
        self._storage = storage
        self._table = table
        self._claim = _NO_CLAIM

    def claim(self, *, timeout_ms: int) -> None:
        """See `SnapshotStore.claim`."""
        with self._storage.transaction("BEGIN IMMEDIATE", timeout_ms=timeout_ms):
            if self._table == HISTORY and not self._is_sound():
                # It holds only the past, and a damaged one cannot even be read.
                remake_history_snapshot(self._storage.connection)
            state = self._state()
            self._execute("UPDATE {table}_marker SET claim = ?", (state.claim + 1,))
        if not state.is_tidy:
            # Another claimant took over; the first replacement reports it.
            with contextlib.suppress(SnapshotFenced):
                self._remove_superseded(state.claim + 1, timeout_ms=timeout_ms)
        self._claim = state.claim + 1

    def load(
        self, *, check: Check = unchecked, progress: Progress = unwatched
    ) -> CompactedSnapshot | None:
        """See `SnapshotStore.load`."""
        rows: dict[str, bytes] = {}
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX):
            try:
                state = self._state()
            except LogDamaged as error:
                # For a reader only the snapshot is damaged: an intact log can be read without it.
                raise CompactedSnapshotDamaged(problem=error.problem) from error
            if state.marker is None:
                return None
            query = (
                "SELECT key, generation, data FROM {table} WHERE generation <= ? ORDER BY key,"
                " generation"
            )
            cursor = self._execute(query, (state.generation,))
            while found := cursor.fetchmany(LOAD_ROWS):
                check()
                for key, _, data in found:
                    if type(key) is not bytes:
                        raise CompactedSnapshotDamaged(
                            problem=f"a row has the key {key!r}, which is not text"
                        )
                    if data is None:
                        rows.pop(key.decode("utf-8", "replace"), None)
                    else:
                        # Data that is not bytes is damaged. Keep the key, so that it is replaced or
                        # removed.
                        rows[key.decode("utf-8", "replace")] = data if type(data) is bytes else b""
                progress(len(rows), None)
        return CompactedSnapshot(marker=state.marker, rows=rows)

    def replace(self, rows: Iterable[SnapshotRow], marker: bytes, *, timeout_ms: int) -> None:
        """See `SnapshotStore.replace`."""
        # Without a claim until this succeeds: after a failure, rows of this generation must never
        # count.
        claim, self._claim = self._claim, _NO_CLAIM
        # Sorted by key, so that each step changes a few neighbouring pages.
        by_key = sorted((row.key.encode(), claim, row.data) for row in rows)
        with self._storage.lazily():
            for step in _steps(by_key):
                self._step(claim, partial(self._write, step), timeout_ms=timeout_ms)
        with self._storage.transaction("BEGIN IMMEDIATE", timeout_ms=timeout_ms):
            self._check_claim(claim)
            self._execute(
                "UPDATE {table}_marker SET claim = ?, generation = ?, data = ?",
                (claim + 1, claim, marker),
            )
        self._claim = claim + 1
        # The new snapshot counts, even if removing obsolete rows fails. The next claimant then
        # removes them.
        with contextlib.suppress(SnapshotFenced, LogUnavailable, LogStorageFull):
            self._remove_superseded(self._claim, timeout_ms=timeout_ms)

    def _write(self, rows: Sequence[_Version]) -> None:
        self._execute("UPDATE {table}_marker SET is_tidy = 0")
        self._execute_many("INSERT INTO {table} (key, generation, data) VALUES (?, ?, ?)", rows)

    def _remove_superseded(self, claim: int, *, timeout_ms: int) -> None:
        """Remove all rows that do not count, and set `is_tidy`."""
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX):
            newest = self._state().generation
            query = "SELECT key, generation, data IS NULL FROM {table} ORDER BY key, generation"
            litter = _litter(self._execute(query).fetchall(), newest)
        with self._storage.lazily():
            for first in range(0, len(litter), STEP_ROWS):
                self._step(
                    claim,
                    partial(self._remove, litter[first : first + STEP_ROWS]),
                    timeout_ms=timeout_ms,
                )
            self._step(claim, self._declare_tidy, timeout_ms=timeout_ms)

    def _remove(self, litter: Sequence[tuple[bytes, int]]) -> None:
        self._execute_many("DELETE FROM {table} WHERE key = ? AND generation = ?", litter)

    def _declare_tidy(self) -> None:
        self._execute("UPDATE {table}_marker SET is_tidy = 1")

    def _step(self, claim: int, change: Callable[[], None], *, timeout_ms: int) -> None:
        """Make a change in its own transaction, if the claim still holds."""

        def checked() -> None:
            self._check_claim(claim)
            change()

        self._storage.step(checked, timeout_ms=timeout_ms)

    def _check_claim(self, claim: int) -> None:
        if self._state().claim != claim:
            raise SnapshotFenced(log=self._storage.name)

    def _state(self) -> _State:
        rows = self._execute(
            "SELECT claim, generation, is_tidy, data FROM {table}_marker"
        ).fetchall()
        match rows:
            case [(int(claim), int(generation), int(is_tidy), bytes() | None as marker)] if (
                0 <= generation <= claim
            ):
                return _State(claim, generation, bool(is_tidy), marker)
        raise LogDamaged(
            log=self._storage.name, problem=f"the table {self._table}_marker contains {rows!r:.100}"
        )

    def _is_sound(self) -> bool:
        """Return whether it can be loaded and replaced, regardless of its rows' data."""
        try:
            self._state()
        except LogDamaged:
            return False
        return not self._execute(
            "SELECT 1 FROM {table} WHERE typeof(key) != 'blob' LIMIT 1"
        ).fetchall()

    def _execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        return self._storage.connection.execute(statement.format(table=self._table), values)

    def _execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        self._storage.connection.executemany(statement.format(table=self._table), rows)


def _steps(rows: Sequence[_Version]) -> Iterator[list[_Version]]:
    """Split the rows into steps of at most `STEP_ROWS`. A step also ends when it reaches
    `STEP_BYTES_MAX`.
    """
    step: list[_Version] = []
    step_bytes = 0
    for row in rows:
        step.append(row)
        step_bytes += len(row[2] or b"")
        if len(step) == STEP_ROWS or step_bytes >= STEP_BYTES_MAX:
            yield step
            step, step_bytes = [], 0
    if step:
        yield step


def _litter(versions: Iterable[tuple[bytes, int, int]], newest: int) -> list[tuple[bytes, int]]:
    """Return the (key, generation) of rows that do not count or whose newest version is a
    tombstone.

    `versions` holds (key, generation, is a tombstone), in order.
    """
    litter: list[tuple[bytes, int]] = []
    for key, of_key in groupby(versions, key=itemgetter(0)):
        counting: tuple[int, int] | None = None
        for _, generation, is_gone in of_key:
            if generation > newest:
                litter.append((key, generation))
                continue
            if counting is not None:
                litter.append((key, counting[0]))
            counting = generation, is_gone
        if counting is not None and counting[1]:
            litter.append((key, counting[0]))
    return litter
