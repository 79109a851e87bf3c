"""Ctrl-C before a command handles it and after its end, and the signals of `equipoise up`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from equipoise.brokers.cli.commands.up import _signals
from equipoise.brokers.local.local_cluster import ClusterSettings, LocalCluster

# A process that sends itself a SIGINT when it comes to import `module`, or at its very end, and
# then runs a command line.
PROGRAM = """
import atexit, os, signal, sys

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            interrupt()

sys.meta_path.insert(0, Finder())
if {module!r} == "the end":
    atexit.register(interrupt)
sys.argv = ["equipoise", "namespaces", "--help"]
from equipoise.brokers.cli.__main__ import main
main()
"""


def interrupted_at(module: str, *, ignoring: bool = False) -> subprocess.CompletedProcess[str]:
    """How a process ended that was interrupted there; `ignoring` signals as a shell has it for what
    runs in its background.
    """
    shell = "trap '' INT; exec \"$@\"" if ignoring else 'exec "$@"'
    command = ["sh", "-c", shell, "sh", sys.executable, "-c", PROGRAM.format(module=module)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.integration
@pytest.mark.usefixtures("hears_interrupts")
@pytest.mark.parametrize(
    ("module", "code", "has_output"),
    [
        ("typer", -signal.SIGINT, False),
        ("equipoise.brokers.cli.commands.namespaces", 128 + signal.SIGINT, False),
        ("the end", -signal.SIGINT, True),
    ],
)
def test_ctrl_c_is_quiet_while_modules_are_imported_and_at_the_end(
    module: str, code: int, has_output: bool
) -> None:
    ended = interrupted_at(module)
    assert (code, "", has_output) == (ended.returncode, ended.stderr, bool(ended.stdout))


@pytest.mark.integration
@pytest.mark.parametrize(
    "module", ["typer", "equipoise.brokers.cli.commands.namespaces", "the end"]
)
def test_a_command_that_ignores_sigint_ends_by_itself(module: str) -> None:
    ended = interrupted_at(module, ignoring=True)
    assert (0, "", True) == (
        ended.returncode,
        ended.stderr,
        ended.stdout.startswith("Usage: equipoise namespaces"),
    )


class Uneasy(LocalCluster):
    """A cluster that notes when it is killed."""

    killed = 0

    def kill_all(self) -> None:
        self.killed += 1


def test_the_signals_of_up_stop_then_kill(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    cluster = Uneasy(ClusterSettings(directory=tmp_path, brokers=1))
    with _signals(cluster) as heard:
        os.kill(os.getpid(), signal.SIGINT)
        assert ([signal.SIGINT], 0) == (heard, cluster.killed)
        with pytest.raises(CancelledError):
            cluster.start()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert ([signal.SIGINT, signal.SIGTERM, signal.SIGINT], 2) == (heard, cluster.killed)
    cluster.stop_all()
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
