"""Test `equipoise spark lab` with Spark: the tables, the front, and runs that fail."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pytest

from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.lab.comparing import settings_of
from equipoise.lab.running import run
from equipoise.lab.trace_files import read_trace, write_trace
from equipoise.lab.traces import Shape, Trace, generated
from equipoise.spark_jobs import laboratory
from equipoise.spark_jobs.laboratory import run_lab
from equipoise.spark_jobs.streams.options import LabOptions, Screen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

# A kind of trace needs two brokers, so its runs fail. A file has brokers of its own.
SHAPE = Shape(brokers=1, bundles=12, duration_s=120.0)
RATIO = "balanced.start_ratio"


def lab(options: LabOptions) -> tuple[int, list[str], list[str]]:
    """Run the job. Return its result, its output and its notes."""
    printed, noted = list[str](), list[str]()
    return run_lab(options, Screen(result=printed.append, note=noted.append)), printed, noted


def steady(shape: Shape, seed: int) -> Trace:
    return generated("steady", shape, seed=seed)


def test_tables_have_each_run_with_its_figures_or_its_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    path, output = tmp_path / "own.csv", tmp_path / "out"
    write_trace(generated("drifting", replace(SHAPE, brokers=3)), path)
    options = LabOptions(
        traces=(str(path), "steady"),
        shape=SHAPE,
        policies=("BalancedShedder", "AvgShedder"),
        values={RATIO: ("0.1", "0.4")},
        output=str(output),
        seeds=2,
    )
    failed, printed, noted = lab(replace(options, as_json=True))
    assert (6, True) == (
        failed,
        noted[-1].startswith(
            "6 of 12 runs failed; the first error: CallerError: a trace needs at least two brokers"
        ),
    )
    rows = [row.asDict() for row in spark.read.parquet(str(output / "runs.parquet")).collect()]
    done, broken = rows[:6], rows[6:]
    assert [None] * 6 == [row["unevenness"] for row in broken]
    assert {"CallerError"} == {row["error"].split(":")[0] for row in broken}
    trace = read_trace(path)
    for row in done:
        settings = settings_of(
            row["policy"], given=dict(text.split("=") for text in row["settings"])
        )
        expected = run(trace, settings, seed=row["seed"]).metrics()
        assert (expected.unevenness, expected.load_moved, expected.moves, None) == (
            row["unevenness"],
            row["load_moved"],
            row["moves"],
            row["error"],
        )
    document = orjson.loads(printed[0])
    front = [row.asDict() for row in spark.read.parquet(str(output / "front.parquet")).collect()]
    assert (12, 6, str(output), front) == (
        document["runs"],
        document["failed"],
        document["output"],
        document["front"],
    )
    assert {str(path)} == {row["trace"] for row in front}

    # Again, with fewer runs: the tables are replaced, and equal runs have equal figures.
    failed, printed, _ = lab(replace(options, traces=(str(path),)))
    again = spark.read.parquet(str(output / "runs.parquet")).collect()
    assert (0, done) == (failed, [row.asDict() for row in again])
    assert len(front) + 2 == len(printed)
    assert all(
        f"--policy {row['policy']}" in line for row, line in zip(front, printed[1:], strict=False)
    )


def test_a_folder_that_cannot_be_written_is_named_before_the_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert spark.sparkContext.defaultParallelism > 0
    (tmp_path / "file").touch()
    options = LabOptions(
        traces=("steady",),
        shape=SHAPE,
        policies=("AvgShedder",),
        values={},
        output=str(tmp_path / "file" / "out"),
    )
    with pytest.raises(
        OperatorError,
        match=(
            r"the table .*/file/out/runs.parquet cannot be written: .*; name another folder with"
            r" --output"
        ),
    ):
        lab(options)


def test_runs_that_ended_are_kept_when_spark_fails(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace ends the process of its worker."""
    assert spark.sparkContext.defaultParallelism > 0
    traces = {"steady": partial(steady, replace(SHAPE, brokers=3)), "deadly": os._exit}
    monkeypatch.setattr(laboratory, "traces_named", lambda *_: traces)
    options = LabOptions(
        traces=tuple(traces), shape=SHAPE, policies=("AvgShedder",), values={}, output=str(tmp_path)
    )
    with pytest.raises(
        PeerError, match=r"the Spark job lab failed: .*; fix that, and start the job again"
    ):
        lab(options)
    kept = spark.read.parquet(str(tmp_path / "runs.parquet")).collect()
    assert [("steady", True, None), ("deadly", False, "the job ended before this run")] == [
        (row.trace, row.unevenness is not None, row.error) for row in kept
    ]
    assert ["steady"] == [
        row.trace for row in spark.read.parquet(str(tmp_path / "front.parquet")).collect()
    ]
