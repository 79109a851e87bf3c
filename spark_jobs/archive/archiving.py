"""Continue an archive where its tables end: fold the log, write its rows, keep the state.

1. The state of the `RowSequence` is saved now and then, and at a clean stop.
2. To continue, load it, then feed the archive's own `records` that follow it. Their rows are in the
   tables already. The log is needed only from there on, so it may be truncated up to there.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from equipoise.channel.core.errors import CompactedSnapshotDamaged
from equipoise.spark_jobs.rules.memory import StateRow, put_rows
from equipoise.spark_jobs.sequence.rows import Arrival, Positions, Source, Table
from equipoise.spark_jobs.sequence.sequence import SNAPSHOT_RECORDS, RowSequence
from equipoise.spark_jobs.sources.beginnings import beginning_at, lost
from equipoise.spark_jobs.streams.errors import ArchiveDamaged
from equipoise.spark_jobs.tables.arrow import emitted_table
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.schema import ARCHIVED, SCHEMAS
from equipoise.spark_jobs.tables.writing import Writer

SOURCES: Final = frozenset(SCHEMAS[table].source for table in ARCHIVED)
"""The sources of the archive's tables."""

WRITE_BYTES: Final = 16 << 20
"""Bytes of rows to write at once while more of the log waits: 60,000 records. Each write waits for
the disk some twenty times."""

STATE_RECORDS: Final = 100_000
"""Records after which the state is saved: a second of folding to repeat after a crash."""

STATE_S: Final = 600.0
"""The same in time, for a log with few records."""


class Archiving:
    """One archive while it is written: its tables, and the state from which they go on.

    `positions` is the next offset to read of each source.
    """

    def __init__(
        self, writer: Writer, log_url: str, *, snapshot_records: int = SNAPSHOT_RECORDS
    ) -> None:
        """Continue the archive, or begin it at the earliest place of the log.

        Raises `ArchiveDamaged` if state and records do not fit together, and what `beginning_at`
        and the methods of `Writer` raise.
        """
        self.writer = writer
        self.is_new = writer.position(Table.RECORDS) == 0
        self._rows: dict[str, bytes] = {}
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._is_elsewhere = False
        self._fed = 0
        self._saved_s = time.monotonic()
        found = writer.state()
        beginning = None if found is not None else beginning_at(log_url)
        self._sequence = RowSequence(
            None if beginning is None else beginning.snapshot,
            lost=partial(lost, log_url),
            snapshot_records=snapshot_records,
        )
        if found is None:
            self.save()
        else:
            self._restore(found)
        writer.base = self._sequence.view.base
        first = self._sequence.position if beginning is None else beginning.positions[_CHANNEL]
        tables = {SCHEMAS[table].source: table for table in ARCHIVED}
        beside = {
            source.value: writer.position(table)
            for source, table in tables.items()
            if source is not Source.CHANNEL
        }
        self.positions: Positions = {
            _CHANNEL: first,
            **{source: position for source, position in beside.items() if position},
        }

    @property
    def reached(self) -> int:
        """The last logical offset of the channel in the archive; -1 for none."""
        return self.writer.position(Table.RECORDS) - 1

    @property
    def state(self) -> dict[str, bytes]:
        """All rows of the sequence's state."""
        if not self._is_elsewhere:
            put_rows(self._rows, self._sequence.changed_rows())
        return self._rows

    def take(self, arrivals: Iterable[Arrival]) -> pa.Table:
        """Fold the next entries, which come in order, and return their rows. Write them once there
        are enough.

        Raises what `Writer.write` and `RowSequence.feed` raise. Then discard this object.
        """
        gc.disable()  # A batch makes a million values without cycles.
        try:
            rows = emitted_table(list(self._sequence.feed(arrivals)))
        finally:
            gc.enable()
        self._add(rows)
        if self._pending_bytes >= WRITE_BYTES:
            self.write()
        return rows

    def adopt(self, rows: pa.Table, changed: Iterable[StateRow]) -> None:
        """Write rows that were folded elsewhere, from `state` on, and take over the rows of state
        that have changed there. Raises as `write`.
        """
        self._is_elsewhere = True
        self._add(rows)
        self.write()
        put_rows(self._rows, changed)  # Now, because a state ahead of the tables is of no use.

    def _add(self, rows: pa.Table) -> None:
        self._fed += pc.sum(pc.equal(rows["table"], str(Table.RECORDS))).as_py() or 0
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes

    def write(self) -> None:
        """Write the rows that wait, and the state if it is time. Raises as `take`."""
        rows, self._pending, self._pending_bytes = self._pending, [], 0
        if rows:
            self.writer.write(pa.concat_tables(rows))
        if self._fed >= STATE_RECORDS or time.monotonic() - self._saved_s >= STATE_S:
            self._save()

    def save(self) -> None:
        """Write what waits, and save the state. Raises what `Writer.save_state` raises."""
        self.write()
        self._save()

    def begin_again(self, source: Source) -> None:
        """Take the entries of a side log that was made anew, from its first position on. Raises as
        `take`.
        """
        self.write()
        self.writer.begin_again(source)

    def _save(self) -> None:
        self.writer.save_state(self.state)
        self._fed, self._saved_s = 0, time.monotonic()

    def _restore(self, rows: dict[str, bytes]) -> None:
        self._rows = rows
        place = self.writer.place
        try:
            self._sequence.restore(rows)
        except (CompactedSnapshotDamaged, KeyError, ValueError) as error:
            raise ArchiveDamaged(
                archive=place.text, problem=f"its saved state cannot be used: {error}"
            ) from error
        end = self.writer.position(Table.RECORDS)
        saved = self._sequence.position - 1 + self._sequence.view.base
        if end == 0:
            return
        if saved >= end:
            raise ArchiveDamaged(
                archive=place.text,
                problem=f"its records end at offset {end - 1}, but its saved state is at {saved}",
            )
        for arrivals in Tables(place).arrivals(saved + 1):
            for _ in self._sequence.feed(arrivals):
                self._fed += 1


_CHANNEL: Final = Source.CHANNEL.value
