"""The local Kafka and the programs around it: Java and Maven that are missing or fail, and processes that are not its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compose.local_kafka import jars
from compose.local_kafka.cluster import Cluster
from compose.local_kafka.errors import LocalKafkaError, NotInstalled
from compose.local_kafka.node import Node

pytestmark = pytest.mark.integration


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the path, besides those of the system's shell: nothing is in it yet."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "sleep"):
        (folder / name).symlink_to(Path("/bin", name).resolve())
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(jars, "HOME", tmp_path / "home")
    return folder


def script(folder: Path, name: str, text: str) -> None:
    """A program of a few words."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def node(tmp_path: Path) -> Node:
    """A node that is configured."""
    return Cluster.lay_out(tmp_path / "kafka").node(1)


def test_a_missing_program_is_named_with_what_brings_it(programs: Path, tmp_path: Path) -> None:
    """Without Java or Maven the error says which package has it."""
    with pytest.raises(NotInstalled, match=r"needs mvn.*apt-get install maven"):
        jars.class_path(home=tmp_path)
    with pytest.raises(NotInstalled, match=r"needs java.*apt-get install default-jre-headless"):
        jars.tool("java")


def test_what_maven_complains_about_is_passed_on(programs: Path, tmp_path: Path) -> None:
    """When Maven fails, its own words are in the error."""
    script(programs, "mvn", "echo no route to the repository; exit 1")
    with pytest.raises(NotInstalled, match="no route to the repository"):
        jars.class_path(home=tmp_path)


def test_jars_are_fetched_once_and_again_when_one_is_gone(programs: Path, tmp_path: Path) -> None:
    """Maven is asked the first time, and when a jar has been deleted since."""
    jar, asked = tmp_path / "one.jar", tmp_path / "asked"
    jar.touch()
    writing = f'for word; do case $word in -Dmdep.outputFile=*) echo {jar} >"${{word#*=}}";; esac; done'
    script(programs, "mvn", f"echo asked >>{asked}; {writing}")
    told: list[str] = []
    assert [str(jar)] * 2 == [jars.class_path(home=tmp_path, telling=told.append) for _ in range(2)]
    assert ["asked"] == asked.read_text().splitlines()
    jar.unlink()
    jars.class_path(home=tmp_path, telling=told.append)
    assert ["asked"] * 2 == asked.read_text().splitlines()
    assert 2 == len(told)


def test_a_process_of_somebody_else_is_left_alone(tmp_path: Path, stranger: subprocess.Popen[bytes]) -> None:
    """A number that now belongs to another process is no node's, and nobody signals it."""
    other = node(tmp_path)
    (other.folder / "pid").write_text(str(stranger.pid))
    assert other.pid is None
    other.stop()
    other.kill()
    assert stranger.poll() is None


@pytest.mark.parametrize("text", ["", "no number", "999999999"])
def test_a_file_that_names_no_process_is_no_node(text: str, tmp_path: Path) -> None:
    """Whatever the file says, a process that is not there does not run, and can be stopped."""
    other = node(tmp_path)
    (other.folder / "pid").write_text(text)
    assert other.pid is None
    other.kill()


def test_a_node_that_cannot_start_says_why(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last words of a node that ends while it starts are in the error, not those of the start before."""
    monkeypatch.setattr("compose.local_kafka.node.class_path", lambda: "jars")
    failing = node(tmp_path)
    script(programs, "java", "echo java.lang.UnsupportedClassVersionError: the first reason; exit 1")
    failing.begin()
    with pytest.raises(LocalKafkaError, match=r"ended while it started; Kafka 4 needs Java 17 or newer(.|\n)*the first reason"):
        failing.wait_ready()
    script(programs, "java", "echo the second reason; exit 1")
    failing.begin()
    with pytest.raises(LocalKafkaError, match="the second reason") as caught:
        failing.wait_ready()
    assert "the first reason" not in str(caught.value)


def test_a_node_that_is_not_ready_in_time_says_so(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that starts for ever is given up at its deadline, and can be killed."""
    monkeypatch.setattr("compose.local_kafka.node.class_path", lambda: "jars")
    script(programs, "java", "while :; do sleep 0.1; done")
    hanging = node(tmp_path)
    hanging.begin()
    with pytest.raises(LocalKafkaError, match="was not ready within 0 s"):
        hanging.wait_ready(timeout_s=0.1)
    assert hanging.pid is not None
    hanging.kill()
    assert hanging.pid is None


def test_a_process_that_is_being_loaded_is_not_taken_for_gone(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has no command line while it becomes another program, and is there all the same."""
    monkeypatch.setattr("compose.local_kafka.node.class_path", lambda: "jars")
    script(programs, "java", 'exec "$0" "$@"')
    loading = node(tmp_path)
    loading.begin()
    try:
        assert [] == [look for look in range(2_000) if loading.pid is None]
    finally:
        loading.kill()
