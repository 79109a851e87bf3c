"""The clock by which leases and silence are counted: it never goes back, and runs on while the machine sleeps.

May live here: that clock.
"""

from __future__ import annotations

import time
from typing import Final

# Linux has a clock that runs on while the machine sleeps. Elsewhere the monotonic one is the nearest there is, and for a lease
# the comparison with the wall clock is what notices a sleep.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ns() -> int:
    """Nanoseconds of a clock that runs on while the machine sleeps, where the system has one."""
    return time.clock_gettime_ns(_BOOT_CLOCK)
