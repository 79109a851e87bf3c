"""Read the CPU and memory limits of this process's control groups (Linux cgroup v1 and v2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

MEMBERSHIP: Final = "/proc/self/cgroup"
_MOUNT: Final = "/sys/fs/cgroup"

Read = Callable[[str], str | None]
"""Returns the text of the file at a path, or None if it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimits:
    """Limits: CPUs (may be fractional) and memory in bytes. None means no limit."""

    cpu_cores: float | None = None
    memory_bytes: int | None = None


def cgroup_limits(read: Read) -> CgroupLimits:
    """Return the tightest limits from this process's groups up to the root.

    In a container the kernel may report a group above the mounted ones. Its files do not exist
    then, and the files at the root of the mount are the container's own.
    """
    cores: list[float] = []
    memory: list[int] = []
    for controllers, group in _groups(read(MEMBERSHIP) or ""):
        # Version 2 has one tree for all controllers; beside version 1 it is mounted separately.
        if not controllers:
            for folder in (*_upwards(_MOUNT, group), *_upwards(f"{_MOUNT}/unified", group)):
                cores += _cores_of(read(f"{folder}/cpu.max"))
                memory += _bytes_of(read(f"{folder}/memory.max"))
        if "cpu" in controllers:
            for folder in (
                *_upwards(f"{_MOUNT}/cpu", group),
                *_upwards(f"{_MOUNT}/{','.join(controllers)}", group),
            ):
                cores += _cores_of(
                    f"{read(f'{folder}/cpu.cfs_quota_us')} {read(f'{folder}/cpu.cfs_period_us')}"
                )
        if "memory" in controllers:
            for folder in _upwards(f"{_MOUNT}/memory", group):
                memory += _bytes_of(read(f"{folder}/memory.limit_in_bytes"))
    return CgroupLimits(cpu_cores=min(cores, default=None), memory_bytes=min(memory, default=None))


def _groups(membership: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the controllers and the path of each group of the process. Version 2 has no
    controllers.
    """
    for line in membership.splitlines():
        _, _, rest = line.partition(":")
        controllers, separator, group = rest.partition(":")
        if separator:
            yield (
                [name for name in controllers.split(",") if name],
                [part for part in group.split("/") if part],
            )


def _upwards(mount: str, group: Sequence[str]) -> Iterator[str]:
    """Yield the folders of a group and of its parents, up to the root."""
    for depth in range(len(group), -1, -1):
        yield "/".join((mount, *group[:depth]))


def _cores_of(text: str | None) -> list[float]:
    """Parse a quota and its period, both in microseconds. Any other value (`max`, -1) means no
    limit.
    """
    match (text or "").split():
        case [quota, period] if (
            quota.isdecimal() and period.isdecimal() and int(quota) > 0 and int(period) > 0
        ):
            return [int(quota) / int(period)]
    return []


def _bytes_of(text: str | None) -> list[int]:
    word = (text or "").strip()
    return [int(word)] if word.isdecimal() and int(word) > 0 else []
