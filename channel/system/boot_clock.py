"""Read the clock for leases and silence: it never goes back and runs on while the machine
sleeps.
"""

from __future__ import annotations

import time
from typing import Final

# Only Linux has this clock. Elsewhere the monotonic clock is the nearest one, and a lease notices
# sleep by comparing it with the wall clock.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ns() -> int:
    """Return nanoseconds of a clock that runs on during sleep, where the system has one."""
    return time.clock_gettime_ns(_BOOT_CLOCK)
