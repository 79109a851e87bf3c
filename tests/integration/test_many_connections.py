"""Test a broker whose process may open few files, and callers that open all connections that they
get.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from equipoise.channel.system.free_ports import free_row
from tests.pulsar import pulsar_speech

pytestmark = pytest.mark.integration

FILES_MAX = 200
DEADLINE_S = 60.0


@contextmanager
def broker(folder: Path, http_port: int, pulsar_port: int) -> Iterator[subprocess.Popen[str]]:
    """Run a broker with at most `FILES_MAX` files. It is ready."""
    command = [
        sys.executable,
        "-m",
        "equipoise.brokers.cli",
        "broker",
        "--log",
        f"sqlite:{folder}/channel.db",
        "--data",
        str(folder / "data"),
    ]
    command += [
        "--http-port",
        str(http_port),
        "--pulsar-port",
        str(pulsar_port),
        "--set",
        "drain_ms=1000",
    ]
    limited = ["bash", "-c", f'ulimit -n {FILES_MAX} && exec "$@"', "broker", *command]
    with subprocess.Popen(limited, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = []
        for line in process.stderr:
            told.append(line)
            if json.loads(line)["event"] == "ready":
                break
        else:
            pytest.fail(f"it ended: {told}")
        try:
            yield process
        finally:
            process.terminate()
            process.communicate()


def is_served(port: int) -> bool:
    """Return whether a Pulsar client that connects now is answered."""
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client,
    ):
        client.sendall(pulsar_speech.connect())
        return bool(client.recv(1))
    return False


def asked(url: str) -> tuple[int, str]:
    """Ask until there is an answer: a broker that refuses many connections answers only some of
    them.
    """
    while True:
        try:
            # It is ours.
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (urllib.error.URLError, ConnectionError):
            continue


def test_idle_http_connections_do_not_block_pulsar_clients(tmp_path: Path) -> None:
    """Pulsar clients connect beside more idle HTTP connections than files. Callers over HTTP get
    the reason of the refusal.
    """
    http_port = free_row(2)
    with broker(tmp_path, http_port, http_port + 1), ExitStack() as idle:
        for _ in range(2 * FILES_MAX):
            with suppress(OSError):  # The broker may end it before it is made.
                idle.enter_context(
                    socket.create_connection(("127.0.0.1", http_port), timeout=DEADLINE_S)
                )
        assert is_served(http_port + 1)
        status, told = asked(f"http://127.0.0.1:{http_port}/ready")
        assert 503 == status
        assert "http_connections_max" in told
