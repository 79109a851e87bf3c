"""The clocks of a broker's process, read at the moment of asking.

May live here: the one place that reads time for leases. Event loops cache their time per turn, and CLOCK_MONOTONIC stops
while the machine sleeps: neither may answer whether a lease is good.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from equipoise.brokers.agent.events import Instant
from equipoise.channel.system.boot_clock import boot_ns

_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000


class Clock(Protocol):
    """What reads time. Tests and the simulator have one of their own, so that time passes only when they say so."""

    def now(self) -> Instant:
        """Both clocks, now."""
        ...

    def boot_ns(self) -> int:
        """Boot time in nanoseconds: never resyncs, and runs on while the machine sleeps."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> Instant:
        """Both clocks, now."""
        return Instant(self.boot_ns() // _NANOSECONDS_PER_MILLISECOND, time.time_ns() // _NANOSECONDS_PER_MILLISECOND)

    def boot_ns(self) -> int:
        """Boot time in nanoseconds: never resyncs, and runs on while the machine sleeps."""
        return boot_ns()
