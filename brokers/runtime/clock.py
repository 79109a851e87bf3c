"""Read the clocks for leases, at the moment of the call.

Event loops cache their time per turn, and CLOCK_MONOTONIC stops while the machine sleeps: neither
can judge a lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol

from equipoise.brokers.agent.events import Instant
from equipoise.channel.system.clocks import boot_ns

NANOSECONDS_PER_MILLISECOND: Final = 1_000_000

# A change of the interval takes effect within this time, so an operator can correct an interval of
# hours.
_LOOK_AGAIN_MS: Final = 1_000

# Each piece of work reads the clocks twice, and this takes half the time of `Instant`.
_tuple: Final = tuple.__new__


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
        boot_ms = boot_ns() // NANOSECONDS_PER_MILLISECOND
        return _tuple(Instant, (boot_ms, time.time_ns() // NANOSECONDS_PER_MILLISECOND))

    boot_ns = staticmethod(boot_ns)


async def interval_passed(interval_ms: Callable[[], float], clock: Clock) -> None:
    """Return once the current value of `interval_ms` has passed since the call."""
    began_ms = clock.now().boot_ms
    # Settings have no event.
    while (left_ms := began_ms + interval_ms() - clock.now().boot_ms) > 0:  # noqa: ASYNC110
        await asyncio.sleep(min(left_ms, _LOOK_AGAIN_MS) / 1_000)
