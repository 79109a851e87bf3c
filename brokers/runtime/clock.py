"""Read the clocks for leases, at the moment of the call.

Event loops cache their time per turn, and CLOCK_MONOTONIC stops while the machine sleeps: neither can judge a lease.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

from equipoise.brokers.agent.events import Instant
from equipoise.channel.system.boot_clock import boot_ns

_NANOSECONDS_PER_MILLISECOND: Final = 1_000_000


class Clock(Protocol):
    """A source of time. In tests and the simulator, time passes only on request."""

    def now(self) -> Instant:
        """Return both clocks, now."""
        ...

    def boot_ns(self) -> int:
        """Return boot time in nanoseconds: it never jumps, and runs on during sleep."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now(self) -> Instant:
        """Return both clocks, now."""
        return Instant(self.boot_ns() // _NANOSECONDS_PER_MILLISECOND, time.time_ns() // _NANOSECONDS_PER_MILLISECOND)

    def boot_ns(self) -> int:
        """Return boot time in nanoseconds: it never jumps, and runs on during sleep."""
        return boot_ns()
