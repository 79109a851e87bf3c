"""Order the events of a run in true time, and simulate the inaccurate clocks of machines.

True time is in microseconds from the beginning of the run. No simulated part can read it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from equipoise.brokers.agent.events import Instant

MICROSECONDS_PER_MS: Final = 1_000
MICROSECONDS_PER_SECOND: Final = 1_000_000
_MILLION: Final = 1_000_000


class Schedule:
    """The scheduled actions in order of true time. Actions at the same microsecond run in the order
    in which they were scheduled.
    """

    def __init__(self) -> None:
        self.now_us = 0
        self._order = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []

    def at(self, at_us: int, action: Callable[[], None]) -> None:
        """Run `action` at a true time, or now if that has passed."""
        self._order += 1
        heappush(self._due, (max(at_us, self.now_us), self._order, action))

    def after(self, wait_us: int, action: Callable[[], None]) -> None:
        """Run `action` after `wait_us`."""
        self.at(self.now_us + wait_us, action)

    def run_until(self, end_us: int) -> None:
        """Run all actions due up to `end_us`, and set the time to `end_us`."""
        due = self._due
        while due and due[0][0] <= end_us:
            self.now_us, _, action = heappop(due)
            action()
        self.now_us = end_us


class Clock:
    """The boot clock and the wall clock of one machine. One oscillator drives both, so both have
    `rate_error_ppm`.
    """

    def __init__(self, *, boot_start_us: int, wall_start_us: int, rate_error_ppm: int) -> None:
        self._boot_start_us = boot_start_us
        self._wall_start_us = wall_start_us
        self._rate_error_ppm = rate_error_ppm
        self._hidden_us = 0
        self._frozen_at_us: int | None = None

    def read(self, true_us: int) -> Instant:
        """Return what both clocks show at this true time."""
        ran_us = (true_us if self._frozen_at_us is None else self._frozen_at_us) - self._hidden_us
        boot_us, wall_us = (
            self._boot_start_us + self._counted(ran_us),
            self._wall_start_us + self._counted(true_us),
        )
        return Instant(boot_us // MICROSECONDS_PER_MS, wall_us // MICROSECONDS_PER_MS)

    def _counted(self, true_us: int) -> int:
        """Return the microseconds that the oscillator counts in a true duration."""
        return true_us + true_us * self._rate_error_ppm // _MILLION

    def true_us_of(self, boot_ms: int) -> int:
        """Return the first true time at which the boot clock shows `boot_ms`, provided that it is
        not frozen until then.
        """
        ran_us = boot_ms * MICROSECONDS_PER_MS - self._boot_start_us
        # Add one microsecond for each of the two divisions that round down.
        return ran_us * _MILLION // (_MILLION + self._rate_error_ppm) + self._hidden_us + 2

    def set_wall(self, by_us: int) -> None:
        """Set the wall clock forward or back."""
        self._wall_start_us += by_us

    def freeze(self, true_us: int) -> None:
        """Stop the boot clock only: a sleep that it does not count."""
        if self._frozen_at_us is None:
            self._frozen_at_us = true_us

    def thaw(self, true_us: int) -> None:
        """Let the boot clock continue from where it stopped."""
        if self._frozen_at_us is not None:
            self._hidden_us += true_us - self._frozen_at_us
            self._frozen_at_us = None
