"""Run the archive job: copy a channel's records into tables, each row exactly once.

`spark_jobs.streams.sequential_operator` folds the log and makes the rows.
`spark_jobs.archive.tables.sink` writes them in the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import orjson
import pyarrow as pa

from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.archive.holding import Hold, release_hold
from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.archive.tables.resuming import resumed
from equipoise.spark_jobs.archive.tables.schema import ARCHIVED, SCHEMAS
from equipoise.spark_jobs.archive.tables.sink import Sink, open_sink
from equipoise.spark_jobs.archive.tables.small_files import compact_beside
from equipoise.spark_jobs.sequence.rows import Source
from equipoise.spark_jobs.sources.beginnings import Beginning, beginning_at, kept_beginning
from equipoise.spark_jobs.sources.frames import channel_frame, is_on_kafka
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from equipoise.spark_jobs.streams.progress import LookedAt, Watch, watching
from equipoise.spark_jobs.streams.sequential_operator import SequentialProcessor, sequence_operator
from equipoise.spark_jobs.streams.session import spark_session
from equipoise.spark_jobs.streams.streams import Stream, check_version, run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB: Final = "archive"

STATE_VERSION: Final = 2
"""Format of the operator's state. Raise it with every change that makes older state unusable."""

_SOURCES: Final = frozenset({Source.CHANNEL, *(SCHEMAS[table].source for table in ARCHIVED)})
"""The sources of the archive's tables. Evidence of serving is for the audit only."""


def run_archive(options: ArchiveOptions, screen: Screen) -> int:
    """Archive a log to its end (`to_end`) or until interrupted. Return 0.

    Errors:

    * for an unreadable log: what `channel.log.open_log` and `channel.snapshots.restore.earliest`
      raise
    * for an unwritable archive: what `open_sink` raises
    * for an archive that cannot be continued: what `resumed` and `check_version` raise
    * for a hold that cannot be released: what `release_hold` raises
    * what `watching` and `run_stream` raise

    A hold that cannot be updated is reported and does not end the job, except for `InvalidName`.
    """
    if options.release is not None:
        screen.result(
            _release_line(*release_hold(options.log_url, options.release), as_json=options.as_json)
        )
        return 0
    with closing(open_log(options.log_url, create=False)) as log:
        name, identity = log.name, log.identity
    spark = spark_session(
        "equipoise archive",
        master=options.master,
        kafka=is_on_kafka(options.log_url),
        note=screen.note,
    )
    with (
        open_sink(options.archive, writer=JOB, log=identity, url=options.log_url) as sink,
        watching(
            JOB,
            screen,
            log=LookedAt.at(name, options.log_url),
            metrics_port=options.metrics_port,
        ) as watch,
    ):
        # py4j frees Java objects at any time, and loses a Ctrl-C during that.
        with delayed_interrupts():
            check_version(JOB, sink.checkpoint, STATE_VERSION)
            watch.note(_start_line(name, sink))
            beginning = kept_beginning(sink.checkpoint, lambda: _beginning(sink, options.log_url))
            hold = (
                None
                if options.hold is None
                else Hold(options.log_url, options.hold, note=watch.remark)
            )
            stream = Stream(
                job=JOB,
                checkpoint=sink.checkpoint,
                to_end=options.to_end,
                frame=lambda: _frame(spark, options, beginning),
                take=taker(sink, hold),
            )
        try:
            run_stream(spark, stream, watch)
            if hold is not None:
                hold.archived(sink.manifest, at_once=True)
        finally:
            if hold is not None:
                hold.close()
            watch.show()
            watch.note(_summary(watch, sink))
    return 0


def taker(sink: Sink, hold: Hold | None) -> Callable[[int, pa.Table], None]:
    """Return the function that handles a batch's rows: write them, compact small files now and
    then, update the hold.
    """

    def take(number: int, rows: pa.Table) -> None:
        sink.write(number, rows)
        compact_beside(Archive(sink.archive), JOB, number)
        if hold is not None:
            hold.archived(sink.manifest)

    return take


def _frame(spark: SparkSession, options: ArchiveOptions, beginning: Beginning) -> DataFrame:
    entries = channel_frame(
        spark,
        options.log_url,
        sources=_SOURCES,
        start=beginning.positions,
        per_trigger=options.per_trigger,
    )
    return sequence_operator(
        entries,
        SequentialProcessor(
            wants=ARCHIVED, begin=beginning.snapshot, run_id=str(uuid4()), log_url=options.log_url
        ),
    )


def _beginning(sink: Sink, log_url: str) -> Beginning:
    return resumed(Archive(sink.archive), sink.manifest) or beginning_at(log_url)


def _release_line(key: str, offset: int, *, as_json: bool) -> str:
    if as_json:
        return orjson.dumps({"offset": offset, "policy": key}).decode()
    return (
        f"accepted at offset {offset}: released the hold {key}; compaction no longer waits for that"
        " archive"
    )


def _start_line(log: str, sink: Sink) -> str:
    what = f"archiving {log} in {sink.archive}"
    position = sink.manifest.positions.get(Source.CHANNEL)
    if position is None:
        return f"{what}, from the beginning of the log"
    if not sink.is_new:
        return f"{what}, from where it stopped"
    return (
        f"{what}: its checkpoint is gone, so it continues at offset {position}, where the archive"
        " ends"
    )


def _summary(watch: Watch, sink: Sink) -> str:
    position = sink.manifest.positions.get(Source.CHANNEL)
    reached = (
        "no records of the channel yet"
        if position is None
        else f"the channel up to position {position - 1}"
    )
    return (
        f"read {watch.rows:,} entries and wrote {sink.rows_written:,} rows; the archive holds"
        f" {reached}"
    )
