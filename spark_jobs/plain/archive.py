"""Archive a channel in one small process beside the brokers, live, each row exactly once."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from equipoise.channel.core.errors import PeerError
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.archive.archiving import SOURCES, Archiving
from equipoise.spark_jobs.archive.holding import Hold, release_hold
from equipoise.spark_jobs.archive.reporting import gap_lines, release_line, start_line, summary
from equipoise.spark_jobs.plain.reading import AWAY_S_MAX, Batch, Tail
from equipoise.spark_jobs.sequence.rows import Source
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from equipoise.spark_jobs.streams.progress import BatchDone, LookedAt, Watch, watching
from equipoise.spark_jobs.tables.delta import Place
from equipoise.spark_jobs.tables.writing import Writer, open_writer

JOB: Final = "archive"

BATCH_S: Final = 3.0
"""Shortest time between two batches of a live log. Each batch is a file in each table that it has
rows of: 29,000 a day, before they are joined."""

_STEP_S: Final = 0.1
_RETRY_S: Final = 1.0


def run_archive(options: ArchiveOptions, screen: Screen) -> int:
    """Archive a log to its end (`to_end`) or until interrupted. Return 0.

    Raises what `open_log`, `open_writer`, `Archiving`, `watching` and `Tail` raise; for a hold that
    cannot be released, what `release_hold` raises; and `PeerError` if log or object storage is away
    for `AWAY_S_MAX`.

    A hold that cannot be updated is reported and does not end the job, except for `InvalidName`.
    """
    url = options.log_url
    if options.release is not None:
        key, offset = release_hold(url, options.release)
        screen.result(release_line(key, offset, as_json=options.as_json))
        return 0
    with closing(open_log(url, create=False)) as log:
        name, identity = log.name, log.identity
    with (
        open_writer(Place(options.archive), writer=JOB, log=identity, url=url) as writer,
        Tail(url, identity=identity, to_end=options.to_end, sources=SOURCES) as tail,
        watching(
            JOB, screen, log=LookedAt.at(name, url), metrics_port=options.metrics_port
        ) as watch,
        delayed_interrupts() as check,
    ):
        hold = None if options.hold is None else Hold(url, options.hold, note=watch.remark)
        run = _Run(options, log=name, writer=writer, tail=tail, watch=watch, hold=hold)
        try:
            run.to_its_end(check)
        finally:
            if hold is not None:
                hold.close()
    return 0


class _Run:
    """One run of the process."""

    def __init__(
        self,
        options: ArchiveOptions,
        *,
        log: str,
        writer: Writer,
        tail: Tail,
        watch: Watch,
        hold: Hold | None,
    ) -> None:
        self._options = options
        self._writer = writer
        self._tail = tail
        self._watch = watch
        self._hold = hold
        self._batches = 0
        self._failed_s: float | None = None
        self._error: PeerError | None = None  # Until the archive is continued after it.
        self._is_whole = True  # False while a batch is taken in part.
        self._archiving = Archiving(writer, options.log_url)
        watch.note(start_line(log, self._archiving))

    def to_its_end(self, check: Callable[[], None]) -> None:
        """Archive batch after batch. Raise as `run_archive`, and what `check` raises."""
        try:
            while (batch := self._tail.after(self._archiving.positions)) is not None:
                is_behind = self._take(batch)
                check()
                due_s = time.monotonic() + (0.0 if is_behind else BATCH_S)
                while time.monotonic() < due_s:
                    time.sleep(_STEP_S)
                    check()
            self._stop()
        except KeyboardInterrupt:
            self._stop()
            raise
        finally:
            self._watch.show()
            self._watch.note(summary(self._watch.rows, self._archiving))

    def _take(self, batch: Batch) -> bool:
        """Write a batch. Return whether the next one should follow at once."""
        if self._error is not None:
            self._wait(self._error)
            return True
        positions = self._archiving.positions
        made_anew = [
            source for source in SOURCES if batch.ends.get(source, 0) < positions.get(source, 0)
        ]
        if not batch.arrivals and not made_anew:
            self._archiving.positions = dict(batch.ends)
            self._watch.idle()
            self._watch.show()
            return True
        began_s = time.monotonic()
        end = self._tail.end()
        behind = 0 if end is None else max(0, end + 1 - batch.ends[Source.CHANNEL])
        self._is_whole = False
        try:
            for source in made_anew:
                self._archiving.begin_again(source)
            rows = self._archiving.take(batch.arrivals)
            if not behind:
                self._archiving.write()
        except PeerError as error:
            self._wait(error)
            return True
        self._failed_s = None
        self._archiving.positions = dict(batch.ends)
        self._is_whole = True
        for line in gap_lines(rows):
            self._watch.note(line)
        if self._hold is not None:
            self._hold.archived(self._archiving.reached)
        self._batches += 1
        self._watch.batch(
            BatchDone(
                batch=self._batches,
                rows=len(batch.arrivals),
                took_ms=round(1_000 * (time.monotonic() - began_s)),
                behind=None if end is None else behind,
                state_rows=0,
                state_bytes=0,
            )
        )
        self._watch.show()
        return behind > 0 or self._options.to_end

    def _wait(self, error: PeerError) -> None:
        """Wait for a log or an object storage that is away. The tables may have a part of the
        batch: continue where they end, once they can be opened.
        """
        self._error = error
        now_s = time.monotonic()
        self._failed_s = self._failed_s or now_s
        if now_s - self._failed_s > AWAY_S_MAX:
            raise error
        self._watch.note(f"the batch is repeated: {error}")
        time.sleep(_RETRY_S)
        try:
            self._writer.open_tables()
            self._archiving = Archiving(self._writer, self._options.log_url)
        except PeerError as again:
            self._error = again
            return
        self._error, self._is_whole = None, True

    def _stop(self) -> None:
        """Save the state. A second Ctrl-C leaves a batch in part: the next run repeats it."""
        if self._is_whole:
            self._is_whole = False  # Saving may be interrupted, too.
            self._archiving.save()
        if self._hold is not None:
            self._hold.archived(self._archiving.reached, at_once=True)
