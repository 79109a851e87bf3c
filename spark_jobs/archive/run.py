"""Run an archive, each row exactly once: what its two hosts share. `spark_jobs.plain.archive` is a
small process beside the brokers, `spark_jobs.archive.job` runs in Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.archive.archiving import Archiving
from equipoise.spark_jobs.archive.holding import Hold, release_hold
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from equipoise.spark_jobs.streams.progress import LookedAt, Watch, watching
from equipoise.spark_jobs.tables.delta import Place
from equipoise.spark_jobs.tables.writing import open_writer

JOB: Final = "archive"


@dataclass(slots=True, kw_only=True)
class ArchiveRun:
    """One run of an archive.

    `is_whole` is False while a batch is written in part, as after a second Ctrl-C: then the state
    is not saved, and the next run repeats the batch.
    """

    options: ArchiveOptions
    archiving: Archiving
    hold: Hold | None
    watch: Watch
    is_whole: bool = True

    def written(self, rows: pa.Table) -> None:
        """Name the gaps among rows that were written, and update the hold."""
        for line in gap_lines(rows):
            self.watch.remark(line)
        if self.hold is not None:
            self.hold.archived(self.archiving.reached)

    def stop(self) -> None:
        """Save the state, and update the hold at once. Raises as `Archiving.save`."""
        if self.is_whole:
            self.is_whole = False  # Saving may be interrupted, too.
            self.archiving.save()
        if self.hold is not None:
            self.hold.archived(self.archiving.reached, at_once=True)


def archived_by(host: Callable[[ArchiveRun], None], options: ArchiveOptions, screen: Screen) -> int:
    """Archive a log by `host` to its end (`to_end`) or until interrupted. Return 0.

    Raises what `open_log`, `open_writer`, `Archiving`, `watching` and `host` raise, and for a hold
    that cannot be released, what `release_hold` raises.

    A hold that cannot be updated is reported and does not end the job, except for `InvalidName`.
    """
    url = options.log_url
    if options.release is not None:
        key, offset = release_hold(url, options.release)
        screen.result(_release_line(key, offset, as_json=options.as_json))
        return 0
    with closing(open_log(url, create=False)) as log:
        name, identity = log.name, log.identity
    with (
        open_writer(Place(options.archive), writer=JOB, log=identity, url=url) as writer,
        watching(
            JOB, screen, log=LookedAt.at(name, url), metrics_port=options.metrics_port
        ) as watch,
        nullcontext()
        if options.hold is None
        else closing(Hold(url, options.hold, note=watch.remark)) as hold,
    ):
        run = ArchiveRun(options=options, archiving=Archiving(writer, url), hold=hold, watch=watch)
        begun = "the beginning of the log" if run.archiving.is_new else "where it stopped"
        watch.note(f"archiving {name} in {writer.place}, from {begun}")
        try:
            host(run)
            run.stop()
        except KeyboardInterrupt:
            run.stop()
            raise
        finally:
            watch.show()
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
