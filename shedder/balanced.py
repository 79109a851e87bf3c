"""Implement `BalancedShedder`: move bundles from brokers above the mean fill to brokers below it, as little load as possible.

Theory of operation:

* A broker's fill is the cost of its bundles divided by its capacity. The mean is the total cost divided by the total capacity.
* Each broker has a band around the mean: `settle_ratio` of the mean, and `_NOISES` standard errors of its reported cost.
* A broker is helped if it is further from the mean than `start_ratio` and its noise, for at least `patience_ms`. A broker further away than
  `_GROSS_RATIO` and its noise is helped at once.
* A move brings a broker to the edge of its band, not to the mean. Of all ways to lower the spread, this moves the least load: the load
  between the edge and the mean is the most expensive to even out. So a bundle that is a little too light is better than one that is a
  little too heavy: a further bundle can fill the gap.
* A bundle moves only if the move would be right even if it weighed half as much again (`_WOBBLE_RATIO`). So a measurement with a smaller
  error does not bring it back.
* A bundle moves only to a broker that the rules allow. A forbidden move would be undone, again and again.

The effect of moving a bundle of cost c from a source s to a destination d: unevenness is the sum of cost^2 / capacity, which is least when
all fills are equal. Let P = fill(s) * capacity(d) - cost(d). Unevenness falls for 0 < c < 2x, and falls most for c = x = P * capacity(s) /
(capacity(s) + capacity(d)), where both fills become equal. If c < P, d stays below the old fill of s.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from equipoise.shedder.plan import Idle, Move, Plan, Predicted, Stay
from equipoise.shedder.reported import format_duration, format_percent
from equipoise.shedder.snapshot import Memory, Snapshot, WeighedBroker, WeighedBundle

ASKED_MAX: Final = 500_000
"""The most checks of rules per plan: bundles times brokers. With a policy for each, a check takes half a microsecond per broker."""

LOOKS_MAX: Final = 500_000
"""The most lookups of cached answers per plan. Each takes half a microsecond."""

_GROSS_RATIO: Final = 0.20  # A broker further from the mean is relieved or filled at once.
_WOBBLE_RATIO: Final = 0.50
_NOISES: Final = 2.2  # A difference of fewer standard errors is chance.
_NOISE_SHARE_MAX: Final = 1.0  # More noise than the mean load is not believed, so that a liar is relieved, too.
_NOISE_SHARE: Final = 0.2  # The noise of a broker while no broker knows its own, as a share of its cost.
_CALM: Final = 1.7  # How much wider all bands are with `calm`.
_NEED_SHARE_MIN: Final = 0.02  # A smaller bundle than this share of the best is not worth a pause.
_LIGHT_RATIO: Final = 0.3  # A bundle with less of the needed cost than this is too light: it would take many.
_MOVES_MAX: Final = 64  # The moves of a round. The next round sees what they have changed.
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedShedder:
    """The strategy and its settings. Ratios are relative to the mean load.

    * `moves_max`: the bundles that one broker takes in a round, so that a new broker fills step by step.
    * `start_ratio`, `settle_ratio`: the distance from the mean at which a broker is helped, and the one that is left.
    * `calm`: wider bands. Less load moves, and the load is less even.
    * `patience_ms`: how long a broker must be too far from the mean, if it is not very far.
    * `churn_max`: the share of all load that may move in an hour.
    """

    moves_max: int = 4
    start_ratio: float = 0.083
    settle_ratio: float = 0.070
    calm: bool = False
    patience_ms: int = 120_000
    churn_max: float = 1.0

    def plan(self, snapshot: Snapshot) -> Plan:
        """See `Shedder.plan`."""
        brokers = sorted(snapshot.brokers, key=lambda broker: broker.broker)
        taking_part = [broker for broker in brokers if broker.barred is None]
        loads = _loads_of(taking_part)
        stays = [Stay(subject=broker.broker, reason=broker.barred) for broker in brokers if broker.barred is not None]
        cluster = _Cluster(loads=loads, ratio=_CALM if self.calm else 1.0)
        memory, waits_ms = self._remember(snapshot, cluster)
        deviation, moves = cluster.deviation, list[Move]()
        helped = [load for load in loads if waits_ms.get(load.broker) == 0]
        if helped:
            budget = (self.churn_max - memory.churn) * cluster.cost
            duration_ms = median(memory.durations_ms) if memory.durations_ms else None
            moves, moved = self._moves(cluster, helped, _Rules(snapshot), budget=budget, duration_ms=duration_ms)
            memory = replace(memory, churn=memory.churn + (moved / cluster.cost if moved else 0.0))
        stays += self._stays(cluster, moves, waits_ms)
        in_order = tuple(sorted(stays, key=lambda stay: stay.subject))
        return Plan(
            moves=tuple(moves),
            stays=in_order,
            idle=None if moves else self._idle(cluster, waits_ms),
            deviation=deviation,
            deviation_after=cluster.deviation,
            memory=memory,
        )

    def _remember(self, snapshot: Snapshot, cluster: _Cluster) -> tuple[Memory, Mapping[str, int]]:
        """Return the memory at the start of this round, and for each broker outside its band how long it still waits, in milliseconds."""
        now_ms, memory = snapshot.now_ms, snapshot.memory
        elapsed_ms = max(0, now_ms - memory.churn_ms)  # A clock that was set back adds no budget.
        churn = max(0.0, memory.churn - self.churn_max * elapsed_ms / _HOUR_MS)
        outside = [load for load in cluster.loads if cluster.excess(load, self.start_ratio) > 0]
        since_ms = {load.broker: min(memory.uneven_since_ms.get(load.broker, now_ms), now_ms) for load in outside}
        waits_ms = {
            load.broker: 0 if cluster.is_gross(load) else max(0, self.patience_ms - (now_ms - since_ms[load.broker])) for load in outside
        }
        return replace(memory, churn=churn, churn_ms=now_ms, uneven_since_ms=since_ms), waits_ms

    def _moves(
        self, cluster: _Cluster, helped: Sequence[_LoadedBroker], rules: _Rules, *, budget: float, duration_ms: float | None
    ) -> tuple[list[Move], float]:
        """Return the moves that bring the `helped` brokers into their bands, and the moved cost, at most `budget`. Apply them.

        Each move is predicted to take `duration_ms`.
        """
        moves: list[Move] = []
        moved = 0.0
        while len(moves) < _MOVES_MAX:
            worst = cluster.worst(helped, self.settle_ratio)
            if worst is None:
                break
            found = self._best_move(worst, cluster, rules, budget=budget - moved)
            if found is None:
                worst.is_stuck = True  # Later moves only make the differences smaller.
                continue
            bundle, source, destination = found
            before = source.fill, destination.fill
            source.give(bundle, destination)
            moved += bundle.cost
            predicted = Predicted(
                source=(before[0] / cluster.mean, source.fill / cluster.mean),
                destination=(before[1] / cluster.mean, destination.fill / cluster.mean),
                duration_ms=duration_ms,
            )
            moves.append(_move_of(bundle, source, destination, predicted))
        return moves, moved

    def _best_move(
        self, worst: _LoadedBroker, cluster: _Cluster, rules: _Rules, *, budget: float
    ) -> tuple[WeighedBundle, _LoadedBroker, _LoadedBroker] | None:
        """Return the bundle that helps `worst`, with its source and destination; None if no move helps.

        If `worst` is too full, it gives to the emptiest broker that can take. If it is too empty, the fullest that can give fills it.
        """
        if worst.fill > cluster.mean:
            takers = sorted((load for load in cluster.loads if load.fill < cluster.mean), key=lambda load: (load.fill, load.broker))
            pairs = [(worst, taker) for taker in takers if taker.taken < self.moves_max]
            worst.waits = len(pairs) < len(takers)
        elif worst.taken < self.moves_max:
            givers = sorted((load for load in cluster.loads if load.fill > cluster.mean), key=lambda load: (-load.fill, load.broker))
            pairs = [(giver, worst) for giver in givers]
        else:
            pairs = []
        for source, destination in pairs:
            need = max(cluster.excess(source, self.settle_ratio), cluster.excess(destination, self.settle_ratio))
            bundle = _worth_moving(source, destination, rules, need=need, budget=budget)
            if bundle is not None:
                return bundle, source, destination
        return None

    def _idle(self, cluster: _Cluster, waits_ms: Mapping[str, int]) -> Idle:
        """Return why nothing moves, counted as `shedder.transfer` counts it."""
        if not cluster.loads:
            return Idle(result="Skip", cause="NoBrokers", reason="no broker has a fresh load report")
        if not waits_ms:
            allowed = _percent(self.start_ratio * cluster.ratio, 1)
            reason = f"the load is even: no broker is further from the mean than {allowed} of it and the noise of its reports"
            return Idle(result="Skip", cause="HitCount", reason=reason)
        wait_ms = min(waits_ms.values())
        if wait_ms == 0:
            return Idle(result="Skip", cause="NoBundles", reason="the load is uneven, and no bundle can be moved: see each broker")
        reason = f"the load is a little uneven: the round waits another {format_duration(wait_ms)}, in case it passes"
        return Idle(result="Skip", cause="HitCount", reason=reason)

    def _stays(self, cluster: _Cluster, moves: Sequence[Move], waits_ms: Mapping[str, int]) -> Iterable[Stay]:
        given = {move.source for move in moves}
        for load in cluster.loads:
            if load.broker in given:
                continue
            carries = f"load is {_percent(load.fill, cluster.mean)} of the mean{load.beside}"
            if load.fill <= cluster.mean or cluster.excess(load, self.start_ratio) <= 0:
                yield Stay(subject=load.broker, reason=f"{carries} (allowed: {cluster.allowed(load, self.start_ratio)})")
                continue
            for bundle in load.barred:
                yield Stay(subject=bundle.name, reason=f"{bundle.barred}, although the load of {load.broker} is too high")
            if load.is_stuck and not load.waits:
                yield Stay(subject=load.broker, reason=f"{carries}, but {load.why_stuck(cluster.mean)}")
            elif waits_ms.get(load.broker):
                yield Stay(subject=load.broker, reason=f"{carries}: too little and too short for a move yet")
            else:
                yield Stay(subject=load.broker, reason=f"{carries}; it gives bundles in the next round")


@dataclass(slots=True, kw_only=True)
class _LoadedBroker:
    """One broker during a plan. `movable`: bundles that it may still give, by cost and name.

    * `noise`: the standard error of its cost. `taken`: the bundles that it takes in this plan.
    * `other_work`: the share of its CPU that other work takes.
    * `is_stuck`: no move helps it in this plan. `waits`: brokers that could help take no more bundles in this round.
    * `kept`: the first thing that kept a bundle from a destination.
    """

    broker: str
    capacity: int
    cost: float
    noise: float
    movable: list[WeighedBundle]
    barred: list[WeighedBundle]
    taken: int = 0
    other_work: float = 0.0
    is_stuck: bool = False
    waits: bool = False
    kept: str | None = None

    @property
    def fill(self) -> float:
        """Cost divided by capacity."""
        return self.cost / self.capacity

    @property
    def beside(self) -> str:
        """The other work of its CPU, for a reason; empty if there is none."""
        return f" for what other work leaves: that takes {format_percent(self.other_work)} of its CPU" if self.other_work else ""

    def helpful(self, cost: float, cost_max: float) -> Iterator[WeighedBundle]:
        """Yield the movable bundles of at most `cost_max`, the best first: of at most `cost`, heavier, and much lighter than `cost`."""
        end = bisect_right(self.movable, cost_max, key=_cost)
        above = min(end, bisect_right(self.movable, cost, key=_cost))
        light = min(above, bisect_left(self.movable, _LIGHT_RATIO * cost, key=_cost))
        yield from reversed(self.movable[light:above])
        yield from self.movable[above:end]
        yield from reversed(self.movable[:light])

    def give(self, bundle: WeighedBundle, destination: _LoadedBroker) -> None:
        """Move a bundle to another load. It does not move again in this plan."""
        self.movable.remove(bundle)
        self.cost -= bundle.cost
        destination.cost += bundle.cost
        destination.taken += 1

    def why_stuck(self, mean: float) -> str:
        """Return why an overfull load gives nothing."""
        if not self.movable:
            return "none of its bundles may be moved now"
        if self.kept is not None:
            return self.kept
        heaviest = self.movable[-1]
        return (
            f"no move would help: the heaviest of its {len(self.movable)} bundles is {heaviest.name}, "
            f"with {_percent(heaviest.cost / self.capacity, mean)} of the mean load; split it"
        )


class _Cluster:
    """The loads of the brokers that take part. `ratio` widens all bands. The mean does not change in a plan: moves keep the total."""

    def __init__(self, loads: Sequence[_LoadedBroker], *, ratio: float) -> None:
        self.loads = loads
        self.ratio = ratio
        self.cost = sum(load.cost for load in loads)
        capacity = sum(load.capacity for load in loads)
        self.mean = self.cost / capacity if capacity else 0.0

    def band(self, load: _LoadedBroker, ratio: float) -> float:
        """Return how far the cost of a broker may be from its share."""
        share = self.mean * load.capacity
        return self.ratio * (ratio * share + min(_NOISES * load.noise, _NOISE_SHARE_MAX * share))

    def excess(self, load: _LoadedBroker, ratio: float) -> float:
        """Return how far the cost of a broker is outside its band; at most 0 inside."""
        return abs(load.cost - self.mean * load.capacity) - self.band(load, ratio)

    def allowed(self, load: _LoadedBroker, ratio: float) -> str:
        """Return the band of a broker, in shares of the mean load."""
        band = self.band(load, ratio) / load.capacity
        return f"{_percent(max(0.0, self.mean - band), self.mean)} to {_percent(self.mean + band, self.mean)}"

    def is_gross(self, load: _LoadedBroker) -> bool:
        """Return whether a broker is so far from the mean that it is helped at once."""
        return self.excess(load, _GROSS_RATIO) > 0

    def worst(self, loads: Iterable[_LoadedBroker], ratio: float) -> _LoadedBroker | None:
        """Return the one of these brokers whose fill is furthest outside its band, unless it is stuck; ties by name."""
        outside = [load for load in loads if not load.is_stuck and self.excess(load, ratio) > 0]
        return min(outside, key=lambda load: (-self.excess(load, ratio) / load.capacity, load.broker), default=None)

    @property
    def deviation(self) -> float:
        """The standard deviation of the brokers' fills relative to the mean."""
        if not self.mean:
            return 0.0
        return math.sqrt(sum((load.fill / self.mean - 1) ** 2 for load in self.loads) / len(self.loads))


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


def _worth_moving(source: _LoadedBroker, destination: _LoadedBroker, rules: _Rules, *, need: float, budget: float) -> WeighedBundle | None:
    """Return the best movable bundle for a broker that needs `need`, within the bounds of the module."""
    pull = source.fill * destination.capacity - destination.cost
    best = pull * source.capacity / (source.capacity + destination.capacity)
    cost_max = min(pull, 2 * best) / (1 + _WOBBLE_RATIO)
    for bundle in source.helpful(min(max(need, _NEED_SHARE_MIN * best), best), min(cost_max, budget)):
        refusal = rules.refusal(bundle.name, destination.broker)
        if refusal is None:
            return bundle
        source.kept = (
            source.kept
            or f"the rules keep its bundles from brokers with less load: for example {bundle.name} from {destination.broker}: {refusal}"
        )
        if rules.has_reached_bound:
            break
    if source.movable and budget < source.movable[0].cost:
        source.kept = source.kept or "the budget of moved load per hour is used up (balanced.churn_max)"
    return None


def _loads_of(brokers: Sequence[WeighedBroker]) -> list[_LoadedBroker]:
    """Return the loads of brokers before the first move.

    A broker whose noise is not known yet is taken to be as noisy as others are at the median, relative to their cost. If no broker knows
    its noise, the cluster has just been started, and each load is taken to be uncertain.
    """
    in_order = [sorted(broker.bundles, key=lambda bundle: bundle.name, reverse=True) for broker in brokers]
    for bundles in in_order:
        bundles.sort(key=_cost)  # Of equal bundles the last by name is first, because the heaviest are looked at first.
    costs = [sum(bundle.cost for bundle in bundles) for bundles in in_order]
    shares = [broker.noise / cost for broker, cost in zip(brokers, costs, strict=True) if broker.noise is not None and cost > 0]
    loads = list[_LoadedBroker]()
    for broker, bundles, cost in zip(brokers, in_order, costs, strict=True):
        noise = broker.noise
        if noise is None:
            noise = cost * (median(shares) if shares else _NOISE_SHARE)
        movable = [bundle for bundle in bundles if bundle.barred is None]
        barred = [bundle for bundle in bundles if bundle.barred is not None]
        loads.append(
            _LoadedBroker(
                broker=broker.broker,
                capacity=broker.capacity,
                cost=cost,
                noise=noise,
                movable=movable,
                barred=barred,
                other_work=broker.other_work,
            )
        )
    return loads


def _cost(bundle: WeighedBundle) -> float:
    return bundle.cost


def _move_of(bundle: WeighedBundle, source: _LoadedBroker, destination: _LoadedBroker, predicted: Predicted) -> Move:
    """Return an applied move with its reason."""
    before, after = (
        tuple(format_percent(share) for share in shares) for shares in zip(predicted.source, predicted.destination, strict=True)
    )
    reason = (
        f"balanced: {source.broker} has {before[0]} of the mean load{source.beside}, {destination.broker} has {before[1]}; "
        f"the bundle brings them to {after[0]} and {after[1]}, "
        f"and is {_percent(bundle.cost, source.cost + bundle.cost)} of the load of {source.broker}"
    )
    return Move(bundle=bundle.name, source=source.broker, destination=destination.broker, reason=reason, predicted=predicted)


def _percent(part: float, whole: float) -> str:
    return format_percent(part / whole if whole else 0.0)
