"""What a process of this machine uses, and where it runs."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def cpu_s(pid: int) -> float:
    """The CPU time of a process so far, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Memory of a process that is its own or shared."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def pin(pid: int, cpu: int) -> None:
    """Have all threads of a process run on one CPU, and those that they start from now on."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {cpu})
