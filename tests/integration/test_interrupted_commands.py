"""SIGINT for commands that run until they are stopped, where the process was started with SIGINT
ignored.

A shell starts so what it runs in the background of a script. What a command does when it is
interrupted is asked elsewhere.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from equipoise.channel.core.errors import OperatorError
from equipoise.channel.system.free_ports import free_row
from equipoise.spark_jobs.streams.session import check_java
from tests.pulsar.programs import is_required
from tests.unit.cli.fabricated import owned_channel, write

pytestmark = pytest.mark.integration

PATIENCE_S = 240
NOWHERE = "kafka://127.0.0.1:1/channel"
"""A log that is away for as long as a test lasts."""

CLI = ("-m", "equipoise.brokers.cli")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A command line, what it prints once it is at work, and its exit code after a SIGINT."""

    words: Sequence[str]
    at_work: str
    code: int = 0
    extra: str | None = None
    """The module without which it cannot run."""


CASES = {
    "broker": Case(
        words=(
            *CLI,
            "broker",
            "--log",
            "sqlite:new.db",
            "--data",
            "data",
            "--http-port",
            "0",
            "--service",
            "counter",
        ),
        at_work='"event":"ready"',
    ),
    "up": Case(
        words=(
            *CLI,
            "up",
            "--data",
            "data",
            "--brokers",
            "1",
            "--http-port",
            "{port}",
            "--service",
            "counter",
        ),
        at_work="ready: 1 broker",
    ),
    "channel tail": Case(
        words=(*CLI, "channel", "tail", "-f", "--log", "{log}"), at_work="open ", code=130
    ),
    "spark audit": Case(
        words=(*CLI, "spark", "audit", "--log", "{log}"),
        at_work="findings are printed here",
        code=130,
        extra="pyspark",
    ),
}


@contextmanager
def ignoring(words: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is started with SIGINT ignored; both of its outputs are one."""
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, *words]
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "EQUIPOISE_COUNTER_STORE": str(folder / "counter.db"),
    }
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )
    guard = threading.Timer(PATIENCE_S, process.kill)  # The end of its output ends the test.
    guard.start()
    try:
        yield process
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_commands_that_run_until_stopped_handle_sigint(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    if case.extra is not None and find_spec(case.extra) is None:
        pytest.skip(f"{case.extra} is not installed")
    if case.extra == "pyspark":
        try:
            check_java()
        except OperatorError as error:
            (pytest.fail if is_required() else pytest.skip)(str(error))
    log = write(owned_channel().entries, tmp_path)
    words = [word.format(log=log, port=free_row(1)) for word in case.words]
    with ignoring(words, tmp_path) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if case.at_work in line:
                break
        process.send_signal(signal.SIGINT)
        said.extend(process.stdout)
        assert case.code == process.wait(), "".join(said)
        assert "Traceback" not in "".join(said)
