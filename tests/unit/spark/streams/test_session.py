"""Test the checks before Spark starts: Java, the extra and the jars of the connector."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from equipoise.brokers.cli.outcome import ExitCode, exit_code_of
from equipoise.channel.core.errors import CallerError, OperatorError
from equipoise.spark_jobs.streams import connector, session
from equipoise.spark_jobs.streams.connector import (
    Jar,
    cache_folder,
    connector_jars,
    jars_of_connector,
    pom_of,
)
from equipoise.spark_jobs.streams.options import default_archive
from equipoise.spark_jobs.streams.session import check_java, choose_python
from tests.house.house_rules import ROOT

HELLO = Jar(
    group="g",
    artifact="hello",
    version="1",
    sha256="2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824",
)


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


def test_the_jars_have_the_version_of_the_extra() -> None:
    by_name = {jar.artifact: jar.version for jar in jars_of_connector()}
    assert version("pyspark") == by_name["spark-sql-kafka-0-10_2.13"]
    assert f'"pyspark=={version("pyspark")}"' in (ROOT / "pyproject.toml").read_text(
        encoding="utf-8"
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of a user, a path without programs, and a connector of one small jar."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    monkeypatch.setattr(connector, "jars_of_connector", lambda: (HELLO,))
    return cache_folder()


def maven(folder: Path, bytes_of_jar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a Maven on the path that brings such a jar."""
    say = (
        f'for word in "$@"; do case "$word" in -DoutputDirectory=*) printf %s {bytes_of_jar} >'
        ' "${word#*=}/hello-1.jar";; esac; done'
    )
    program(folder / "programs" / "mvn", say)
    monkeypatch.setenv("PATH", f"{folder / 'programs'}:/bin:/usr/bin")


def test_jars_are_fetched_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven(tmp_path, "hello", monkeypatch)
    told: list[str] = []
    assert (cache / "hello-1.jar",) == connector_jars(note=told.append)
    monkeypatch.setenv("PATH", "")
    assert (cache / "hello-1.jar",) == connector_jars(note=told.append)
    assert 1 == len(told)
    assert ["hello-1.jar", "lock"] == sorted(path.name for path in cache.iterdir())


def test_a_jar_with_another_checksum_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven(tmp_path, "evil", monkeypatch)
    with pytest.raises(OperatorError, match="SHA-256"):
        connector_jars()
    assert not (cache / "hello-1.jar").exists()
    (cache / "hello-1.jar").write_text("changed", encoding="utf-8")
    with pytest.raises(OperatorError, match="find out who put it there"):
        connector_jars()


@pytest.mark.parametrize(
    ("script", "named"),
    [(None, "no program `mvn`"), ("echo no route to host; exit 1", "no route to host")],
)
def test_jars_that_cannot_be_fetched_can_be_put_there_by_hand(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, named: str
) -> None:
    if script:
        program(tmp_path / "programs" / "mvn", script)
        monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:/bin:/usr/bin")
    with pytest.raises(OperatorError, match=f"{named}.*hello-1.jar into {cache} by hand"):
        connector_jars()
    (cache / "hello-1.jar").write_text("hello", encoding="utf-8")
    assert (cache / "hello-1.jar",) == connector_jars()


def test_maven_fetches_no_transitive_dependencies() -> None:
    text = pom_of(jars_of_connector())
    assert len(jars_of_connector()) == text.count("<version>") - 1 == text.count("<exclusions>")


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
