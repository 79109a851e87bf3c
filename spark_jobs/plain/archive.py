"""Archive a channel in one small process beside the brokers, live."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from equipoise.channel.core.errors import PeerError
from equipoise.spark_jobs.archive.archiving import SOURCES, Archiving
from equipoise.spark_jobs.archive.run import ArchiveRun, archived_by
from equipoise.spark_jobs.plain.reading import Patience, Tail
from equipoise.spark_jobs.sequence.rows import Source
from equipoise.spark_jobs.sources.reading import Batch
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from equipoise.spark_jobs.streams.progress import BatchDone

BATCH_S: Final = 3.0
"""Shortest time between two batches of a live log. Each batch is a file in each table that it has
rows of: 29,000 a day, before they are joined."""

_STEP_S: Final = 0.1


def run_archive(options: ArchiveOptions, screen: Screen) -> int:
    """Archive a log. Return and raise as `archived_by` and `Tail`, and `PeerError` if log or object
    storage is away for `AWAY_S_MAX`.
    """
    return archived_by(_to_its_end, options, screen)


def _to_its_end(run: ArchiveRun) -> None:
    identity, options = run.archiving.writer.log, run.options
    with (
        Tail(options.log_url, identity=identity, to_end=options.to_end, sources=SOURCES) as tail,
        delayed_interrupts() as check,
    ):
        _Run(run, tail).to_its_end(check)


class _Run:
    """One run of the process."""

    def __init__(self, run: ArchiveRun, tail: Tail) -> None:
        self._run = run
        self._tail = tail
        self._patience = Patience(run.watch.note)

    def to_its_end(self, check: Callable[[], None]) -> None:
        """Archive batch after batch. Raise what `check` raises, too."""
        while (batch := self._tail.after(self._run.archiving.positions)) is not None:
            is_behind = self._take(batch)
            check()
            due_s = time.monotonic() + (0.0 if is_behind else BATCH_S)
            while time.monotonic() < due_s:
                time.sleep(_STEP_S)
                check()

    def _take(self, batch: Batch) -> bool:
        """Write a batch. Return whether the next one should follow at once."""
        began_s = time.monotonic()
        try:
            if not self._run.is_whole:
                self._continue()
                return True
            archiving = self._run.archiving
            made_anew = [
                source
                for source in SOURCES
                if batch.ends.get(source, 0) < archiving.positions.get(source, 0)
            ]
            if not batch.arrivals and not made_anew:
                archiving.positions = dict(batch.ends)
                self._run.watch.show()
                return True
            end = self._tail.end()
            behind = 0 if end is None else max(0, end + 1 - batch.ends[Source.CHANNEL])
            self._run.is_whole = False
            for source in made_anew:
                archiving.begin_again(source)
            rows = archiving.take(batch.arrivals)
            if not behind:
                archiving.write()
        except PeerError as error:
            self._patience.failed("the batch is repeated", error)
            return True
        self._patience.over()
        archiving.positions = dict(batch.ends)
        self._run.is_whole = True
        self._run.written(rows)
        self._run.watch.batch(
            BatchDone(
                batch=self._run.watch.batches + 1,
                rows=len(batch.arrivals),
                took_ms=round(1_000 * (time.monotonic() - began_s)),
                behind=None if end is None else behind,
                state_rows=0,
                state_bytes=0,
            )
        )
        self._run.watch.show()
        return behind > 0 or self._run.options.to_end

    def _continue(self) -> None:
        """Continue after a batch that failed. The tables may have a part of it: continue where they
        end, once they can be opened.
        """
        writer = self._run.archiving.writer
        writer.open_tables()
        self._run.archiving = Archiving(writer, self._run.options.log_url)
        self._run.is_whole = True
