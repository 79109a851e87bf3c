"""Decide when to log a repeated failure: the first, one per interval, and the end."""

from __future__ import annotations


class RepeatedFailures:
    """The repeated failures of one task. An outage ends with the first success."""

    def __init__(self, *, told_again_ms: int) -> None:
        """`told_again_ms` is the shortest time between two lines about failures."""
        self._told_again_ms = told_again_ms
        self._quiet_until_ms: int | None = None
        self._untold = 0
        self._is_told = False

    def failed(self, now_ms: int) -> int | None:
        """Return how many failures a line due now stands for; None if none is due. `now_ms` never goes back."""
        self._untold += 1
        if self._quiet_until_ms is not None and now_ms < self._quiet_until_ms:
            return None
        # Successes do not reset this: a task that fails every other time must not log more.
        self._quiet_until_ms = now_ms + self._told_again_ms
        self._is_told = True
        return self._counted()

    def succeeded(self) -> int | None:
        """Return the number of unlogged failures if a logged outage ends now; else None."""
        if not self._is_told:
            return None
        self._is_told = False
        return self._counted()

    def _counted(self) -> int:
        untold, self._untold = self._untold, 0
        return untold
