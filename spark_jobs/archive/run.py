"""Archive a channel, live or to its end, each row exactly once. One process does all of it, or
`spark_jobs.archive.job` folds each batch in Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.channel.core.errors import PeerError
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.archive.archiving import SOURCES, Archiving, Elsewhere
from equipoise.spark_jobs.archive.holding import Hold, release_hold
from equipoise.spark_jobs.sequence.rows import Source, Table
from equipoise.spark_jobs.sources.reading import Batch
from equipoise.spark_jobs.sources.tail import Patience, Tail
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from equipoise.spark_jobs.streams.progress import BatchDone, Watch, watching
from equipoise.spark_jobs.tables.delta import Place
from equipoise.spark_jobs.tables.writing import Writer, open_writer

JOB: Final = "archive"

BATCH_S: Final = 3.0
"""Shortest time between two batches of a live log. Each batch is a file in each table that it has
rows of: 29,000 a day, before they are joined."""

_STEP_S: Final = 0.1

MakeElsewhere = Callable[[], Elsewhere | None]


class ArchiveRun:
    """One run of an archive. `elsewhere` makes what folds the batches, if not this process."""

    def __init__(
        self,
        options: ArchiveOptions,
        writer: Writer,
        elsewhere: MakeElsewhere,
        *,
        hold: Hold | None,
        watch: Watch,
    ) -> None:
        """Continue where the tables end. Raises as `Archiving`."""
        self._options = options
        self._writer = writer
        self._elsewhere = elsewhere
        self._hold = hold
        self._watch = watch
        self._patience = Patience(watch.note)
        self._continue()

    def _continue(self) -> None:
        """Continue where the tables end. They may have a part of a batch that failed."""
        self.archiving = Archiving(self._writer, self._options.log_url, elsewhere=self._elsewhere())
        # Whether the tables have all of the last batch. Only then its state may be saved: a second
        # Ctrl-C ends a batch, or a commit, in its midst.
        self._is_whole = True

    def to_its_end(self, tail: Tail, check: Callable[[], None]) -> None:
        """Archive batch after batch. Raises what `check` raises, too."""
        while (batch := tail.after(self.archiving.positions)) is not None:
            is_behind = self._take(batch, tail)
            check()
            due_s = time.monotonic() + (0.0 if is_behind else BATCH_S)
            while time.monotonic() < due_s:
                time.sleep(_STEP_S)
                check()

    def stop(self) -> None:
        """Save the state, and update the hold at once. Raises as `Archiving.save`."""
        if self._is_whole:
            self._is_whole = False  # Saving may be interrupted, too.
            self.archiving.save()
        if self._hold is not None:
            self._hold.archived(self.archiving.reached, at_once=True)

    def _take(self, batch: Batch, tail: Tail) -> bool:
        """Write a batch. Return whether the next one should follow at once."""
        began_s = time.monotonic()
        try:
            if not self._is_whole:
                self._writer.open_tables()
                self._continue()
                return True
            archiving = self.archiving
            made_anew = [
                source
                for source in SOURCES
                if batch.ends.get(source, 0) < archiving.positions.get(source, 0)
            ]
            if not batch.arrivals and not made_anew:
                archiving.positions = dict(batch.ends)
                return True
            end = tail.end()
            behind = 0 if end is None else max(0, end + 1 - batch.ends[Source.CHANNEL])
            self._is_whole = False
            for source in made_anew:
                archiving.begin_again(source)
            rows = archiving.take(batch.arrivals)
            if not behind:
                archiving.write()
        except PeerError as error:
            self._watch.repeated()
            self._patience.failed("the batch is repeated", error)
            return True
        self._patience.over()
        archiving.positions = dict(batch.ends)
        self._is_whole = True
        for line in gap_lines(rows):
            self._watch.note(line)
        if self._hold is not None:
            self._hold.archived(archiving.reached)
        self._watch.batch(
            BatchDone(
                batch=self._watch.batches + 1,
                rows=len(batch.arrivals),
                took_ms=round(1_000 * (time.monotonic() - began_s)),
                behind=None if end is None else behind,
            )
        )
        return behind > 0 or self._options.to_end


def run_archive(options: ArchiveOptions, screen: Screen) -> int:
    """Archive a log in this process. Return and raise as `archived`."""
    return archived(options, screen, lambda _watch: lambda: None)


def archived(
    options: ArchiveOptions,
    screen: Screen,
    folds: Callable[[Watch], MakeElsewhere],
    *,
    in_spark: bool = False,
) -> int:
    """Archive a log to its end (`to_end`) or until interrupted. Return 0.

    `folds` returns what makes the folds.

    Raises what `open_log`, `open_writer`, `Archiving`, `watching`, `Tail` and `folds` raise, and
    `PeerError` if log or object storage is away for `AWAY_S_MAX`; for a hold that cannot be
    released, what `release_hold` raises.

    A hold that cannot be updated is reported and does not end the job, except for `InvalidName`.
    """
    url = options.log_url
    if options.release is not None:
        key, offset = release_hold(url, options.release)
        screen.result(_release_line(key, offset, as_json=options.as_json))
        return 0
    with closing(open_log(url, create=False)) as log:
        name, identity = log.name, log.identity
    tail_of = partial(Tail, url, identity=identity, to_end=options.to_end, sources=SOURCES)
    with (
        open_writer(Place(options.archive), writer=JOB, log=identity, url=url) as writer,
        watching(JOB, screen, log=name, metrics_port=options.metrics_port) as watch,
        nullcontext()
        if options.hold is None
        else closing(Hold(url, options.hold, note=watch.note)) as hold,
    ):
        run = ArchiveRun(options, writer, folds(watch), hold=hold, watch=watch)
        begun = "the beginning of the log" if run.archiving.is_new else "where it stopped"
        watch.note(f"archiving {name} in {writer.place}, from {begun}")
        try:
            with tail_of(watch=watch, in_spark=in_spark) as tail, delayed_interrupts() as check:
                run.to_its_end(tail, check)
            run.stop()
        except KeyboardInterrupt:
            run.stop()
            raise
        finally:
            watch.note(_summary(watch.rows, run.archiving))
    return 0


def _release_line(key: str, offset: int, *, as_json: bool) -> str:
    if as_json:
        return orjson.dumps({"offset": offset, "policy": key}).decode()
    return (
        f"accepted at offset {offset}: released the hold {key}; compaction no longer waits for that"
        " archive"
    )


def gap_lines(rows: pa.Table) -> Iterator[str]:
    """Name the offsets that the log had lost before they were archived, among the rows of a
    batch.
    """
    for body in rows.filter(pc.equal(rows["table"], str(Table.GAPS)))["body"].to_pylist():
        gap = orjson.loads(body)
        yield (
            f"lost: the log had removed the offsets {gap['first_offset']} to {gap['last_offset']}"
            " before they were archived; the archive continues with the state after them; with"
            " --hold the log keeps them"
        )


def _summary(entries: int, archiving: Archiving) -> str:
    reached = archiving.reached
    holds = (
        "no records of the channel yet" if reached < 0 else f"the channel up to offset {reached}"
    )
    return (
        f"read {entries:,} entries and wrote {archiving.writer.rows_written:,} rows; the archive"
        f" holds {holds}"
    )
