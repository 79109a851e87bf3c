"""The error that checkers raise."""

from __future__ import annotations

from equipoise.channel.core.errors import Bug


class InvariantViolated(Bug):
    """An invariant of the protocol is broken in a simulated run: the protocol, the fold or the
    agent is wrong.
    """

    def __init__(self, *, invariant: str, what: str) -> None:
        """`invariant` is its number (or section) in the protocol and its name. `what` describes
        what was seen.
        """
        self.invariant = invariant
        self.what = what
        super().__init__(f"{invariant}: {what}; replay the run with its seed and read its story")
