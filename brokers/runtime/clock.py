"""Read the clocks of a broker's process at the moment of the call.

All time for leases is read here. Event loops cache their time per turn, and CLOCK_MONOTONIC stops while the machine sleeps, so neither can
decide whether a lease is good.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from equipoise.brokers.agent.events import Instant
from equipoise.channel.system.boot_clock import boot_ns

_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000


class Clock(Protocol):
    """A source of time. Tests and the simulator have their own, whose time passes only on request."""

    def now(self) -> Instant:
        """Return both clocks, now."""
        ...

    def boot_ns(self) -> int:
        """Return boot time in nanoseconds. It never jumps, and runs on while the machine sleeps."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> Instant:
        """Return both clocks, now."""
        return Instant(self.boot_ns() // _NANOSECONDS_PER_MILLISECOND, time.time_ns() // _NANOSECONDS_PER_MILLISECOND)

    def boot_ns(self) -> int:
        """Return boot time in nanoseconds. It never jumps, and runs on while the machine sleeps."""
        return boot_ns()
