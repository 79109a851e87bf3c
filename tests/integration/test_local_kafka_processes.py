"""Test the local Kafka with missing or failing programs, and with processes of others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose.local_kafka import jars
from compose.local_kafka.cluster import Cluster
from compose.local_kafka.jars import NotInstalled
from compose.local_kafka.node import Node
from equipoise.channel.core.errors import OperatorError

pytestmark = pytest.mark.integration


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the only folder on the path. It holds a shell and `sleep`."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "sleep"):
        (folder / name).symlink_to(Path("/bin", name).resolve())
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(jars, "HOME", tmp_path / "home")
    return folder


def script(folder: Path, name: str, text: str) -> None:
    """Write a program in a folder."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process of somebody else."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def node(tmp_path: Path) -> Node:
    """Return a configured node."""
    return Cluster.lay_out(tmp_path / "kafka").node(1)


def test_a_missing_program_is_named_with_its_package(programs: Path, tmp_path: Path) -> None:
    with pytest.raises(NotInstalled, match=r"needs mvn.*apt-get install maven"):
        jars.class_path(home=tmp_path)
    with pytest.raises(NotInstalled, match=r"needs java.*apt-get install default-jre-headless"):
        jars.tool("java")


def test_the_output_of_a_failing_maven_is_in_the_error(programs: Path, tmp_path: Path) -> None:
    script(programs, "mvn", "echo no route to the repository; exit 1")
    with pytest.raises(NotInstalled, match="no route to the repository"):
        jars.class_path(home=tmp_path)


def test_jars_are_fetched_once_and_again_when_one_is_gone(programs: Path, tmp_path: Path) -> None:
    jar, asked = tmp_path / "one.jar", tmp_path / "asked"
    jar.touch()
    writing = (
        f'for word; do case $word in -Dmdep.outputFile=*) echo {jar} >"${{word#*=}}";; esac; done'
    )
    script(programs, "mvn", f"echo asked >>{asked}; {writing}")
    notes: list[str] = []
    assert [str(jar)] * 2 == [jars.class_path(home=tmp_path, note=notes.append) for _ in range(2)]
    assert ["asked"] == asked.read_text().splitlines()
    jar.unlink()
    jars.class_path(home=tmp_path, note=notes.append)
    assert ["asked"] * 2 == asked.read_text().splitlines()
    assert 2 == len(notes)


def test_a_process_of_somebody_else_is_left_alone(
    tmp_path: Path, stranger: subprocess.Popen[bytes]
) -> None:
    """The pid file holds an id that now belongs to another process. Nothing signals it."""
    other = node(tmp_path)
    (other.folder / "pid").write_text(str(stranger.pid))
    assert other.pid is None
    other.stop()
    other.kill()
    assert stranger.poll() is None


def test_the_output_of_a_node_that_cannot_start_is_in_the_error(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output of an earlier start is not."""
    monkeypatch.setattr("compose.local_kafka.node.class_path", lambda: "jars")
    failing = node(tmp_path)
    script(
        programs, "java", "echo java.lang.UnsupportedClassVersionError: the first reason; exit 1"
    )
    failing.begin()
    with pytest.raises(
        OperatorError,
        match=r"ended while it started; Kafka 4 needs Java 17 or newer(.|\n)*the first reason",
    ):
        failing.wait_ready()
    script(programs, "java", "echo the second reason; exit 1")
    failing.begin()
    with pytest.raises(OperatorError, match="the second reason") as caught:
        failing.wait_ready()
    assert "the first reason" not in str(caught.value)
