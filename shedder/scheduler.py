"""Schedule rounds of balancing: when the next is due, which of its moves may start, what is in
flight, and which bundles rest.

Time comes in as an argument. The plan comes from a shedder, and the broker carries it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from equipoise.shedder.plan import Move

# How long the first report of a broker that joined is awaited. After that, it is weighed in the
# next regular round.
_NEWCOMER_MS: Final = 10_000

# A broker that joins so long after another has left replaces it. More brokers may be restarted, one
# after another: each begins to drain soon after the last has joined. What the ones that are back
# get from those is then what they need. The calm ends a rolling restart, but brokers that come and
# go keep nobody from its share for longer than the last figure.
_REPLACED_MS: Final = 60_000
_CALM_MS: Final = 5_000
_RETURN_MS_MAX: Final = 60_000

RETURNS: Final = (
    "it has been restarted, and takes bundles of brokers that drain; it gives and takes others when"
    f" no broker has come or gone for {_CALM_MS // 1_000} s"
)
"""Why a broker takes no part in a round."""

Ends = tuple[str | None, str | None]
"""The brokers that a bundle moves from and to; None if unknown."""


class Scheduler:
    """The rounds of one broker while it leads, and what it needs to know when it becomes the
    leader.

    * Times are milliseconds of a clock that does not jump.
    * A round starts one interval after the last, but not while a move waits or is in flight: the
      cost of the bundle could not be assigned to either broker.
    * When the first report of a broker that joined arrives, a round starts at once. While it finds
      moves, the next follows it. So it does while a broker is filled.
    * In a rolling restart, brokers that are back are filled at its end: before that, they would be
      filled with bundles that the next restart takes away from their owners in any case.
    * A bundle rests after every move, by any broker.
    """

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._waiting: list[Move] = []
        self._in_flight: dict[str, Ends] = {}
        self._moved: dict[str, int] = {}
        self._newcomers: dict[str, int] = {}
        # The brokers that have been restarted, and when they joined; when a broker left last, and
        # when one came or went.
        self._returned: dict[str, int] = {}
        self._left_ms = self._changed_ms = -_REPLACED_MS
        # Whether a round is due at once, and whether the present round was.
        self._fills = self._is_fill = False

    def joined(self, broker: str, at_ms: int) -> None:
        """Record that a broker joined at `at_ms`: its first report starts a round."""
        self._newcomers[broker] = at_ms
        self._changed_ms = max(self._changed_ms, at_ms)
        if at_ms - self._left_ms < _REPLACED_MS:
            self._returned[broker] = at_ms

    def left(self, at_ms: int) -> None:
        """Record that a broker drains, or has left, at `at_ms`."""
        self._left_ms = max(self._left_ms, at_ms)
        self._changed_ms = max(self._changed_ms, at_ms)

    def returning(self, now_ms: int) -> Mapping[str, str]:
        """Return the brokers that take no part in rounds yet, because a rolling restart may go on,
        and why. When that has ended, a round is due.
        """
        is_calm = now_ms - self._changed_ms >= _CALM_MS
        returning = {
            broker: joined_ms
            for broker, joined_ms in self._returned.items()
            if not is_calm and now_ms - joined_ms < _RETURN_MS_MAX
        }
        self._fills = self._fills or len(returning) < len(self._returned)
        self._returned = returning
        return dict.fromkeys(returning, RETURNS)

    def awaited(self, now_ms: int) -> frozenset[str]:
        """Return the brokers that joined lately and whose first report is awaited."""
        self._newcomers = {
            broker: joined_ms
            for broker, joined_ms in self._newcomers.items()
            if now_ms - joined_ms < _NEWCOMER_MS
        }
        return frozenset(self._newcomers)

    def reported(self, brokers: Collection[str]) -> None:
        """Record that these brokers have reported since they joined. If one was awaited, a round is
        due.
        """
        for broker in brokers:
            if self._newcomers.pop(broker, None) is not None:
                self._fills = True

    def due(self, now_ms: int, *, interval_ms: int) -> bool:
        """Return whether a round starts now. If so, the next is due one interval later.

        The first is due one interval after the first call, so that a new leader has a report of
        every broker.
        """
        if self._began_ms is None:
            self._began_ms = now_ms
        if (
            self._waiting
            or self._in_flight
            or not (self._fills or now_ms - self._began_ms >= interval_ms)
        ):
            return False
        self._began_ms = now_ms
        # A round that is not planned (balancing is off or paused, or the round failed) must not
        # start again at once, over and over.
        self._is_fill, self._fills = self._fills, False
        return True

    def planned(self, moves: Iterable[Move], *, fills: bool = False) -> None:
        """Queue these moves, in their order. Without any, the brokers that joined are filled.
        `fills` is as in `Plan`.
        """
        self._waiting = list(moves)
        self._fills = self._fills or ((self._is_fill or fills) and bool(self._waiting))
        self._is_fill = False

    def dropped(self) -> tuple[Move, ...]:
        """Remove and return the moves that have not started."""
        dropped, self._waiting = tuple(self._waiting), []
        return dropped

    def begin(
        self, others: Mapping[str, Ends], *, moves_max: int, broker_moves_max: int
    ) -> tuple[Move, ...]:
        """Return the planned moves that may start now. They count as in flight.

        At most `moves_max` moves run in the cluster, and `broker_moves_max` from and to one broker.
        `others` are the bundles that move on the channel, by any broker. A move whose brokers are
        busy does not block the moves after it.
        """
        in_flight = {**others, **self._in_flight}
        busy = Counter(
            broker for ends in in_flight.values() for broker in ends if broker is not None
        )
        begun: list[Move] = []
        waiting: list[Move] = []
        for move in self._waiting:
            ends = (move.source, move.destination)
            has_room = all(broker is None or busy[broker] < broker_moves_max for broker in ends)
            if (
                has_room
                and move.bundle not in in_flight
                and len(in_flight) + len(begun) < moves_max
            ):
                busy.update(broker for broker in ends if broker is not None)
                begun.append(move)
            else:
                waiting.append(move)
        self._waiting = waiting
        self._in_flight.update({move.bundle: (move.source, move.destination) for move in begun})
        return tuple(begun)

    def ended(self, bundle: str, now_ms: int) -> None:
        """Record the end of a move with any result: the bundle rests now. So a refused move is not
        retried at once.
        """
        self._in_flight.pop(bundle, None)
        self.moved(bundle, now_ms)

    def moved(self, bundle: str, at_ms: int) -> None:
        """Record that a bundle was moved, split or merged by any broker: it rests from `at_ms` on,
        or from the latest such time.
        """
        self._moved[bundle] = max(at_ms, self._moved.get(bundle, at_ms))

    def forget(self, now_ms: int, *, rest_ms: int) -> None:
        """Forget bundles that have rested. Brokers that run no rounds call this, too, because they
        may never lead.
        """
        self._moved = {
            bundle: moved_ms
            for bundle, moved_ms in self._moved.items()
            if now_ms - moved_ms < rest_ms
        }

    def resting(self, now_ms: int, *, rest_ms: int) -> tuple[str, ...]:
        """Return the bundles that must not move again yet, by name."""
        self.forget(now_ms, rest_ms=rest_ms)
        return tuple(sorted(self._moved))
