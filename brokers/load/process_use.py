"""Measure the resources that this process and its descendants use, through psutil."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import psutil

from equipoise.brokers.load.cgroup_limits import cgroup_limits
from equipoise.brokers.load.resource_use import (
    Card,
    Counters,
    Limits,
    counting_cards,
    network_kbits,
    resources_between,
)
from equipoise.shedder.loads import Resources

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
        usable = float(
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
        cores = (
            self._cpu_cores
            if self._cpu_cores is not None
            else min(allowed.cpu_cores or usable, usable)
        )
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
