"""Archive a channel in Spark: workers fold the log and make the rows, the driver writes them.

A run begins where the tables end.
"""

from __future__ import annotations

from functools import partial

import pyarrow as pa

from equipoise.spark_jobs.archive.archiving import SOURCES
from equipoise.spark_jobs.archive.run import JOB, ArchiveRun, archived_by
from equipoise.spark_jobs.sequence.sequence import RowSequence
from equipoise.spark_jobs.sources.beginnings import lost
from equipoise.spark_jobs.sources.folds import FoldStream, run_folds, state_in
from equipoise.spark_jobs.streams.options import ArchiveOptions, Screen


def run_archive(options: ArchiveOptions, screen: Screen) -> int:
    """Archive a log in Spark. Return and raise as `archived_by` and `run_folds`."""
    return archived_by(_in_spark, options, screen)


def _in_spark(run: ArchiveRun) -> None:
    archiving = run.archiving

    def take(_number: int, rows: pa.Table) -> None:
        archiving.adopt(rows, state_in(rows))
        run.written(rows)

    archiving.save()
    stream = FoldStream(
        job=JOB,
        make=partial(_sequence, log_url=run.options.log_url),
        sources=SOURCES,
        state=archiving.state,
        positions=archiving.positions,
        take=take,
    )
    run_folds(run.options, stream, run.watch)


def _sequence(_key: int, *, log_url: str) -> RowSequence:
    return RowSequence(lost=partial(lost, log_url))
