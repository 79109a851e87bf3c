"""Archive a channel in Spark: a task folds each batch, and the driver writes its rows."""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from equipoise.spark_jobs.archive.archiving import emitted_by, sequence_of
from equipoise.spark_jobs.archive.run import JOB, MakeElsewhere, archived
from equipoise.spark_jobs.sequence.sequence import RowSequence
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen
from equipoise.spark_jobs.streams.progress import Watch
from equipoise.spark_jobs.streams.session import spark_session
from equipoise.spark_jobs.streams.tasks import Tasks


def run_archive(options: ArchiveOptions, screen: Screen) -> int:
    """Archive a log in Spark. Return and raise as `archived` and `spark_session`."""

    def folds(watch: Watch) -> MakeElsewhere:
        spark = spark_session(f"equipoise {JOB}", options, note=watch.note)

        def tasks() -> Tasks[RowSequence, pa.Table]:
            return Tasks(
                spark.sparkContext,
                JOB,
                count=1,
                make=partial(fold_of, log_url=options.log_url),
                feed=emitted_by,
                meanwhile=watch.show,
            )

        return tasks

    return archived(options, screen, folds, in_spark=True)


def fold_of(_number: int, *, log_url: str) -> RowSequence:
    """Return the one fold."""
    return sequence_of(log_url)
