"""What the control group of a process allows it: CPU and memory, by Linux' cgroup v1 and v2.

May live here: where the limits stand and how they are spelled. The files are read by whoever asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

MEMBERSHIP: Final = "/proc/self/cgroup"
_MOUNT: Final = "/sys/fs/cgroup"

Read = Callable[[str], str | None]
"""The text of a file by its path; None if it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimits:
    """CPUs, as a number that may be broken, and memory in bytes; None: no limit is set."""

    cpu_cores: float | None = None
    memory_bytes: int | None = None


def cgroup_limits(read: Read) -> CgroupLimits:
    """The tightest limits on the way from this process' groups up to the root; none on a system without control groups.

    In a container the group that the kernel names may lie above what is mounted: then its files are not there, and those
    at the root of the mount are the container's own.
    """
    cores: list[float] = []
    memory: list[int] = []
    for controllers, group in _groups(read(MEMBERSHIP) or ""):
        if not controllers:  # Version 2, in whose one tree all controllers are; beside version 1 it is mounted aside.
            for folder in (*_upwards(_MOUNT, group), *_upwards(f"{_MOUNT}/unified", group)):
                cores += _cores_of(read(f"{folder}/cpu.max"))
                memory += _bytes_of(read(f"{folder}/memory.max"))
        if "cpu" in controllers:
            for folder in (*_upwards(f"{_MOUNT}/cpu", group), *_upwards(f"{_MOUNT}/{','.join(controllers)}", group)):
                cores += _cores_of(f"{read(f'{folder}/cpu.cfs_quota_us')} {read(f'{folder}/cpu.cfs_period_us')}")
        if "memory" in controllers:
            for folder in _upwards(f"{_MOUNT}/memory", group):
                memory += _bytes_of(read(f"{folder}/memory.limit_in_bytes"))
    return CgroupLimits(cpu_cores=min(cores, default=None), memory_bytes=min(memory, default=None))


def _groups(membership: str) -> Iterator[tuple[list[str], list[str]]]:
    """The controllers, and the way to the group, of each tree that the process is in; version 2 names no controllers."""
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, group = rest.partition(":")
        if separator:
            yield [name for name in controllers.split(",") if name], [part for part in group.split("/") if part]


def _upwards(mount: str, group: Sequence[str]) -> Iterator[str]:
    """The folder of a group, and those of all groups that it lies in, up to the root."""
    for depth in range(len(group), -1, -1):
        yield "/".join((mount, *group[:depth]))


def _cores_of(text: str | None) -> list[float]:
    """A quota and its period, both in microseconds; what is no positive number is no limit (`max`, -1)."""
    match (text or "").split():
        case [quota, period] if quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0:
            return [int(quota) / int(period)]
    return []


def _bytes_of(text: str | None) -> list[int]:
    word = (text or "").strip()
    return [int(word)] if word.isdecimal() and int(word) > 0 else []
