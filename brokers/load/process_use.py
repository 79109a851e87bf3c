"""Looks at what this process and its descendants use of the machine, through psutil.

May live here: what is asked of the operating system. What it comes to is said by `brokers.balancing.resource_use`.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import psutil

from equipoise.brokers.balancing.resource_use import Card, Counters, Limits, counting_cards, network_kbits, resources_between
from equipoise.brokers.load.cgroup_limits import cgroup_limits
from equipoise.shedder.loads import Resources

_logger: Final = logging.getLogger(__name__)

# psutil says 65,535 where a card does not know its speed on some systems, and 0 on others.
_SPEED_UNKNOWN: Final = 65_535


class ProcessUse:
    """The use of resources from one look to the next. A look reads some hundred small files: make it in a thread, one at a time."""

    def __init__(self, *, broker: str, cpu_cores: float | None = None) -> None:
        """`cpu_cores`: how many CPUs there are for this broker; None: as many as the system lets the process use."""
        self._broker = broker
        self._cpu_cores = cpu_cores
        self._process = psutil.Process()
        self._before: Counters | None = None
        self._latest: Resources | None = None
        self._is_told = False

    def look(self, *, at_ms: int, told_in: float = 0.0, told_out: float = 0.0, nic_speed_gbps: float | None = None) -> Resources | None:
        """The use of each resource since the look before, or the one before that if no time has passed; None at the first look.

        `at_ms` is of a clock that never goes back. The others are as in `resources_between` and `network_kbits`.
        """
        cards = counting_cards(_cards())
        limits, now = self._limits(cards, nic_speed_gbps), self._count(at_ms, cards)
        if self._before is not None:
            found = resources_between(self._before, now, limits, told_in=told_in, told_out=told_out)
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
                continue  # It has just ended, and counts at its parent once that has taken note.
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
        allowed = cgroup_limits(_read)  # Anew at each look: a limit can be changed while the process runs.
        usable = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        cores = self._cpu_cores if self._cpu_cores is not None else min(allowed.cpu_cores or usable, usable)
        memory = psutil.virtual_memory().total
        speed = network_kbits(cards, nic_speed_gbps=nic_speed_gbps)
        if speed <= 0 and not self._is_told:
            self._is_told = True
            _logger.info(
                "no network card says how fast it is, so the network counts as unused; set reports.nic_speed_gbps to weigh it",
                extra={"broker": self._broker, "cards": ", ".join(card.name for card in cards)},
            )
        return Limits(cpu_cores=cores, memory_bytes=min(allowed.memory_bytes or memory, memory), network_kbits=speed)


def _cards() -> list[Card]:
    """The network cards that are up, without loopback."""
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
