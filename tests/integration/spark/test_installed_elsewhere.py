"""Run a job outside the repository, from the installed wheel, on workers without our packages."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.house.house_rules import ROOT

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak,
    pytest.mark.repeats,
    pytest.mark.timeout(1_200),
]

JOB = """
from equipoise.lab.traces import Shape
from equipoise.spark_jobs.laboratory import run_lab
from equipoise.spark_jobs.streams.options import LabOptions, Screen
from equipoise.spark_jobs.streams.session import spark_session


def named(frames):
    import pandas
    from equipoise.channel.core.codec import decode

    for frame in frames:
        yield pandas.DataFrame({"kind": [type(decode(bytes(value))).__name__ for value in frame["value"]]})


spark = spark_session("elsewhere", master="local-cluster[1,1,1024]")
records = spark.createDataFrame([(b"no record",)] * 3, "value BINARY")
print(",".join(row.kind for row in records.mapInPandas(named, "kind string").collect()))
shape = Shape(brokers=2, bundles=8, duration_s=60.0)
lab = LabOptions(traces=("steady",), shape=shape, policies=("AvgShedder",), values={}, output="lab", seeds=2)
print("failed runs:", run_lab(lab, Screen(result=lambda line: None, note=lambda line: None)))
spark.stop()
"""  # noqa: E501


def done(*command: str, folder: Path, environment: dict[str, str] | None = None) -> str:
    """What a command prints, which must succeed."""
    run = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert 0 == run.returncode, run.stderr
    return run.stdout


def environment_of(folder: Path, name: str) -> Path:
    """The Python of a new environment with all that we stand on, and nothing of ours: that is
    installed by a file of paths beside it.
    """
    uv = (sys.executable, "-m", "uv")
    done(*uv, "venv", "--quiet", "--python", sys.executable, name, folder=folder)
    (packages,) = (folder / name / "lib").glob("python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return folder / name / "bin/python"


def test_the_wheel_runs_a_job_on_workers_without_it(spark: SparkSession, tmp_path: Path) -> None:
    """Our packages are sent to workers in processes of their own."""
    del spark  # It is skipped, or fails, where no session can be had.
    done(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(tmp_path),
        folder=ROOT,
    )
    (wheel,) = tmp_path.glob("*.whl")
    driver, worker = environment_of(tmp_path, "driver"), environment_of(tmp_path, "worker")
    done(
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--python",
        str(driver),
        str(wheel),
        folder=tmp_path,
    )
    missing = (
        "import importlib.util as u, sys; sys.exit(any(u.find_spec(name) for name in ('brokers',"
        " 'channel', 'spark_jobs')))"
    )
    done(str(worker), "-c", missing, folder=tmp_path)
    (tmp_path / "job.py").write_text(JOB, encoding="utf-8")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYSPARK_", "SPARK_", "PYTHONPATH"))
    }
    assert "Unreadable,Unreadable,Unreadable\nfailed runs: 0\n" == done(
        str(driver), "job.py", folder=tmp_path, environment={**kept, "PYSPARK_PYTHON": str(worker)}
    )
