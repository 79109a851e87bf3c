"""Run the laboratory on Spark: one task per run, and two Parquet tables of what the runs
reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Final

import orjson
from py4j.protocol import Py4JError
from pyspark import AccumulatorParam
from pyspark.errors import PySparkException

from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.lab.comparing import settings_of
from equipoise.lab.results import Metrics
from equipoise.lab.running import run
from equipoise.lab.search import (
    FinishedRun,
    FrontPoint,
    PlannedRun,
    fronts,
    planned_runs,
    run_options,
)
from equipoise.lab.trace_files import traces_named
from equipoise.lab.traces import Traces
from equipoise.spark_jobs.streams.causes import cause_of
from equipoise.spark_jobs.streams.options import LabOptions, Screen, counting
from equipoise.spark_jobs.streams.session import spark_session, spark_work

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS: Final = "runs.parquet"
FRONT: Final = "front.parquet"

RUNS_DDL: Final = (
    "trace STRING, policy STRING, settings ARRAY<STRING>, seed INT, unevenness DOUBLE, load_moved"
    " DOUBLE, moves INT, excess_p50 DOUBLE, excess_p90 DOUBLE, excess_p99 DOUBLE, balanced_s"
    " DOUBLE, undone INT, error STRING"
)
FRONT_DDL: Final = (
    "trace STRING, policy STRING, settings ARRAY<STRING>, unevenness DOUBLE, load_moved DOUBLE"
)

_NOT_FINISHED: Final = "the job ended before this run"
_NO_METRICS: Final[Mapping[str, None]] = dict.fromkeys(each.name for each in fields(Metrics))


def run_lab(options: LabOptions, screen: Screen) -> int:
    """Run the grid, write its tables and print the front. Return the number of failed runs.

    Raises `CallerError` for a wrong trace, policy or setting and for too many runs, `OperatorError`
    if the tables cannot be written, `PeerError` if Spark fails, and what `spark_session` raises.
    """
    for policy in options.policies:
        settings_of(policy, every_s=options.every_s)
    planned = planned_runs(options.traces, options.policies, options.values, seeds=options.seeds)
    traces = traces_named(options.traces, options.shape)
    spark = spark_session("equipoise-lab", options, note=screen.note)
    finished, front = _run_all(spark, planned, traces, options, screen)
    failed = [each for each in finished if each.error is not None]
    if failed:
        screen.note(
            f"{len(failed)} of {len(finished)} runs failed; the first error: {failed[0].error}"
        )
    if options.as_json:
        document = {
            "output": options.output,
            "runs": len(finished),
            "failed": len(failed),
            "front": [asdict(each) for each in front],
        }
        screen.result(orjson.dumps(document).decode())
    else:
        for line in lines(front):
            screen.result(line)
        screen.result(
            f"wrote {len(finished)} runs to {_path(options.output, RUNS)}, and this front to"
            f" {_path(options.output, FRONT)}"
        )
    return len(failed)


def _run_all(
    spark: SparkSession,
    planned: Sequence[PlannedRun],
    traces: Mapping[str, Traces],
    options: LabOptions,
    screen: Screen,
) -> tuple[list[FinishedRun], list[FrontPoint]]:
    """Do all runs in parallel, each in a task, and write the tables, also if Ctrl-C or Spark ends
    the job early.

    Return the runs in order, and the front. A run that was not done has an error.
    """
    context = spark.sparkContext
    done = context.accumulator(list[FinishedRun](), _Results())
    # A trace of a file goes to each worker once, not with each run.
    sent = context.broadcast(traces)

    def work(each: PlannedRun) -> None:
        done.add([finished_run(each, sent.value, every_s=options.every_s)])

    def write() -> tuple[list[FinishedRun], list[FrontPoint]]:
        found = {each.run: each for each in done.value}
        finished = [
            found.get(each) or FinishedRun(run=each, error=_NOT_FINISHED) for each in planned
        ]
        front = fronts(finished)
        _write_table(
            spark, _path(options.output, RUNS), [_row(each) for each in finished], RUNS_DDL
        )
        _write_table(
            spark,
            _path(options.output, FRONT),
            [tuple(asdict(each).values()) for each in front],
            FRONT_DDL,
        )
        return finished, front

    # The runs may take hours, so a folder that cannot be written is reported before them.
    spark_work(context, "lab", write)
    try:
        with counting(screen, "running", total=len(planned), unit="runs") as report:
            spark_work(
                context,
                "lab",
                lambda: context.parallelize(planned, len(planned)).foreach(work),
                meanwhile=lambda: report(len(done.value)),
            )
    except (KeyboardInterrupt, PeerError):
        screen.note(f"the job ended early: writing {len(done.value)} of {len(planned)} runs")
        with suppress(OperatorError):  # What ended the job is the error to report.
            spark_work(context, "lab", write)
        raise
    return spark_work(context, "lab", write)


class _Results(AccumulatorParam[list[FinishedRun]]):
    """Collect the results of tasks as each ends. Spark counts a task that it repeats once."""

    def zero(self, value: list[FinishedRun]) -> list[FinishedRun]:
        """Return what a worker begins with."""
        return value[:0]

    # The name is Spark's.
    def addInPlace(self, value1: list[FinishedRun], value2: list[FinishedRun]) -> list[FinishedRun]:  # noqa: N802
        """Append the results of another task."""
        value1 += value2
        return value1


def finished_run(
    planned: PlannedRun, traces: Mapping[str, Traces], *, every_s: float | None = None
) -> FinishedRun:
    """Do a run. An error becomes part of the result, so that it does not end the other runs."""
    try:
        given = dict(text.split("=", 1) for text in planned.settings)
        settings = settings_of(planned.policy, given=given, every_s=every_s)
        metrics = run(traces[planned.trace](planned.seed), settings, seed=planned.seed).metrics()
    except Exception as error:  # noqa: BLE001 - any error belongs to this run alone
        return FinishedRun(run=planned, error=f"{type(error).__name__}: {error}")
    return FinishedRun(run=planned, metrics=metrics)


def lines(front: Sequence[FrontPoint]) -> Iterator[str]:
    """Yield a heading, and a line for each point that ends with its options for `equipoise lab
    run`.
    """
    width = max((len(each.trace) for each in front), default=0)
    yield f"{'trace':{width}}  unevenness  load moved  settings"
    for each in front:
        options = run_options(each.policy, each.settings)
        yield f"{each.trace:{width}}  {each.unevenness:10.4f}  {each.load_moved:10.4f}  {options}"


def _write_table(
    spark: SparkSession, path: str, rows: Sequence[tuple[object, ...]], ddl: str
) -> None:
    """Write a table as one file, in place of an earlier one."""
    try:
        spark.createDataFrame(rows, ddl).coalesce(1).write.mode("overwrite").parquet(path)
        written = spark.read.schema(ddl).parquet(path).count()
    except (PySparkException, Py4JError) as error:
        raise OperatorError(
            f"the table {path} cannot be written: {cause_of(str(error)).text}; name another folder"
            " with --output"
        ) from error
    if written != len(rows):  # A worker on another machine has written to a disk of its own.
        raise OperatorError(
            f"the table {path} has {written} of {len(rows)} rows; name a folder with --output that"
            " all machines share"
        )


def _row(finished: FinishedRun) -> tuple[object, ...]:
    metrics = _NO_METRICS if finished.metrics is None else asdict(finished.metrics)
    return (*asdict(finished.run).values(), *metrics.values(), finished.error)


def _path(output: str, table: str) -> str:
    return f"{output.rstrip('/')}/{table}"
