"""Implement `BalancedShedder`: move bundles from brokers above the mean fill to brokers below it.

Theory of operation:

* A broker's fill is the cost of its bundles divided by its capacity. The mean is the total cost divided by the total capacity.
* It does not oscillate. A round starts only if a broker is further from the mean than `start_ratio`, and continues until none is further
  than `settle_ratio`. Between the two, nothing happens.
* A bundle moves only if the move would be right even if it weighed half as much again (`wobble_ratio`). So a measurement with a smaller
  error does not bring it back.
* A bundle moves only to a broker that the rules allow. A forbidden move would be undone, again and again.

The effect of moving a bundle of cost c from a source s to a destination d: unevenness is the sum of cost^2 / capacity, which is least when
all fills are equal. Let P = fill(s) * capacity(d) - cost(d). Unevenness falls for 0 < c < 2x, and falls most for c = x = P * capacity(s) /
(capacity(s) + capacity(d)), where both fills become equal. If c < P, d stays below the old fill of s.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from equipoise.shedder.plan import Idle, Move, Plan, Stay
from equipoise.shedder.reported import format_percent
from equipoise.shedder.snapshot import Snapshot, WeighedBroker, WeighedBundle

ASKED_MAX: Final = 500_000
"""The most checks of rules per plan: bundles times brokers. With a policy for each, a check takes half a microsecond per broker."""

LOOKS_MAX: Final = 500_000
"""The most lookups of cached answers per plan. Each takes half a microsecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedShedder:
    """The strategy and its settings. Ratios are relative to the mean, or to a bundle's cost. `moves_max` limits the moves of a round.

    With 4 moves every 5 seconds, a broker of 256 bundles is empty after five minutes, and only the callers of 4 bundles at a time are
    disturbed, for one hop of the log.
    """

    moves_max: int = 4
    start_ratio: float = 0.25
    settle_ratio: float = 0.10
    wobble_ratio: float = 0.50

    def plan(self, snapshot: Snapshot) -> Plan:
        """See `Shedder.plan`."""
        brokers = sorted(snapshot.brokers, key=lambda broker: broker.broker)
        loads = [_LoadedBroker.of(broker) for broker in brokers if broker.barred is None]
        stays = [Stay(subject=broker.broker, reason=broker.barred) for broker in brokers if broker.barred is not None]
        capacity = sum(load.capacity for load in loads)
        mean = sum(load.cost for load in loads) / capacity if capacity else 0.0
        moves: list[Move] = []
        rules = _Rules(snapshot)
        if _is_uneven(loads, mean, self.start_ratio):
            while len(moves) < self.moves_max and _is_uneven(loads, mean, self.settle_ratio):
                move = self._next_move(loads, mean, rules)
                if move is None:
                    break
                moves.append(move)
        stays += self._stays(loads, mean, moves)
        in_order = tuple(sorted(stays, key=lambda stay: stay.subject))
        return Plan(moves=tuple(moves), stays=in_order, idle=None if moves else self._idle(loads, mean), memory=snapshot.memory)

    def _idle(self, loads: Sequence[_LoadedBroker], mean: float) -> Idle:
        """Return why nothing moves, counted as `shedder.transfer` counts it."""
        if not loads:
            return Idle(result="Skip", cause="NoBrokers", reason="no broker has a fresh load report")
        if _is_uneven(loads, mean, self.start_ratio):
            return Idle(result="Skip", cause="NoBundles", reason="the load is uneven, and no bundle can be moved: see each broker")
        reason = f"the load is even: no broker is further from the mean than {_percent(self.start_ratio, 1)} of it"
        return Idle(result="Skip", cause="HitCount", reason=reason)

    def _next_move(self, loads: Sequence[_LoadedBroker], mean: float, rules: _Rules) -> Move | None:
        """Choose the move of the fullest broker that can give to the emptiest that can take. Apply it to the loads."""
        givers = sorted((load for load in loads if load.fill > mean), key=lambda load: (-load.fill, load.broker))
        takers = sorted((load for load in loads if load.fill < mean), key=lambda load: (load.fill, load.broker))
        for source in givers:
            for destination in takers:
                bundle = self._worth_moving(source, destination, rules)
                if bundle is not None:
                    move = _move_of(bundle, source, destination, mean)
                    source.give(bundle, destination)
                    return move
        return None

    def _worth_moving(self, source: _LoadedBroker, destination: _LoadedBroker, rules: _Rules) -> WeighedBundle | None:
        """Return the movable bundle whose cost is nearest to the best, within the bounds of the module; ties by cost and name."""
        pull = source.fill * destination.capacity - destination.cost
        best = pull * source.capacity / (source.capacity + destination.capacity)
        cost_max = min(pull, 2 * best) / (1 + self.wobble_ratio)
        for bundle in source.nearest(best, cost_max):
            refusal = rules.refusal(bundle.name, destination.broker)
            if refusal is None:
                return bundle
            source.kept = source.kept or f"for example {bundle.name} from {destination.broker}: {refusal}"
            if rules.has_reached_bound:
                break
        return None

    def _stays(self, loads: Sequence[_LoadedBroker], mean: float, moves: Sequence[Move]) -> Iterable[Stay]:
        given = {move.source for move in moves}
        for load in loads:
            if load.broker in given:
                continue
            carries = f"load is {_percent(load.fill, mean)} of the mean"
            if load.fill <= mean * (1 + self.start_ratio):
                yield Stay(subject=load.broker, reason=f"{carries} (allowed: up to {_percent(1 + self.start_ratio, 1)})")
                continue
            for bundle in load.barred:
                yield Stay(subject=bundle.name, reason=f"{bundle.barred}, although the load of {load.broker} is too high")
            if len(moves) == self.moves_max:
                yield Stay(subject=load.broker, reason=f"{carries}; it gives bundles in the next round")
            else:
                yield Stay(subject=load.broker, reason=f"{carries}, but {load.why_stuck(mean)}")


@dataclass(slots=True, kw_only=True)
class _LoadedBroker:
    """One broker during a plan. `movable`: bundles that it may still give, by cost and name.

    `kept`: the first bundle that the rules kept from a destination, and why.
    """

    broker: str
    capacity: int
    cost: float
    movable: list[WeighedBundle]
    barred: list[WeighedBundle] = field(default_factory=list)
    kept: str | None = None

    @classmethod
    def of(cls, broker: WeighedBroker) -> _LoadedBroker:
        """Return the load of a broker before the first move."""
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
        """Cost divided by capacity."""
        return self.cost / self.capacity

    def nearest(self, cost: float, cost_max: float) -> Iterator[WeighedBundle]:
        """Yield the movable bundles of at most `cost_max`, the nearest to `cost` first; ties by cost and name."""
        end = bisect_right(self.movable, cost_max, key=lambda bundle: bundle.cost)
        above = below = min(end, bisect_left(self.movable, cost, key=lambda bundle: bundle.cost))
        while below > 0 or above < end:
            if above == end or (below > 0 and cost - self.movable[below - 1].cost <= self.movable[above].cost - cost):
                last, below = below, bisect_left(self.movable, self.movable[below - 1].cost, hi=below, key=lambda bundle: bundle.cost)
                yield from self.movable[below:last]
            else:
                yield self.movable[above]
                above += 1

    def give(self, bundle: WeighedBundle, destination: _LoadedBroker) -> None:
        """Move a bundle to another load. It does not move again in this plan."""
        self.movable.remove(bundle)
        self.cost -= bundle.cost
        destination.cost += bundle.cost

    def why_stuck(self, mean: float) -> str:
        """Return why an overfull load gives nothing."""
        if not self.movable:
            return "none of its bundles may be moved now"
        if self.kept is not None:
            return f"the rules keep its bundles from brokers with less load: {self.kept}"
        heaviest = self.movable[-1]
        return (
            f"no move would help: the heaviest of its {len(self.movable)} bundles is {heaviest.name}, "
            f"with {_percent(heaviest.cost / self.capacity, mean)} of the mean load; split it"
        )


class _Rules:
    """Cached answers of the rules, asked once per bundle. Past the bounds, every further bundle is refused in this plan."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[str, tuple[frozenset[str], Mapping[str, str]]] = {}  # By bundle: allowed brokers, and refusals.
        self._looks = 0

    @property
    def has_reached_bound(self) -> bool:
        """Whether this plan has reached a bound."""
        return self._looks >= LOOKS_MAX or len(self._known) * len(self._snapshot.live) >= ASKED_MAX

    def refusal(self, bundle: str, broker: str) -> str | None:
        """Return why `broker` may not have `bundle`; None if it may."""
        if self._snapshot.rules is None:
            return None
        self._looks += 1
        if bundle not in self._known:
            if self.has_reached_bound:
                return "the round has reached its limit of rule checks"
            candidates = self._snapshot.candidates(bundle)
            self._known[bundle] = frozenset(candidates.allowed), candidates.refused
        allowed, refused = self._known[bundle]
        return None if broker in allowed else refused.get(broker, f"the rules keep it from {broker}")


def _is_uneven(loads: Sequence[_LoadedBroker], mean: float, ratio: float) -> bool:
    return any(abs(load.fill - mean) > ratio * mean for load in loads)


def _move_of(bundle: WeighedBundle, source: _LoadedBroker, destination: _LoadedBroker, mean: float) -> Move:
    """Return the move with its reason. Call it before the move is applied, because the reason shows the loads as they are."""
    reason = (
        f"balanced: {source.broker} has {_percent(source.fill, mean)} of the mean load, {destination.broker} has "
        f"{_percent(destination.fill, mean)}; the bundle is {_percent(bundle.cost, source.cost)} of the load of {source.broker}"
    )
    return Move(bundle=bundle.name, source=source.broker, destination=destination.broker, reason=reason)


def _percent(part: float, whole: float) -> str:
    return format_percent(part / whole if whole else 0.0)
