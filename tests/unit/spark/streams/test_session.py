"""Test the checks before Spark starts: Java and the extra."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.brokers.cli.outcome import ExitCode, exit_code_of
from equipoise.channel.core.errors import CallerError, OperatorError
from equipoise.spark_jobs.streams import session
from equipoise.spark_jobs.streams.options import default_archive
from equipoise.spark_jobs.streams.session import check_java, choose_python
from tests.house.house_rules import ROOT


def program(path: Path, script: str) -> Path:
    """A program at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def java_home(folder: Path, answer: str) -> dict[str, str]:
    """An environment with a Java that answers so when it is asked for its version."""
    program(folder / "bin" / "java", f"{answer} >&2")
    return {"JAVA_HOME": str(folder), "PATH": ""}


@pytest.mark.parametrize(("said", "found"), [("17.0.15", 17), ("21", 21), ("25-ea", 25)])
def test_a_java_that_is_new_enough(tmp_path: Path, said: str, found: int) -> None:
    assert found == check_java(java_home(tmp_path, f"echo 'openjdk version \"{said}\" 2025-04-15'"))


def test_workers_of_a_cluster_have_a_python_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", "/bin")
    beside = Path(sys.executable).parent
    settings: dict[str, str] = {}
    choose_python(settings.__setitem__, "spark://master:7077", Path("/packed.tar.gz"))
    assert "PYSPARK_PYTHON" not in os.environ
    assert f"{beside}:/bin" == os.environ["PATH"]
    assert {
        "spark.archives": "/packed.tar.gz#equipoise-environment",
        "spark.executorEnv.PATH": (
            f"equipoise-environment/bin:{beside}:/usr/local/bin:/usr/bin:/bin"
        ),
    } == settings
    choose_python(settings.__setitem__, "local[2]", None)
    assert sys.executable == os.environ["PYSPARK_PYTHON"]


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ("echo 'java version \"1.8.0_392\"'", "is Java 8"),
        ("exit 3", "does not report its version"),
        ("echo hello", "hello"),
    ],
)
def test_a_java_that_is_unfit(tmp_path: Path, answer: str, named: str) -> None:
    with pytest.raises(OperatorError, match=named) as caught:
        check_java(java_home(tmp_path, answer))
    assert ExitCode.OPERATOR is exit_code_of(caught.value)


@pytest.mark.parametrize(
    "environment", [{"PATH": ""}, {"PATH": "/nowhere"}, {"JAVA_HOME": "/nowhere", "PATH": ""}]
)
def test_a_machine_without_java(environment: dict[str, str]) -> None:
    with pytest.raises(OperatorError, match="apt-get install openjdk-17-jre-headless"):
        check_java(environment)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MODULES", {"report": ("a report", ("pyarrow", "no_such"))})
    with pytest.raises(CallerError, match=re.escape("a report needs the extra `report`")):
        session.check_extra("report")


def test_only_noise_is_dropped_from_standard_error(tmp_path: Path) -> None:
    """Also what a started program writes later comes through."""
    child = (
        "import sys,time; print('WARNING: Using incubator modules: x', 'first', sep='\\n',"
        " file=sys.stderr, flush=True);"
    )
    child += "time.sleep(0.3); print('later', file=sys.stderr)"
    lines = [
        "import subprocess, sys, threading",
        "from equipoise.spark_jobs.streams.session import quietly",
        "with quietly():",
        f"    child = subprocess.Popen([sys.executable, '-c', {child!r}])",
        "print('mine', file=sys.stderr, flush=True)",
        "child.wait()",
        "[thread.join(20) for thread in threading.enumerate() if thread.name == 'spark-stderr']",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ["first", "later", "mine"] == sorted(done.stderr.splitlines())


def test_the_default_archive_of_a_log() -> None:
    assert Path("/data/channel.db.archive") == default_archive(
        "sqlite:/data/channel.db?synchronous=normal"
    )
    assert Path("shop.archive") == default_archive("kafka://h:1,i:2/shop")
    with pytest.raises(CallerError, match="cannot open a log at"):
        default_archive("kafka:nonsense")
