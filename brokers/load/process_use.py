"""Measure the resources that this process and its descendants use, through psutil, and
read the CPU and memory limits of its control groups (Linux cgroup v1 and v2).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from equipoise.brokers.load.resource_use import (
    Card,
    Counters,
    Limits,
    counting_cards,
    network_kbits,
    resources_between,
)
from equipoise.shedder.loads import Resources

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


_logger: Final = logging.getLogger(__name__)

# Some systems report 65,535 for an unknown speed, others 0.
_SPEED_UNKNOWN: Final = 65_535


class ProcessUse:
    """The use of resources between two measurements. Each reads about a hundred small files: run it
    in a thread, one at a time.
    """

    def __init__(self, *, broker: str, cpu_cores: float | None = None) -> None:
        """`cpu_cores` is how many CPUs this broker may use; None means all that the system
        allows.
        """
        self._broker = broker
        self._cpu_cores = cpu_cores
        self._process = psutil.Process()
        self._before: Counters | None = None
        self._latest: Resources | None = None
        self._is_logged = False

    def look(
        self,
        *,
        at_ms: int,
        reported_in: float = 0.0,
        reported_out: float = 0.0,
        nic_speed_gbps: float | None = None,
    ) -> Resources | None:
        """Return the use of each resource since the last measurement, or None at the first.

        Returns the former result if no time has passed. `at_ms` is from a monotonic clock. For the
        other parameters see `resources_between` and `network_kbits`.
        """
        cards = counting_cards(_cards())
        limits, now = self._limits(cards, nic_speed_gbps), self._count(at_ms, cards)
        if self._before is not None:
            found = resources_between(
                self._before, now, limits, reported_in=reported_in, reported_out=reported_out
            )
            if found is None:
                return self._latest
            self._latest = found
        self._before = now
        return self._latest

    def _count(self, at_ms: int, cards: list[Card]) -> Counters:
        cpu_seconds, memory_bytes = 0.0, 0
        for process in (self._process, *self._descendants()):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    memory_bytes += process.memory_info().rss
            except psutil.Error:
                continue  # It has just ended; its parent's counters will include it.
            cpu_seconds += times.user + times.system + times.children_user + times.children_system
        return Counters(
            at_ms=at_ms,
            cpu_seconds=cpu_seconds,
            memory_bytes=memory_bytes,
            bytes_in=sum(card.bytes_in for card in cards),
            bytes_out=sum(card.bytes_out for card in cards),
        )

    def _descendants(self) -> list[psutil.Process]:
        try:
            return self._process.children(recursive=True)
        except psutil.Error:
            return []

    def _limits(self, cards: list[Card], nic_speed_gbps: float | None) -> Limits:
        # Read at each measurement: limits can change while the process runs.
        allowed = cgroup_limits(_read)
        cores = _cores(allowed) if self._cpu_cores is None else self._cpu_cores
        memory = psutil.virtual_memory().total
        speed = network_kbits(cards, nic_speed_gbps=nic_speed_gbps)
        if speed <= 0 and not self._is_logged:
            self._is_logged = True
            _logger.info(
                "no network card says how fast it is, so the network counts as unused; set"
                " reports.nic_speed_gbps to weigh it",
                extra={"broker": self._broker, "cards": ", ".join(card.name for card in cards)},
            )
        return Limits(
            cpu_cores=cores,
            memory_bytes=min(allowed.memory_bytes or memory, memory),
            network_kbits=speed,
        )


def allowed_cores() -> float:
    """Return how many CPUs the control group and the affinity allow this process."""
    return _cores(cgroup_limits(_read))


def _cores(allowed: CgroupLimits) -> float:
    usable = float(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return min(allowed.cpu_cores or usable, usable)


def _cards() -> list[Card]:
    """Return the network cards that are up, without loopback."""
    counters = psutil.net_io_counters(pernic=True)
    return [
        Card(
            name=name,
            speed_mbits=0 if stats.speed == _SPEED_UNKNOWN else stats.speed,
            bytes_in=counters[name].bytes_recv,
            bytes_out=counters[name].bytes_sent,
        )
        for name, stats in sorted(psutil.net_if_stats().items())
        if stats.isup and "loopback" not in stats.flags.split(",") and name in counters
    ]


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
