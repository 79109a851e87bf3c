"""Run the archive job on Spark: copy a channel's records into tables, each row exactly once.

`spark_jobs.streams.sequential_operator` folds the log and makes the rows. The driver writes them.
A run begins where the tables end, with a checkpoint of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa

from equipoise.channel.core.errors import CallerError
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.archive.archiving import SOURCES, Archiving
from equipoise.spark_jobs.archive.holding import Hold, release_hold
from equipoise.spark_jobs.archive.reporting import gap_lines, release_line, start_line, summary
from equipoise.spark_jobs.sources.frames import channel_frame, is_on_kafka
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from equipoise.spark_jobs.streams.progress import LookedAt, Watch, watching
from equipoise.spark_jobs.streams.sequential_operator import SequentialProcessor, sequence_operator
from equipoise.spark_jobs.streams.session import check_shared, spark_session
from equipoise.spark_jobs.streams.streams import Stream, run_stream
from equipoise.spark_jobs.tables.delta import Place
from equipoise.spark_jobs.tables.schema import ARCHIVED
from equipoise.spark_jobs.tables.writing import open_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB: Final = "archive"

CHECKPOINTS: Final = ".checkpoints"


def run_archive(options: ArchiveOptions, screen: Screen) -> int:
    """Archive a log to its end (`to_end`) or until interrupted. Return 0.

    Raises what `open_log`, `open_writer`, `Archiving`, `check_shared`, `watching` and `run_stream`
    raise; for a hold that cannot be released, what `release_hold` raises; and `CallerError` for an
    archive in object storage, where no checkpoint can be.

    A hold that cannot be updated is reported and does not end the job, except for `InvalidName`.
    """
    url = options.log_url
    if options.release is not None:
        key, offset = release_hold(url, options.release)
        screen.result(release_line(key, offset, as_json=options.as_json))
        return 0
    place = Place(options.archive)
    if place.folder is None:
        raise CallerError(
            f"Spark keeps its checkpoint beside the tables, which {place} does not allow; use"
            " `equipoise archive`, or name a folder with --archive"
        )
    checkpoint = place.folder / CHECKPOINTS / JOB
    with closing(open_log(url, create=False)) as log:
        name, identity = log.name, log.identity
    with open_writer(place, writer=JOB, log=identity, url=url) as writer:
        # The tables know more than a checkpoint of an earlier run.
        shutil.rmtree(checkpoint, ignore_errors=True)
        archiving = Archiving(writer, url)
        archiving.save()
        spark = spark_session(
            "equipoise archive", options, kafka=is_on_kafka(url), note=screen.note
        )
        check_shared(spark, place.folder)
        with watching(
            JOB, screen, log=LookedAt.at(name, url), metrics_port=options.metrics_port
        ) as watch:
            # py4j frees Java objects at any time, and loses a Ctrl-C during that.
            with delayed_interrupts():
                watch.note(start_line(name, archiving))
                hold = None if options.hold is None else Hold(url, options.hold, note=watch.remark)
                stream = Stream(
                    job=JOB,
                    checkpoint=checkpoint,
                    to_end=options.to_end,
                    frame=lambda: _frame(spark, options, archiving),
                    take=taker(archiving, hold, watch),
                )
            try:
                try:
                    run_stream(spark, stream, watch)
                except KeyboardInterrupt:
                    save(archiving, url)
                    raise
                save(archiving, url)
                if hold is not None:
                    hold.archived(archiving.reached, at_once=True)
            finally:
                if hold is not None:
                    hold.close()
                watch.show()
                watch.note(summary(watch.rows, archiving))
    return 0


def save(begun: Archiving, url: str) -> None:
    """Save the state as of the last row, so that the next run folds nothing again. The workers have
    the state, so fold what was written since `begun`. Raises as `Archiving`.
    """
    if begun.reached >= 0:
        Archiving(begun.writer, url).save()


def taker(archiving: Archiving, hold: Hold | None, watch: Watch) -> Callable[[int, pa.Table], None]:
    """Return the function that handles a batch's rows: write them, name gaps, update the hold."""

    def take(_number: int, rows: pa.Table) -> None:
        archiving.writer.write(rows)
        for line in gap_lines(rows):
            watch.remark(line)
        if hold is not None:
            hold.archived(archiving.reached)

    return take


def _frame(spark: SparkSession, options: ArchiveOptions, archiving: Archiving) -> DataFrame:
    entries = channel_frame(
        spark,
        options.log_url,
        sources=SOURCES,
        start=archiving.positions,
        per_trigger=options.per_trigger,
    )
    return sequence_operator(
        entries,
        SequentialProcessor(
            wants=ARCHIVED,
            state=archiving.state,
            run_id=str(uuid4()),
            log_url=options.log_url,
            log=archiving.writer.log,
        ),
    )
