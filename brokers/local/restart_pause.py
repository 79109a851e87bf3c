"""Calculate how long to wait before a process that has ended is restarted."""

from __future__ import annotations

import time
from typing import Final

RESTART_MS_MIN: Final = 500
RESTART_MS_MAX: Final = 10_000
"""The pause doubles each time the process lived for less than `STEADY_MS`."""

STEADY_MS: Final = 30_000


class RestartPause:
    """The pauses between the runs of one process."""

    def __init__(self) -> None:
        self._started_ns = 0
        self._pause_ms = RESTART_MS_MIN

    def started(self) -> None:
        """Note that the process starts now."""
        self._started_ns = time.monotonic_ns()

    def next_ms(self) -> int:
        """Return how long to wait before the next start, in milliseconds."""
        lived_ms = (time.monotonic_ns() - self._started_ns) // 1_000_000
        pause_ms = RESTART_MS_MIN if lived_ms >= STEADY_MS else self._pause_ms
        self._pause_ms = min(2 * pause_ms, RESTART_MS_MAX)
        return pause_ms
