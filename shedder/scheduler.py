"""When to balance: the time of the next round, what is still in flight, and which bundles rest after a move.

May live here: the schedule of one broker's rounds, over time that comes in as an argument. What to move is a plug's
business, moving it the worker's.
"""

from __future__ import annotations

from typing import Final

# A move whose end was never told is given up after this long: longer than the worker waits for one.
IN_FLIGHT_MS_MAX: Final = 120_000


class Scheduler:
    """The rounds of one broker while it leads. Times are milliseconds of any one clock that does not jump.

    A round begins `interval_ms` after the one before, and not while a move of it is in flight: its cost would be counted
    neither here nor there with certainty. A bundle rests for `cool_down_ms` after its move.
    """

    def __init__(self, *, interval_ms: int, cool_down_ms: int) -> None:
        self._interval_ms = interval_ms
        self._cool_down_ms = cool_down_ms
        self._next_round_ms: int | None = None
        self._in_flight: dict[str, int] = {}
        self._ended: dict[str, int] = {}

    def due(self, now_ms: int) -> bool:
        """Whether a round is to begin now; if so, the next is an interval away.

        The first is an interval after the first question, so that a new leader has seen a report of everybody.
        """
        if self._next_round_ms is None:
            self._next_round_ms = now_ms + self._interval_ms
        self._in_flight = {bundle: since_ms for bundle, since_ms in self._in_flight.items() if now_ms - since_ms < IN_FLIGHT_MS_MAX}
        if now_ms < self._next_round_ms or self._in_flight:
            return False
        self._next_round_ms = now_ms + self._interval_ms
        return True

    def began(self, bundle: str, now_ms: int) -> None:
        """A move has been asked for."""
        self._in_flight[bundle] = now_ms

    def ended(self, bundle: str, now_ms: int) -> None:
        """A move is over, whatever came of it: the bundle rests from now on. One that was refused is not asked for at once again."""
        self._in_flight.pop(bundle, None)
        self._ended[bundle] = now_ms

    def resting(self, now_ms: int) -> tuple[str, ...]:
        """The bundles that must not be moved again yet, by name."""
        self._ended = {bundle: ended_ms for bundle, ended_ms in self._ended.items() if now_ms - ended_ms < self._cool_down_ms}
        return tuple(sorted(self._ended))
