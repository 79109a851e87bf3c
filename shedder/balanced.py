"""Levelling: moves bundles from brokers that are fuller than the mean to those that are emptier, by capacity.

May live here: the policy `BalancedShedder`. A broker's fill is the cost of its bundles divided by its capacity; the mean is the
cost of all divided by the capacity of all.

Why it does not oscillate. A round begins only when a broker is further from the mean than `start_ratio`, and then goes on
until none is further than `settle_ratio`: between the two nothing happens. And a bundle moves only if that would be right
even if it weighed half as much again (`wobble_ratio`), so that no measurement which is off by less brings it back.

What one move of cost c from a source s to a destination d achieves. Unevenness is the sum of cost^2 / capacity, least when
all fills are equal. With the pull P = fill(s) * capacity(d) - cost(d), it falls for 0 < c < 2x and most for
c = x = P * capacity(s) / (capacity(s) + capacity(d)), where both fills become equal; and d stays below what s was if c < P.

A bundle goes only to whom the rules allow it: what they forbid would be moved back, and again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from equipoise.shedder.plan import Idle, Move, Plan, Stay
from equipoise.shedder.reported import told_percent
from equipoise.shedder.snapshot import Snapshot, WeighedBroker, WeighedBundle

ASKED_MAX: Final = 500_000
"""Bundles of which a plan asks the rules, times brokers: with a policy for each an answer takes half a microsecond a broker."""

LOOKS_MAX: Final = 500_000
"""So often a plan looks whether a bundle may go somewhere, which takes half a microsecond once the rules have answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedShedder:
    """See the module. Ratios are parts of the mean, or of a bundle's cost; `moves_max` bounds the moves of one round.

    A round of 4 moves each 5 seconds empties a broker of 256 bundles in five minutes, and disturbs the callers of 4
    bundles at a time for one hop of the log.
    """

    moves_max: int = 4
    start_ratio: float = 0.25
    settle_ratio: float = 0.10
    wobble_ratio: float = 0.50

    def plan(self, snapshot: Snapshot) -> Plan:
        """See `Shedder.plan`."""
        brokers = sorted(snapshot.brokers, key=lambda broker: broker.broker)
        piles = [_Pile.of(broker) for broker in brokers if broker.barred is None]
        stays = [Stay(subject=broker.broker, reason=broker.barred) for broker in brokers if broker.barred is not None]
        capacity = sum(pile.capacity for pile in piles)
        mean = sum(pile.cost for pile in piles) / capacity if capacity else 0.0
        moves: list[Move] = []
        rules = _Rules(snapshot)
        if _is_uneven(piles, mean, self.start_ratio):
            while len(moves) < self.moves_max and _is_uneven(piles, mean, self.settle_ratio):
                move = self._next_move(piles, mean, rules)
                if move is None:
                    break
                moves.append(move)
        stays += self._stays(piles, mean, moves)
        in_order = tuple(sorted(stays, key=lambda stay: stay.subject))
        return Plan(moves=tuple(moves), stays=in_order, idle=None if moves else self._idle(piles, mean), memory=snapshot.memory)

    def _idle(self, piles: Sequence[_Pile], mean: float) -> Idle:
        """Why nothing moves at all, counted as `shedder.transfer` counts it."""
        if not piles:
            return Idle(result="Skip", cause="NoBrokers", reason="there is no fresh load of any broker")
        if _is_uneven(piles, mean, self.start_ratio):
            return Idle(result="Skip", cause="NoBundles", reason="the load is uneven, and no bundle can be moved: see each broker")
        reason = f"the load is even: nobody is further from the mean than {_percent(self.start_ratio, 1)} of it"
        return Idle(result="Skip", cause="HitCount", reason=reason)

    def _next_move(self, piles: Sequence[_Pile], mean: float, rules: _Rules) -> Move | None:
        """Carry out, on the piles, the move of the fullest that can give to the emptiest that can take."""
        givers = sorted((pile for pile in piles if pile.fill > mean), key=lambda pile: (-pile.fill, pile.broker))
        takers = sorted((pile for pile in piles if pile.fill < mean), key=lambda pile: (pile.fill, pile.broker))
        for source in givers:
            for destination in takers:
                bundle = self._worth_moving(source, destination, rules)
                if bundle is not None:
                    move = _told(bundle, source, destination, mean)
                    source.give(bundle, destination)
                    return move
        return None

    def _worth_moving(self, source: _Pile, destination: _Pile, rules: _Rules) -> WeighedBundle | None:
        """The bundle nearest to the best cost, none of those that the head of the module rules out; ties by cost and name."""
        pull = source.fill * destination.capacity - destination.cost
        best = pull * source.capacity / (source.capacity + destination.capacity)
        cost_max = min(pull, 2 * best) / (1 + self.wobble_ratio)
        for bundle in source.nearest(best, cost_max):
            refusal = rules.refusal(bundle.name, destination.broker)
            if refusal is None:
                return bundle
            source.kept = source.kept or f"{bundle.name} not to {destination.broker} for one: {refusal}"
            if rules.is_weary:
                break
        return None

    def _stays(self, piles: Sequence[_Pile], mean: float, moves: Sequence[Move]) -> Iterable[Stay]:
        given = {move.source for move in moves}
        for pile in piles:
            if pile.broker in given:
                continue
            carries = f"it carries {_percent(pile.fill, mean)} of the mean load"
            if pile.fill <= mean * (1 + self.start_ratio):
                yield Stay(subject=pile.broker, reason=f"{carries}, of which {_percent(1 + self.start_ratio, 1)} is let be")
                continue
            for bundle in pile.barred:
                yield Stay(subject=bundle.name, reason=f"{bundle.barred}, although {pile.broker} has too much")
            if len(moves) == self.moves_max:
                yield Stay(subject=pile.broker, reason=f"{carries}, and its turn comes in the next round")
            else:
                yield Stay(subject=pile.broker, reason=f"{carries}, but {pile.why_stuck(mean)}")


@dataclass(slots=True, kw_only=True)
class _Pile:
    """One broker while a plan is made: `movable` are the bundles that it may still give, by cost and name.

    `kept` tells of the first that the rules did not let go where it was to go.
    """

    broker: str
    capacity: int
    cost: float
    movable: list[WeighedBundle]
    barred: list[WeighedBundle] = field(default_factory=list)
    kept: str | None = None

    @classmethod
    def of(cls, broker: WeighedBroker) -> _Pile:
        """The pile of a broker before the first move."""
        in_order = sorted(broker.bundles, key=lambda bundle: (bundle.cost, bundle.name))
        return cls(
            broker=broker.broker,
            capacity=broker.capacity,
            cost=sum(bundle.cost for bundle in in_order),
            movable=[bundle for bundle in in_order if bundle.barred is None],
            barred=[bundle for bundle in in_order if bundle.barred is not None],
        )

    @property
    def fill(self) -> float:
        """Cost for its capacity."""
        return self.cost / self.capacity

    def nearest(self, cost: float, cost_max: float) -> Iterator[WeighedBundle]:
        """The movable bundles of at most `cost_max`, the nearest to `cost` first; of equally near ones by cost and name."""
        end = bisect_right(self.movable, cost_max, key=lambda bundle: bundle.cost)
        above = below = min(end, bisect_left(self.movable, cost, key=lambda bundle: bundle.cost))
        while below > 0 or above < end:
            if above == end or (below > 0 and cost - self.movable[below - 1].cost <= self.movable[above].cost - cost):
                last, below = below, bisect_left(self.movable, self.movable[below - 1].cost, hi=below, key=lambda bundle: bundle.cost)
                yield from self.movable[below:last]
            else:
                yield self.movable[above]
                above += 1

    def give(self, bundle: WeighedBundle, destination: _Pile) -> None:
        """Move a bundle over; it does not move again in this plan."""
        self.movable.remove(bundle)
        self.cost -= bundle.cost
        destination.cost += bundle.cost

    def why_stuck(self, mean: float) -> str:
        """Why a pile that is too high gives nothing."""
        if not self.movable:
            return "none of its bundles may be moved now"
        if self.kept is not None:
            return f"the rules keep its bundles from those that carry less: {self.kept}"
        heaviest = self.movable[-1]
        return (
            f"no move would level it: of its {len(self.movable)} bundles {heaviest.name} is the heaviest, "
            f"with {_percent(heaviest.cost / self.capacity, mean)} of the mean load; split it"
        )


class _Rules:
    """Who may have which bundle, asked once for each; past the bounds nobody may have anything more in this plan."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[str, tuple[frozenset[str], Mapping[str, str]]] = {}  # Who may have a bundle, and of the others why not.
        self._looks = 0

    @property
    def is_weary(self) -> bool:
        """Whether it is enough for one plan."""
        return self._looks >= LOOKS_MAX or len(self._known) * len(self._snapshot.live) >= ASKED_MAX

    def refusal(self, bundle: str, broker: str) -> str | None:
        """Why `broker` may not have `bundle`; None if it may."""
        if self._snapshot.rules is None:
            return None
        self._looks += 1
        if bundle not in self._known:
            if self.is_weary:
                return "the rules keep more than one round can look at"
            candidates = self._snapshot.candidates(bundle)
            self._known[bundle] = frozenset(candidates.allowed), candidates.refused
        allowed, refused = self._known[bundle]
        return None if broker in allowed else refused.get(broker, f"the rules keep it from {broker}")


def _is_uneven(piles: Sequence[_Pile], mean: float, ratio: float) -> bool:
    return any(abs(pile.fill - mean) > ratio * mean for pile in piles)


def _told(bundle: WeighedBundle, source: _Pile, destination: _Pile, mean: float) -> Move:
    """The move with its reason; called before it is carried out, so that it tells of the piles as they are."""
    reason = (
        f"levelling: {source.broker} carries {_percent(source.fill, mean)} of the mean load, {destination.broker} "
        f"{_percent(destination.fill, mean)}; the bundle is {_percent(bundle.cost, source.cost)} of what {source.broker} carries"
    )
    return Move(bundle=bundle.name, source=source.broker, destination=destination.broker, reason=reason)


def _percent(part: float, whole: float) -> str:
    return told_percent(part / whole if whole else 0.0)
