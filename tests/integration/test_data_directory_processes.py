"""One data directory and several real processes: one holds it, until it dies."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from equipoise.brokers.runtime.data_directory import DataDirectory, instance_ids_of_dead
from equipoise.channel.core.errors import OperatorError
from equipoise.channel.system.free_ports import free_ports

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 60.0


@contextlib.contextmanager
def process(path: Path, instance_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that holds the directory, or tries to."""
    command = [sys.executable, "-m", "tests.integration.directory_process", str(path), instance_id]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def word_of(started: subprocess.Popen[bytes]) -> str:
    """Return the next line that a process prints."""
    assert started.stdout is not None
    readable, _, _ = select.select([started.stdout], [], [], DEADLINE_SECONDS)
    assert readable, "the process said nothing"
    return started.stdout.readline().decode().strip()


def test_only_one_process_holds_a_directory(tmp_path: Path) -> None:
    """Others get its process id in the error. So does a declaration of death."""
    with process(tmp_path, "first") as holder:
        assert "holding" == word_of(holder)
        with process(tmp_path, "second") as late:
            assert "OperatorError" == word_of(late)
        with pytest.raises(OperatorError, match=f"held by process {holder.pid}:"):
            instance_ids_of_dead(tmp_path)
    assert {"first"} == instance_ids_of_dead(tmp_path)


def test_a_stopped_process_keeps_its_directory(tmp_path: Path) -> None:
    with process(tmp_path, "first") as holder:
        assert "holding" == word_of(holder)
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(OperatorError):
            instance_ids_of_dead(tmp_path)


def test_children_do_not_inherit_the_lock(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            directory.close()
            assert frozenset() == instance_ids_of_dead(tmp_path)
        finally:
            child.kill()


def test_a_forked_child_keeps_nothing_of_a_dead_broker(tmp_path: Path) -> None:
    """Neither its lock, nor its port, nor its clients: the next broker starts although the child of
    a pool lives on.
    """
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "tests.integration.forking_broker", str(tmp_path), str(port)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert "ready" == word_of(broker)
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_SECONDS) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert client.recv(1_000).startswith(b"HTTP/1.1 200")
            assert broker.stdin is not None
            broker.stdin.write(b"fork\n")
            broker.stdin.flush()
            child = int(word_of(broker))
            try:
                broker.kill()
                broker.wait(DEADLINE_SECONDS)
                os.kill(child, 0)
                assert instance_ids_of_dead(tmp_path / "data")
                while client.recv(1_000):
                    pass
                with socket.create_server(("127.0.0.1", port)):
                    pass
            finally:
                os.kill(child, signal.SIGKILL)
