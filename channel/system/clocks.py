"""Read the clock for leases and silence, choose the time of an appended entry, find the position of
a time although clocks were wrong, and pass one deadline down a whole request.

All adapters of `Log` use these clocks. `channel.core.log` states the contract of times.

Deadlines are for the IO edge only. Pure modules take their time as a number.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from equipoise.channel.core.errors import DeadlineExceeded
from equipoise.channel.core.log import CLOCK_AHEAD_MS_MAX
from equipoise.channel.core.records import INTEGER_MAX

Result = TypeVar("Result")


def now_ms() -> int:
    """Return the monotonic clock in milliseconds."""
    return time.monotonic_ns() // 1_000_000


def unix_ms() -> int:
    """Return Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A moment: `timeout_ms` milliseconds after `started_ns`, an instant of the monotonic clock."""

    started_ns: int
    timeout_ms: int

    def __repr__(self) -> str:
        return f"<Deadline: {self.remaining_ms()} of {self.timeout_ms} ms left>"

    @classmethod
    def after(cls, *, timeout_ms: int) -> Deadline:
        """Return the deadline that is `timeout_ms` from now."""
        return cls(started_ns=time.monotonic_ns(), timeout_ms=timeout_ms)

    def remaining_ms(self) -> int:
        """Return the time left in milliseconds; 0 once it is over. It rounds up, so that no caller
        spins through the last millisecond.
        """
        return max(0, self.timeout_ms - (time.monotonic_ns() - self.started_ns) // 1_000_000)

    def exceeded(self, what: str) -> DeadlineExceeded:
        """Return the error to raise when `what` did not happen in time."""
        return DeadlineExceeded(what=what, waited_ms=self.timeout_ms)

    def check(self, what: str) -> None:
        """Raise `DeadlineExceeded` if the deadline is over before `what` happened."""
        if not self.remaining_ms():
            raise self.exceeded(what)

    async def wait(self, awaited: Awaitable[Result], *, what: str) -> Result:
        """Return the result of `awaited`. Cancel it at the deadline, and raise `DeadlineExceeded`
        with `what`.

        Raises the errors of `awaited`, including its own `TimeoutError`, such as a socket's.
        """
        limit = asyncio.timeout(self.remaining_ms() / 1_000)
        try:
            async with limit:
                return await awaited
        except TimeoutError:
            if not limit.expired():
                raise
            raise self.exceeded(what) from None


# Only Linux has this clock. Elsewhere the monotonic clock is the nearest one, and a lease notices
# sleep by comparing it with the wall clock.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ns() -> int:
    """Return nanoseconds of a clock that never goes back and runs on during sleep, where the system
    has one.
    """
    return time.clock_gettime_ns(_BOOT_CLOCK)


FirstTimed = Callable[[int, int, int, int], tuple[int, int] | None]
"""Return offset and time of the first entry from a position on (1), below another (2), whose time
lies between two (3 and 4, included)."""


def next_ms(before_ms: int) -> int:
    """Return the time of an entry that is appended now, where the newest has the time `before_ms`.

    The time does not fall if a clock is set back a little. A time far ahead was wrong and does not
    bind later entries.
    """
    now_ms = time.time_ns() // 1_000_000
    return now_ms if before_ms - now_ms > CLOCK_AHEAD_MS_MAX else max(before_ms, now_ms)


def latest_ms() -> int:
    """Return the latest time that an entry may have now."""
    return time.time_ns() // 1_000_000 + CLOCK_AHEAD_MS_MAX


def position_by(first_timed: FirstTimed, time_ms: int, *, low: int, high: int) -> int:
    """Return `Log.position_at` for the entries from `low` on below `high`; `high` if there is none.

    Times rise with offsets, so a few reads find it, and no append pays for an index. Where wrong
    clocks break the order, a later `time_ms` still never gives a lower position.
    """
    latest = latest_ms()
    oldest = first_timed(low, high, 1, latest)
    if oldest is None:  # This machine's clock is behind all times of the log, and refutes none.
        latest = INTEGER_MAX
    oldest_ms = 1 if oldest is None else oldest[1]
    while low < high:
        middle = (low + high) // 2
        timed = first_timed(middle, high, oldest_ms, latest)
        if timed is None or timed[1] >= time_ms:
            high = middle
        else:
            low = timed[0] + 1
    return low


def ahead_by(first_timed: FirstTimed, position: int, *, below: int) -> int | None:
    """Return `Log.ahead` for the entries from `position` on below another."""
    timed = first_timed(position, below, latest_ms() + 1, INTEGER_MAX)
    return None if timed is None else timed[0]
