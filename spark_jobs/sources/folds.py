"""Run folds of a log as a stream in Spark: what the audit and the archive share there.

The driver keeps the state, where the plain process keeps it too. So each run has a checkpoint of
its own, and begins with that state.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from equipoise.spark_jobs.rules.memory import StateRow
from equipoise.spark_jobs.sequence.rows import ALL_SOURCES, Positions, Source, Table
from equipoise.spark_jobs.sources.frames import channel_frame, is_on_kafka
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import ArchiveOptions, AuditOptions, state_folder
from equipoise.spark_jobs.streams.progress import Watch
from equipoise.spark_jobs.streams.sequential_operator import (
    Fold,
    FoldProcessor,
    folded,
    write_state,
)
from equipoise.spark_jobs.streams.session import check_shared, spark_session
from equipoise.spark_jobs.streams.streams import Stream, run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINTS: Final = ".checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldStream:
    """Folds of one log.

    * `make`: makes the fold with each of `keys`, on a worker.
    * `state`, `positions`: what each fold begins with, and the next offset of each source.
    * `take`: gets the number and rows of each batch. See `Stream`.
    """

    job: str
    make: Callable[[int], Fold]
    keys: Sequence[int] = (0,)
    sources: frozenset[Source] = ALL_SOURCES
    state: Mapping[str, bytes]
    positions: Positions
    take: Callable[[int, pa.Table], None]


def fold_session(options: AuditOptions | ArchiveOptions, job: str, watch: Watch) -> SparkSession:
    """Return the session of a job. Raises as `spark_session` and `check_shared`."""
    spark = spark_session(
        f"equipoise {job}", options, kafka=is_on_kafka(options.log_url), note=watch.note
    )
    # py4j frees Java objects at any time, and loses a Ctrl-C during that.
    with delayed_interrupts():
        check_shared(spark, state_folder(options.archive, options.log_url))
    return spark


def run_folds(options: AuditOptions | ArchiveOptions, folds: FoldStream, watch: Watch) -> None:
    """Run the folds to the log's end (`to_end`) or an interrupt. Raises as `fold_session` and
    `run_stream`.
    """
    spark = fold_session(options, folds.job, watch)
    folder = state_folder(options.archive, options.log_url)
    checkpoint = folder / CHECKPOINTS / folds.job
    shutil.rmtree(checkpoint, ignore_errors=True)
    checkpoint.mkdir(parents=True, exist_ok=True)
    begin = checkpoint.absolute() / "begin.arrow"
    write_state(begin, folds.state)

    def frame() -> DataFrame:
        entries = channel_frame(
            spark,
            options.log_url,
            start=folds.positions,
            per_trigger=options.per_trigger,
            sources=folds.sources,
        )
        return folded(entries, FoldProcessor(folds.make, begin), keys=folds.keys)

    stream = Stream(
        job=folds.job,
        checkpoint=checkpoint,
        to_end=options.to_end,
        frame=frame,
        take=folds.take,
    )
    run_stream(spark, stream, watch)


def state_in(rows: pa.Table) -> Iterator[StateRow]:
    """Return the changed rows of state among the rows of a batch."""
    found = rows.filter(pc.equal(rows["table"], str(Table.STATE)))
    return zip(found["subject"].to_pylist(), found["body"].to_pylist(), strict=True)
