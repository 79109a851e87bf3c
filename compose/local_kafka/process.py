"""Start, find, signal and await a process that outlives its parent and is known by its pid file.

The kernel reuses process ids. So a process is signalled only after its command line was checked,
through a handle (pidfd) that keeps meaning the same process.
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

# The shell only forks, which takes milliseconds.
_FORK_S: Final = 30.0
# The moment in which a program is loaded: microseconds, or up to a second on a busy or swapping
# machine.
_EXEC_LOOKS: Final = 100
_EXEC_LOOK_S: Final = 0.01
_STOP_LOOK_S: Final = 0.001
_STOPPED: Final = frozenset("TtXZ")
"""Stopped, by a signal or for a debugger, or ended."""

_IN_BACKGROUND: Final = (
    'pid_file=$1 output=$2; shift 2; "$@" </dev/null >>"$output" 2>&1 & echo $! >"$pid_file"'
)


def start(words: Sequence[str], *, pid_file: Path, output: Path) -> None:
    """Start a detached process: no terminal signals reach it, and no parent needs to wait for
    it.
    """
    command = ["sh", "-c", _IN_BACKGROUND, "sh", str(pid_file), str(output), *words]
    subprocess.run(command, check=True, timeout=_FORK_S, start_new_session=True)


@contextmanager
def handle(pid_file: Path, *, mark: str) -> Iterator[int | None]:
    """Yield a handle on the process in the pid file, or None if it is gone or its command line does
    not contain `mark`.
    """
    pid = pid_of(pid_file)
    try:
        held = None if pid is None else os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):
        # Gone, or the id now belongs to a thread, which has no handle.
        held = None
    if held is None:
        yield None
        return
    try:
        # Read while the handle is held, so that the command line is that of this process.
        yield held if pid is not None and mark in _command_line(pid, held) else None
    finally:
        os.close(held)


def pid_of(pid_file: Path) -> int | None:
    """Return the process id in the file, or None if there is none."""
    try:
        return int(pid_file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def send(held: int, number: signal.Signals) -> None:
    """Signal the process of a handle. Does nothing if it has ended."""
    try:
        signal.pidfd_send_signal(held, number)
    except ProcessLookupError:
        return


def is_stopped(pid: int, *, timeout_s: float) -> bool:
    """Return whether all threads of a process stop in time after SIGSTOP. A stopped thread stays
    stopped until SIGCONT.
    """
    give_up_s = time.monotonic() + timeout_s
    while not all(state in _STOPPED for state in _states(pid)):
        if time.monotonic() >= give_up_s:
            return False
        time.sleep(_STOP_LOOK_S)
    return True


def has_ended(held: int, *, timeout_s: float) -> bool:
    """Return whether the process of a handle ends in time."""
    poll = select.poll()
    poll.register(held, select.POLLIN)
    return bool(poll.poll(timeout_s * 1_000))


def _states(pid: int) -> Iterator[str]:
    """Yield the kernel's state letter of each thread of a process."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            yield path.read_text().rpartition(")")[2].split()[0]


def _command_line(pid: int, held: int) -> str:
    """Return the command line of a process, or "" if it has ended or is a kernel thread."""
    for _ in range(_EXEC_LOOKS):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return ""
        # During exec a process has no command line for a moment, and would look like one that is
        # gone.
        if line or has_ended(held, timeout_s=_EXEC_LOOK_S):
            return line.decode(errors="replace")
    return ""
