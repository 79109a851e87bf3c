"""A process that outlives whoever started it, known by the file that holds its number.

May live here: starting, finding, signalling and waiting. A number is used again once its process is gone: so nobody is signalled
before their command line was looked at, and the kernel's handle on the process makes sure that it is still the same one then.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# The shell only forks: it is done within milliseconds, or the machine is beyond help.
_FORK_S: Final = 30.0
# The moment in which a program is loaded: microseconds, or on a machine that is busy or swaps, up to a second.
_EXEC_LOOKS: Final = 100
_EXEC_LOOK_S: Final = 0.01
_STOP_LOOK_S: Final = 0.001
_STOPPED: Final = frozenset("TtXZ")
"""Stopped, by a signal or for a debugger, or ended."""

_IN_BACKGROUND: Final = 'pid_file=$1 output=$2; shift 2; "$@" </dev/null >>"$output" 2>&1 & echo $! >"$pid_file"'


def start(words: Sequence[str], *, pid_file: Path, output: Path) -> None:
    """Start a process that belongs to nobody: no terminal reaches it, and nobody has to take note of its end."""
    command = ["sh", "-c", _IN_BACKGROUND, "sh", str(pid_file), str(output), *words]
    subprocess.run(command, check=True, timeout=_FORK_S, start_new_session=True)


@contextmanager
def handle(pid_file: Path, *, mark: str) -> Iterator[int | None]:
    """The kernel's handle on the process whose number is in the file; None if that is gone, or its command line has no `mark`."""
    pid = pid_of(pid_file)
    try:
        held = None if pid is None else os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):  # Gone; or the number is now that of a thread, of which there is no handle.
        held = None
    if held is None:
        yield None
        return
    try:
        # Read while the handle is held: whose command line it is cannot change any more.
        yield held if pid is not None and mark in _command_line(pid, held) else None
    finally:
        os.close(held)


def pid_of(pid_file: Path) -> int | None:
    """The number in the file; None if there is none."""
    try:
        return int(pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def send(held: int, number: signal.Signals) -> None:
    """Signal the process of a handle; one that has ended takes no notice."""
    try:
        signal.pidfd_send_signal(held, number)
    except ProcessLookupError:
        return


def stands_still(pid: int, *, timeout_s: float) -> bool:
    """Whether all threads of a process come to a stop within a time, after SIGSTOP: until the first of them runs, none of them does."""
    give_up_s = time.monotonic() + timeout_s
    while not all(state in _STOPPED for state in _states(pid)):
        if time.monotonic() >= give_up_s:
            return False
        time.sleep(_STOP_LOOK_S)
    return True


def has_ended(held: int, *, timeout_s: float) -> bool:
    """Whether the process of a handle ends within a time."""
    poll = select.poll()
    poll.register(held, select.POLLIN)
    return bool(poll.poll(timeout_s * 1_000))


def _states(pid: int) -> Iterator[str]:
    """What each thread of a process does, in the kernel's letters; nothing of those that are gone."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield path.read_text().rpartition(")")[2].split()[0]


def _command_line(pid: int, held: int) -> str:
    """The command line of a process; empty if it has ended, or is one of the kernel's own."""
    for _ in range(_EXEC_LOOKS):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        # While a process becomes another program it has no command line for a moment, and would be taken for one that is gone.
        if line or has_ended(held, timeout_s=_EXEC_LOOK_S):
            return line.decode(errors="replace")
    return ""
