"""Something that fails again and again, as a broker's log tells of it: the first failure, one now and then, and the end.

May live here: when a line is due, and for how many failures it stands. What it says is for those who ask.
"""

from __future__ import annotations


class RepeatedFailures:
    """The failures of one thing that one broker does over and over. An outage ends with the first time that it succeeds."""

    def __init__(self, *, told_again_ms: int) -> None:
        """Between two lines that something has failed lie `told_again_ms` at least."""
        self._told_again_ms = told_again_ms
        self._quiet_until_ms: int | None = None
        self._untold = 0
        self._is_told = False

    def failed(self, now_ms: int) -> int | None:
        """How many failures a line stands for that is due now; None if none is. `now_ms` is of a clock that never goes back."""
        self._untold += 1
        if self._quiet_until_ms is not None and now_ms < self._quiet_until_ms:
            return None
        # From here on, whether or not it succeeds in between: what succeeds every other time is no less loud.
        self._quiet_until_ms = now_ms + self._told_again_ms
        self._is_told = True
        return self._counted()

    def succeeded(self) -> int | None:
        """How many failures nobody was told of when an outage that was told ends now; None if none does."""
        if not self._is_told:
            return None
        self._is_told = False
        return self._counted()

    def _counted(self) -> int:
        untold, self._untold = self._untold, 0
        return untold
