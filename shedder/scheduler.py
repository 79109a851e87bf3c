"""When to balance: the time of the next round, which of its moves may begin, what is in flight, and which bundles rest.

May live here: the schedule of one broker's rounds, over time that comes in as an argument. What to move is a plug's
business, moving it the worker's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from equipoise.shedder.plan import Move

Ends = tuple[str | None, str | None]
"""The brokers that a bundle moves from and to, as far as they are known."""


class Scheduler:
    """The rounds of one broker while it leads, and what it has to know when it begins to.

    Times are milliseconds of any one clock that does not jump.

    A round begins an interval after the one before, and not while a move of it waits or is in flight: its cost would be
    counted neither here nor there with certainty. A bundle rests after its move, and after those that others made.
    """

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._waiting: list[Move] = []
        self._in_flight: dict[str, Ends] = {}
        self._moved: dict[str, int] = {}

    def due(self, now_ms: int, *, interval_ms: int) -> bool:
        """Whether a round is to begin now; if so, the next is an interval away.

        The first is an interval after the first question, so that a new leader has seen a report of everybody.
        """
        if self._began_ms is None:
            self._began_ms = now_ms
        if now_ms - self._began_ms < interval_ms or self._waiting or self._in_flight:
            return False
        self._began_ms = now_ms
        return True

    def planned(self, moves: Iterable[Move]) -> None:
        """These are to be made as soon as there is room for them, in their order."""
        self._waiting = list(moves)

    def dropped(self) -> tuple[Move, ...]:
        """The moves that had not begun, and will not."""
        dropped, self._waiting = tuple(self._waiting), []
        return dropped

    def begin(self, others: Mapping[str, Ends], *, moves_max: int, broker_moves_max: int) -> tuple[Move, ...]:
        """The planned moves for which there is room; they are in flight from now on.

        There may be `moves_max` in the cluster, and `broker_moves_max` at one broker, those from it and to it together.
        `others` are the bundles that the channel shows on the move, whoever moves them. One move whose ends are busy does not
        hold up those after it.
        """
        in_flight = {**others, **self._in_flight}
        busy = Counter(broker for ends in in_flight.values() for broker in ends if broker is not None)
        begun: list[Move] = []
        waiting: list[Move] = []
        for move in self._waiting:
            ends = (move.source, move.destination)
            has_room = all(broker is None or busy[broker] < broker_moves_max for broker in ends)
            if has_room and move.bundle not in in_flight and len(in_flight) + len(begun) < moves_max:
                busy.update(broker for broker in ends if broker is not None)
                begun.append(move)
            else:
                waiting.append(move)
        self._waiting = waiting
        self._in_flight.update({move.bundle: (move.source, move.destination) for move in begun})
        return tuple(begun)

    def ended(self, bundle: str, now_ms: int) -> None:
        """A move is over, whatever came of it: the bundle rests from now on. One that was refused is not asked for at once again."""
        self._in_flight.pop(bundle, None)
        self.moved(bundle, now_ms)

    def moved(self, bundle: str, at_ms: int) -> None:
        """A bundle has moved, or was cut or joined, whoever did it: it rests from `at_ms` on, or from later if that is known."""
        self._moved[bundle] = max(at_ms, self._moved.get(bundle, at_ms))

    def forget(self, now_ms: int, *, rest_ms: int) -> None:
        """Keep no bundle that has rested: for brokers that ask for no rounds, and take the lead in an hour, or never."""
        self._moved = {bundle: moved_ms for bundle, moved_ms in self._moved.items() if now_ms - moved_ms < rest_ms}

    def resting(self, now_ms: int, *, rest_ms: int) -> tuple[str, ...]:
        """The bundles that must not be moved again yet, by name."""
        self.forget(now_ms, rest_ms=rest_ms)
        return tuple(sorted(self._moved))
