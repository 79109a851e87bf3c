"""Run the laboratory on Spark: one task per run, and two Parquet tables of what the runs reached."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Final

import orjson
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from equipoise.channel.core.errors import OperatorError
from equipoise.lab.comparing import settings_of
from equipoise.lab.grid import Finished, FrontPoint, Planned, fronts, planned_runs
from equipoise.lab.results import Metrics
from equipoise.lab.running import run
from equipoise.lab.trace_files import traces_named
from equipoise.lab.traces import Traces
from equipoise.spark_jobs.streams.causes import cause_of, spark_failed
from equipoise.spark_jobs.streams.interrupts import interruptible
from equipoise.spark_jobs.streams.options import LabOptions, Screen, counting
from equipoise.spark_jobs.streams.session import spark_session

if TYPE_CHECKING:
    from pyspark import Accumulator
    from pyspark.sql import SparkSession

RUNS: Final = "runs.parquet"
FRONT: Final = "front.parquet"

RUNS_DDL: Final = (
    "trace STRING, policy STRING, settings ARRAY<STRING>, seed INT, unevenness DOUBLE, load_moved DOUBLE, moves INT, worst_mean DOUBLE, "
    "worst_max DOUBLE, balanced_s DOUBLE, undone INT, error STRING"
)
FRONT_DDL: Final = "trace STRING, policy STRING, settings ARRAY<STRING>, unevenness DOUBLE, load_moved DOUBLE"

_NOT_FINISHED: Final = "the job ended before this run"
_NO_METRICS: Final[Mapping[str, None]] = dict.fromkeys(each.name for each in fields(Metrics))


def run_lab(options: LabOptions, screen: Screen) -> int:
    """Run the grid, write its tables and print the front. Return the number of failed runs.

    Raises `CallerError` for a wrong trace, policy or setting and for too many runs, `OperatorError` if the tables cannot be written,
    `PeerError` if Spark fails, and what `spark_session` raises.
    """
    for policy in options.policies:
        settings_of(policy, every_s=options.every_s)
    planned = planned_runs(options.traces, options.policies, options.values, seeds=options.seeds)
    traces = traces_named(options.traces, options.shape)
    spark = spark_session("equipoise-lab", master=options.master, note=screen.note)
    done = spark.sparkContext.accumulator(0)
    with counting(screen, "running", total=len(planned), unit="runs") as report:
        job = interruptible(
            lambda: _work(spark, planned, traces, options, done),
            cancel=spark.sparkContext.cancelAllJobs,
            meanwhile=lambda: report(done.value),
        )
    finished, front = job.result()
    failed = [each for each in finished if each.error is not None]
    if failed:
        screen.note(f"{len(failed)} of {len(finished)} runs failed; the first error: {failed[0].error}")
    if options.as_json:
        document = {"output": options.output, "runs": len(finished), "failed": len(failed), "front": [asdict(each) for each in front]}
        screen.result(orjson.dumps(document).decode())
    else:
        for line in lines(front):
            screen.result(line)
        screen.result(f"wrote {len(finished)} runs to {_path(options.output, RUNS)}, and this front to {_path(options.output, FRONT)}")
    return len(failed)


def _work(
    spark: SparkSession, planned: Sequence[Planned], traces: Mapping[str, Traces], options: LabOptions, done: Accumulator[int]
) -> tuple[list[Finished], list[FrontPoint]]:
    """Do all runs in parallel, each in a task, and write the tables. Return the runs in order, and the front."""
    # Written before the runs too, which may take hours: a folder that cannot be written is reported now.
    _write(spark, options.output, [Finished(run=each, error=_NOT_FINISHED) for each in planned], [])
    sent = spark.sparkContext.broadcast(traces)  # A trace of a file goes to each worker once, not with each run.

    def work(each: Planned) -> Finished:
        result = finished_run(each, sent.value, every_s=options.every_s)
        done.add(1)
        return result

    try:
        finished = spark.sparkContext.parallelize(planned, len(planned)).map(work).collect()
    except (PySparkException, Py4JError) as error:
        raise spark_failed("lab", str(error)) from error
    front = fronts(finished)
    _write(spark, options.output, finished, front)
    return finished, front


def finished_run(planned: Planned, traces: Mapping[str, Traces], *, every_s: float | None = None) -> Finished:
    """Do a run. An error becomes part of the result, so that it does not end the other runs."""
    try:
        given = dict(text.split("=", 1) for text in planned.settings)
        settings = settings_of(planned.policy, given=given, every_s=every_s)
        metrics = run(traces[planned.trace](planned.seed), settings, seed=planned.seed).metrics()
    except Exception as error:  # noqa: BLE001 - any error belongs to this run alone
        return Finished(run=planned, error=f"{type(error).__name__}: {error}")
    return Finished(run=planned, metrics=metrics)


def lines(front: Sequence[FrontPoint]) -> Iterator[str]:
    """Yield a heading, and a line for each point that ends with its options for `equipoise lab run`."""
    width = max((len(each.trace) for each in front), default=0)
    yield f"{'trace':{width}}  unevenness  load moved  settings"
    for each in front:
        options = " ".join([f"--policy {each.policy}", *(f"--set {text}" for text in each.settings)])
        yield f"{each.trace:{width}}  {each.unevenness:10.4f}  {each.load_moved:10.4f}  {options}"


def _write(spark: SparkSession, output: str, runs: Sequence[Finished], front: Sequence[FrontPoint]) -> None:
    """Write both tables, each as one file, in place of earlier ones."""
    _write_table(spark, _path(output, RUNS), [_row(each) for each in runs], RUNS_DDL)
    _write_table(spark, _path(output, FRONT), [tuple(asdict(each).values()) for each in front], FRONT_DDL)


def _write_table(spark: SparkSession, path: str, rows: Sequence[tuple[object, ...]], ddl: str) -> None:
    try:
        spark.createDataFrame(rows, ddl).coalesce(1).write.mode("overwrite").parquet(path)
        written = spark.read.schema(ddl).parquet(path).count()
    except (PySparkException, Py4JError) as error:
        raise OperatorError(
            f"the table {path} cannot be written: {cause_of(str(error)).text}; name another folder with --output"
        ) from error
    if written != len(rows):  # A worker on another machine has written to a disk of its own.
        raise OperatorError(f"the table {path} has {written} of {len(rows)} rows; name a folder with --output that all machines share")


def _row(finished: Finished) -> tuple[object, ...]:
    metrics = _NO_METRICS if finished.metrics is None else asdict(finished.metrics)
    return (*asdict(finished.run).values(), *metrics.values(), finished.error)


def _path(output: str, table: str) -> str:
    return f"{output.rstrip('/')}/{table}"
