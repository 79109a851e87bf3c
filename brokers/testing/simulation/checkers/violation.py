"""What a checker raises.

May live here: the one error of the checkers.
"""

from __future__ import annotations

from equipoise.channel.core.errors import Bug


class InvariantViolated(Bug):
    """An invariant of the protocol does not hold in a simulated run: the protocol, the fold or the agent is wrong."""

    def __init__(self, *, invariant: str, what: str) -> None:
        """`invariant` is its number in the protocol (or the section that says it) and its name, `what` tells what was seen."""
        self.invariant = invariant
        self.what = what
        super().__init__(f"{invariant}: {what}; replay the run with its seed and read its story")
