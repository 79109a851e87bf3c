"""Implement `BalancedShedder`: move bundles from brokers above the mean fill to brokers below it,
as little load as possible.

Theory of operation:

* A broker's fill is the cost of its bundles divided by its capacity. The mean is the total cost
  divided by the total capacity.
* Each broker has a band around the mean: `settle_ratio` of the mean, `_NOISES` times the noise of
  its cost, and `_WORTH` of its capacity. Its noise is the error that its predictions of costs had
  lately (see `brokers.load.sampling`). So a band widens where loads come and go or change faster
  than they can be moved, and narrows again when predictions hold.
* A move must pay: its price is a pause, in proportion to the load that moves. Its gain is in
  proportion to the difference that it evens out, and to how long that lasts. A cost counts only
  what is expected to last. So what is left to weigh is the difference: inside of the band, the
  gain is not worth the price.
* A broker is helped if it is further from the mean than its band with `start_ratio` in place of
  `settle_ratio`.
* A move brings a broker to the edge of its band, not to the mean. Of all ways to lower the spread,
  this moves the least load: the load between the edge and the mean is the most expensive to even
  out. So a bundle that is a little too light is better than one that is a little too heavy: a
  further bundle can fill the gap.
* A bundle moves only if the move would be right even if it weighed half as much again
  (`_WOBBLE_RATIO`). So a measurement with a smaller error does not bring it back.
* A bundle that has moved lately rests: a smaller error of what it costs there does not move it on.
  One that costs another multiple (`_OTHER`) of what it did does not rest: its load was not known,
  as in a cluster that had no calls yet. Until its new broker reports it, it costs at least what it
  did.
* A bundle moves only to a broker that the rules allow. A forbidden move would be undone, again and
  again.
* A broker with far too little is filled: one that has just joined, or has less than half of its
  share. Moves that fill it are outside the budget of moved load, and may take bundles that have
  moved lately. Its noise does not count. It is full when it has its share of the load, less
  `settle_ratio`, or its share of the bundles. It gets no more than either, even if the reports say
  otherwise.
* The lightest bundles of a broker that together cost at most `_IDLE_SHARE` of the smallest broker's
  mean load are idle: they neither move nor count, because no move of them helps.
* Bundles that cost nearly the same (`_EQUAL_RATIO`), or next to nothing, are evened out by number:
  each costs the mean, and each broker gets its share of them, rounded down or up. Numbers have no
  noise, so no broker waits. Idle ones that cost at most `_IDLE_SHARE` of the heaviest do not count.

The effect of moving a bundle of cost c from a source s to a destination d: unevenness is the sum of
cost^2 / capacity, which is least when all fills are equal. Let P = fill(s) * capacity(d) - cost(d).
Unevenness falls for 0 < c < 2x, and falls most for c = x = P * capacity(s) / (capacity(s) +
capacity(d)), where both fills become equal. If c < P, d stays below the old fill of s.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from types import MappingProxyType
from typing import ClassVar, Final

from equipoise.shedder.plan import Budget, Idle, Move, Plan, Predicted, Stay
from equipoise.shedder.policy import ANY, SOME, Measure, Policy, SearchRange, setting
from equipoise.shedder.reported import format_percent
from equipoise.shedder.snapshot import RESTS, AskedRules, Snapshot, WeighedBroker, WeighedBundle

# A broker with less than this part of its share, of load and of bundles, is filled.
_FAR_RATIO: Final = 0.5
# Costs are equal if their standard deviation is at most this share of their mean: counts of few
# calls vary as much.
_EQUAL_RATIO: Final = 0.15
_WOBBLE_RATIO: Final = 0.50
# A bundle that costs so many times as much as when it moved, or as little, moved by mistake.
_OTHER: Final = 2
_NOISES: Final = 1.6  # A difference of fewer standard errors is chance.
# A smaller difference from the mean, as a share of the capacity, is not worth a pause: it is what a
# hundred idle bundles cost, or five calls a second (see `shedder.costs`), and evening it out
# shortens no queue. (A capacity of 100 is one core, a cost of 1.)
_WORTH: Final = 0.000_5 / 100
# More noise than the mean load is not believed, so that a liar is relieved, too.
_NOISE_SHARE_MAX: Final = 1.0
# The noise of a broker while no broker knows its own, as a share of its cost.
_NOISE_SHARE: Final = 0.3
_NEED_SHARE_MIN: Final = 0.02  # A smaller bundle than this share of the best is not worth a pause.
# A bundle with less of the needed cost than this is too light: it would take many.
_LIGHT_RATIO: Final = 0.3
_IDLE_SHARE: Final = 0.01  # Of the mean load of the smallest broker.
_MOVES_MAX: Final = 64  # The moves of a round. The next round sees what they have changed.
_HOUR_MS: Final = 3_600_000
_DURATIONS_MAX: Final = 32  # Enough for a median that one slow move does not change.


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedMemory:
    """What `BalancedShedder` remembers between rounds.

    * `churn`: the share of all load that moved lately, as of `churn_ms`, Unix time.
    * `filling`: the brokers that are filled until they have their share.
    * `costs`: what each bundle cost when it moved, as long as it rests.
    * `durations_ms`: of the last moves, from the request until the destination owned the bundle.
    """

    churn: float = 0.0
    churn_ms: int = 0
    filling: frozenset[str] = frozenset()
    costs: Mapping[str, float] = field(default_factory=dict)
    durations_ms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedShedder(Policy):
    """Equipoise's own shedder, which evens out cost by capacity."""

    moves_max: int = setting(
        "Limit of bundles that one broker takes in one round.", SOME, default=4
    )
    start_ratio: float = setting(
        "Distance from the mean at which a broker is helped, as a fraction of the mean.",
        ANY,
        default=0.1,
    )
    settle_ratio: float = setting(
        "Distance from the mean to which a round brings brokers, as a fraction of the mean.",
        ANY,
        default=0.08,
    )
    churn_max: float = setting("Share of all load that may move in an hour.", ANY, default=1.0)

    searched: ClassVar[Mapping[str, SearchRange]] = MappingProxyType(
        {
            "balanced.start_ratio": SearchRange(least=0.02, most=0.5, log=True),
            "balanced.settle_ratio": SearchRange(least=0.01, most=0.4, log=True),
            "balanced.churn_max": SearchRange(least=0.02, most=2, log=True),
            "balanced.moves_max": SearchRange(least=1, most=16, log=True),
            "reports.cost_window_ms": SearchRange(least=30_000, most=900_000, log=True),
        }
    )

    @property
    def measure(self) -> Measure:
        """See `Policy.measure`."""
        return Measure(kind="cost")

    def plan(self, snapshot: Snapshot, memory: object = None) -> tuple[Plan, BalancedMemory]:
        """See `Policy.plan`."""
        brokers = sorted(snapshot.brokers, key=lambda broker: broker.broker)
        known = _up_to_now(memory, snapshot, brokers)
        brokers = [_as_moved(broker, known.costs) for broker in brokers]
        taking_part = [broker for broker in brokers if broker.barred is None]
        stays = [
            Stay(subject=broker.broker, reason=broker.barred)
            for broker in brokers
            if broker.barred is not None
        ]
        cluster = _cluster_of(taking_part, settle_ratio=self.settle_ratio)
        known = self._remember(known, cluster, snapshot.now_ms)
        deviation, moves = cluster.deviation, list[Move]()
        helped = [load for load in cluster.loads if cluster.excess(load, self.start_ratio) > 0]
        if helped:
            cluster.budget = (self.churn_max - known.churn) * cluster.cost
            duration_ms = median(known.durations_ms) if known.durations_ms else None
            moves = self._moves(cluster, helped, AskedRules(snapshot), duration_ms=duration_ms)
            known = replace(
                known,
                churn=known.churn + (cluster.moved / cluster.cost if cluster.moved else 0.0),
                costs={**known.costs, **_costs_of(moves, taking_part)},
            )
        budget = self._budget(cluster, known)
        stays += self._stays(cluster, moves)
        plan = Plan(
            moves=tuple(moves),
            stays=tuple(sorted(stays, key=lambda stay: stay.subject)),
            idle=None if moves else self._idle(cluster, budget, is_even=not helped),
            deviation=deviation,
            deviation_after=cluster.deviation,
            budget=budget,
            fills=cluster.has_filled,
        )
        return plan, known

    def as_if_due(
        self, snapshot: Snapshot, budget: Budget | None = None, at_ms: int = 0
    ) -> BalancedMemory:
        """See `Policy.as_if_due`."""
        del snapshot
        if budget is None:
            return BalancedMemory()
        return BalancedMemory(churn=budget.used, churn_ms=at_ms)

    def _remember(
        self,
        memory: BalancedMemory,
        cluster: _Cluster,
        now_ms: int,
    ) -> BalancedMemory:
        """Return the memory at the start of this round."""
        elapsed_ms = max(0, now_ms - memory.churn_ms)  # A clock that was set back adds no budget.
        churn = max(0.0, memory.churn - self.churn_max * elapsed_ms / _HOUR_MS)
        for load in cluster.loads:
            load.fills = cluster.is_short(load) and (
                load.is_new or load.broker in memory.filling or cluster.is_far_below(load)
            )
        filling = frozenset(load.broker for load in cluster.loads if load.fills)
        return replace(memory, churn=churn, churn_ms=now_ms, filling=filling)

    def _moves(
        self,
        cluster: _Cluster,
        helped: Sequence[_LoadedBroker],
        rules: AskedRules,
        *,
        duration_ms: float | None,
    ) -> list[Move]:
        """Return the moves that bring the `helped` brokers into their bands, within the budget of
        the cluster. Apply them.

        Each move is predicted to take `duration_ms`.
        """
        moves: list[Move] = []
        while len(moves) < _MOVES_MAX:
            worst = cluster.worst(helped, self.settle_ratio)
            if worst is None:
                break
            found = self._best_move(worst, cluster, rules)
            if found is None:
                worst.is_stuck = True  # Later moves only make the differences smaller.
                continue
            bundle, source, destination = found
            before = source.fill, destination.fill
            cluster.move(bundle, source, destination)
            predicted = Predicted(
                source=(before[0] / cluster.mean, source.fill / cluster.mean),
                destination=(before[1] / cluster.mean, destination.fill / cluster.mean),
                duration_ms=duration_ms,
            )
            moves.append(_move_of(bundle, source, destination, predicted))
        return moves

    def _best_move(
        self, worst: _LoadedBroker, cluster: _Cluster, rules: AskedRules
    ) -> tuple[WeighedBundle, _LoadedBroker, _LoadedBroker] | None:
        """Return the bundle that helps `worst`, with its source and destination; None if no move
        helps.

        If `worst` is too full, it gives to the emptiest broker that can take. If it is too empty,
        the fullest that can give fills it.
        """
        if worst.fill > cluster.mean:
            low = (
                load
                for load in cluster.loads
                if load.fill < cluster.mean and not cluster.is_sated(load)
            )
            takers = sorted(low, key=lambda load: (load.fill, load.broker))
            pairs = [(worst, taker) for taker in takers if taker.taken < self.moves_max]
            worst.waits = len(pairs) < len(takers)
        else:
            givers = sorted(
                (load for load in cluster.loads if load.fill > cluster.mean),
                key=lambda load: (-load.fill, load.broker),
            )
            worst.waits = worst.taken >= self.moves_max
            pairs = [] if worst.waits else [(giver, worst) for giver in givers]
        for source, destination in pairs:
            bundle = _worth_moving(
                source, destination, cluster, rules, settle_ratio=self.settle_ratio
            )
            if bundle is not None:
                return bundle, source, destination
        return None

    def _budget(self, cluster: _Cluster, memory: BalancedMemory) -> Budget:
        """Return the budget after the moves of this round, and when the lightest bundle that it
        blocks fits into it.
        """
        if cluster.blocked is None:
            return Budget(most=self.churn_max, used=memory.churn)
        share = cluster.blocked / cluster.cost
        free_in_ms = None
        if share <= self.churn_max:
            free_in_ms = math.ceil(
                (share + memory.churn - self.churn_max) / self.churn_max * _HOUR_MS
            )
        return Budget(most=self.churn_max, used=memory.churn, blocks=True, free_in_ms=free_in_ms)

    def _idle(self, cluster: _Cluster, budget: Budget, *, is_even: bool) -> Idle:
        """Return why nothing moves, counted as `shedder.transfer` counts it."""
        if not cluster.loads:
            return Idle(
                result="Skip", cause="NoBrokers", reason="no broker has a fresh load report"
            )
        if is_even:
            return Idle(
                result="Skip",
                cause="HitCount",
                reason=f"the load is even: {cluster.why_even(self.start_ratio)}",
            )
        why = budget.reason if budget.blocks else "no bundle can be moved: see each broker"
        return Idle(result="Skip", cause="NoBundles", reason=f"the load is uneven, and {why}")

    def _stays(self, cluster: _Cluster, moves: Sequence[Move]) -> Iterable[Stay]:
        given = {move.source for move in moves}
        for load in cluster.loads:
            if load.broker in given:
                continue
            carries = (
                f"load is {_percent(load.fill, cluster.mean)} of the"
                f" mean{load.beside}{load.with_taken}"
            )
            if cluster.excess(load, self.start_ratio) <= 0:
                yield Stay(
                    subject=load.broker,
                    reason=f"{carries} (allowed: {cluster.allowed(load, self.start_ratio)})",
                )
                continue
            is_full = load.fill > cluster.mean
            for bundle in (*load.barred, *load.resting) if is_full else ():
                yield Stay(
                    subject=bundle.name,
                    reason=(
                        f"{bundle.barred or RESTS}, although the load of {load.broker} is too high"
                    ),
                )
            if load.is_stuck and not load.waits:
                yield Stay(subject=load.broker, reason=f"{carries}, but {cluster.why_stuck(load)}")
            else:
                yield Stay(
                    subject=load.broker,
                    reason=(
                        f"{carries}; it {'gives' if is_full else 'takes'} bundles in the next round"
                    ),
                )


def _up_to_now(
    memory: object, snapshot: Snapshot, brokers: Iterable[WeighedBroker]
) -> BalancedMemory:
    """Return the memory with the moves that have ended since, and what rests."""
    known = memory if isinstance(memory, BalancedMemory) else BalancedMemory()
    ended = (move.duration_ms for move in snapshot.since.ended)
    return replace(
        known,
        durations_ms=(*known.durations_ms, *ended)[-_DURATIONS_MAX:],
        # What others have moved, such as a former leader, counts as it costs now.
        costs={
            bundle.name: known.costs.get(bundle.name, bundle.cost)
            for broker in brokers
            for bundle in broker.bundles
            if bundle.rests
        },
    )


def _as_moved(broker: WeighedBroker, costs: Mapping[str, float]) -> WeighedBroker:
    """Return the broker with what is known of the bundles that rest: see the module."""
    if not any(bundle.rests for bundle in broker.bundles):
        return broker
    bundles = (
        _moved(bundle, costs[bundle.name]) if bundle.rests else bundle for bundle in broker.bundles
    )
    return replace(broker, bundles=tuple(bundles))


def _moved(bundle: WeighedBundle, before: float) -> WeighedBundle:
    if not bundle.is_reported:
        return replace(bundle, cost=max(bundle.cost, before))
    is_other = bundle.cost > _OTHER * before or bundle.cost * _OTHER < before
    return replace(bundle, rests=False) if is_other else bundle


def _costs_of(moves: Iterable[Move], brokers: Iterable[WeighedBroker]) -> dict[str, float]:
    moved = {move.bundle for move in moves}
    return {
        bundle.name: bundle.cost
        for broker in brokers
        for bundle in broker.bundles
        if bundle.name in moved
    }


@dataclass(slots=True, kw_only=True)
class _LoadedBroker:
    """One broker during a plan. `movable`: bundles that it may still give, by cost and name;
    `resting`: only to fill a broker.

    * `noise`: the standard error of its cost. `count`: its bundles that are not idle. `taken`: the
      bundles that it takes in this plan.
    * `other_work`: the share of its CPU that other work takes.
    * `is_new`: it has joined lately. `fills`: it is filled.
    * `is_stuck`: no move helps it in this plan. `waits`: brokers that could help take no more
      bundles in this round.
    * `kept`: the first thing that kept a bundle from a destination.
    """

    broker: str
    capacity: int
    cost: float
    count: int
    noise: float
    movable: list[WeighedBundle]
    resting: list[WeighedBundle]
    barred: list[WeighedBundle]
    taken: int = 0
    other_work: float = 0.0
    is_new: bool = False
    fills: bool = False
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
        return (
            f" for what other work leaves: that takes {format_percent(self.other_work)} of its CPU"
            if self.other_work
            else ""
        )

    @property
    def with_taken(self) -> str:
        """The bundles that it takes, for a reason; empty if there are none."""
        return (
            f" with {self.taken} more bundle{'s' if self.taken > 1 else ''}" if self.taken else ""
        )

    def helpful(self, cost: float, cost_max: float, *, fills: bool) -> Iterator[WeighedBundle]:
        """Yield the bundles of at most `cost_max`, the best first: of at most `cost`, heavier, and
        much lighter than `cost`.

        Only a move that `fills` a broker takes a resting one, and of equally good ones the others
        first.
        """
        piles = (self.movable, self.resting) if fills else (self.movable,)
        for pile in piles:
            end = bisect_right(pile, cost_max, key=_cost)
            above = min(end, bisect_right(pile, cost, key=_cost))
            yield from reversed(
                pile[min(above, bisect_left(pile, _LIGHT_RATIO * cost, key=_cost)) : above]
            )
            yield from pile[above:end]
        for pile in piles:
            yield from reversed(
                pile[
                    : bisect_left(
                        pile,
                        _LIGHT_RATIO * cost,
                        hi=bisect_right(pile, cost_max, key=_cost),
                        key=_cost,
                    )
                ]
            )

    def give(self, bundle: WeighedBundle, destination: _LoadedBroker) -> None:
        """Move a bundle to another load. It does not move again in this plan."""
        (self.resting if bundle.rests else self.movable).remove(bundle)
        self.cost -= bundle.cost
        self.count -= 1
        destination.cost += bundle.cost
        destination.count += 1
        destination.taken += 1

    def why_stuck(self, mean: float) -> str:
        """Return why an overfull load gives nothing."""
        if not self.movable:
            return "none of its bundles may be moved now"
        if self.kept is not None:
            return self.kept
        heaviest = self.movable[-1]
        return (
            f"no move would help: the heaviest of its {len(self.movable)} bundles is"
            f" {heaviest.name}, with {_percent(heaviest.cost / self.capacity, mean)} of the mean"
            " load; split it"
        )


class _Cluster:
    """The loads of the brokers that take part. The mean does not change in a plan: moves keep the
    total.

    * `unit`: the cost of each bundle, if all cost the same; else None.
    * `budget`: the cost that may still move. `moved`: what has moved of it.
    * `has_filled`: whether a bundle has filled a broker.
    * `blocked`: the cost of the lightest bundle that the budget keeps from a move.
    """

    def __init__(
        self,
        loads: Sequence[_LoadedBroker],
        *,
        settle_ratio: float,
        unit: float | None,
    ) -> None:
        self.loads = loads
        self.unit = unit
        self.cost = sum(load.cost for load in loads)
        self.budget = self.moved = 0.0
        self.has_filled = False
        self.blocked: float | None = None
        self._settle_ratio = settle_ratio
        self._count = sum(load.count for load in loads)
        self._capacity = sum(load.capacity for load in loads)
        self.mean = self.cost / self._capacity if self._capacity else 0.0

    def is_short(self, load: _LoadedBroker) -> bool:
        """Return whether a broker has too little by number and by load, so that a bundle more is
        not too much by either.
        """
        has_room = (load.count + 1) * self._capacity <= self._count * load.capacity
        return has_room and (
            self.unit is not None
            or load.cost < (1 - self._settle_ratio) * self.mean * load.capacity
        )

    def is_far_below(self, load: _LoadedBroker) -> bool:
        """Return whether a broker has far too little by number and by load."""
        is_few = load.count * self._capacity < _FAR_RATIO * self._count * load.capacity
        return is_few and load.cost < _FAR_RATIO * self.mean * load.capacity

    def is_filled(self, load: _LoadedBroker) -> bool:
        """Return whether the next bundle of a broker fills it."""
        return load.fills and self.is_short(load)

    def is_sated(self, load: _LoadedBroker) -> bool:
        """Return whether a broker has been filled in this plan. Only its next report shows whether
        it has too little load.
        """
        return load.fills and not self.is_short(load)

    def bounds(self, load: _LoadedBroker, ratio: float) -> tuple[float, float]:
        """Return the least and the most cost that a broker may have."""
        if self.unit is not None:
            fair = self._count * load.capacity
            return fair // self._capacity * self.unit, -(-fair // self._capacity) * self.unit
        share = self.mean * load.capacity
        band = max(
            ratio * share + min(_NOISES * load.noise, _NOISE_SHARE_MAX * share),
            _WORTH * load.capacity,
        )
        if load.fills:
            return 0.0 if self.is_sated(load) else (1 - self._settle_ratio) * share, share + band
        return share - band, share + band

    def excess(self, load: _LoadedBroker, ratio: float) -> float:
        """Return how far the cost of a broker is outside its bounds; at most 0 inside."""
        least, most = self.bounds(load, ratio)
        # Sums of costs are rounded.
        cost = load.cost if self.unit is None else load.count * self.unit
        return max(least - cost, cost - most)

    def allowed(self, load: _LoadedBroker, ratio: float) -> str:
        """Return the bounds of a broker, in shares of the mean load."""
        least, most = (bound / load.capacity for bound in self.bounds(load, ratio))
        return f"{_percent(max(0.0, least), self.mean)} to {_percent(most, self.mean)}"

    def move(
        self, bundle: WeighedBundle, source: _LoadedBroker, destination: _LoadedBroker
    ) -> None:
        """Move a bundle. What fills a broker is outside the budget."""
        if self.is_filled(destination):
            self.has_filled = True
        else:
            self.moved += bundle.cost
        source.give(bundle, destination)

    def why_even(self, ratio: float) -> str:
        """Return in which way the load is even."""
        if self.unit is not None:
            return "its bundles cost the same, and each broker has its share of them"
        furthest = max(self.loads, key=lambda load: (abs(load.fill - self.mean), load.broker))
        away = abs(furthest.fill - self.mean)
        if away <= ratio * self.mean:
            allowed = _percent(ratio * self.mean, self.mean)
            return f"no broker is further from the mean than {allowed} of it"
        carries = (
            f"{furthest.broker} has {_percent(furthest.fill, self.mean)} of the mean load (allowed:"
            f" {self.allowed(furthest, ratio)})"
        )
        if away <= _WORTH:
            return (
                f"no broker is further from the mean than {10_000 * _WORTH:g} % of its capacity,"
                f" and less is not worth a pause: {carries}"
            )
        return (
            "loads have not lasted as predicted, and no broker is further from the mean than that"
            f" explains: {carries}"
        )

    def why_stuck(self, load: _LoadedBroker) -> str:
        """Return why no move helps a broker that has too much or too little."""
        if load.fill > self.mean:
            return load.why_stuck(self.mean)
        giver = min(
            (load for load in self.loads if load.fill > self.mean),
            key=lambda load: (-load.fill, load.broker),
            default=None,
        )
        return "no broker can give it a bundle" + (
            "" if giver is None else f": of {giver.broker}, {giver.why_stuck(self.mean)}"
        )

    def worst(self, loads: Iterable[_LoadedBroker], ratio: float) -> _LoadedBroker | None:
        """Return the one of these brokers whose fill is furthest outside its band, unless it is
        stuck; ties by name.
        """
        outside = [load for load in loads if not load.is_stuck and self.excess(load, ratio) > 0]
        return min(
            outside,
            key=lambda load: (-self.excess(load, ratio) / load.capacity, load.broker),
            default=None,
        )

    @property
    def deviation(self) -> float:
        """The standard deviation of the brokers' fills relative to the mean."""
        if not self.mean:
            return 0.0
        return math.sqrt(
            sum((load.fill / self.mean - 1) ** 2 for load in self.loads) / len(self.loads)
        )


def _worth_moving(
    source: _LoadedBroker,
    destination: _LoadedBroker,
    cluster: _Cluster,
    rules: AskedRules,
    *,
    settle_ratio: float,
) -> WeighedBundle | None:
    """Return the best bundle for the one of two brokers that needs more, within the bounds of the
    module.
    """
    fills = cluster.is_filled(destination)
    budget = math.inf if fills else cluster.budget - cluster.moved
    need = max(cluster.excess(source, settle_ratio), cluster.excess(destination, settle_ratio))
    pull = source.fill * destination.capacity - destination.cost
    best = pull * source.capacity / (source.capacity + destination.capacity)
    cost_max = min(pull, 2 * best) / (1 + _WOBBLE_RATIO)
    for bundle in source.helpful(
        min(max(need, _NEED_SHARE_MIN * best), best), min(cost_max, budget), fills=fills
    ):
        refusal = rules.refusal(bundle.name, destination.broker)
        if refusal is None:
            return bundle
        source.kept = (
            source.kept
            or "the rules keep its bundles from brokers with less load: for example"
            f" {bundle.name} from {destination.broker}: {refusal}"
        )
        if rules.has_reached_bound:
            break
    if source.movable and budget < source.movable[0].cost <= cost_max:
        source.kept = (
            source.kept or "the budget of moved load per hour is used up (balanced.churn_max)"
        )
        cluster.blocked = min(cluster.blocked or math.inf, source.movable[0].cost)
    return None


def _cluster_of(brokers: Sequence[WeighedBroker], *, settle_ratio: float) -> _Cluster:
    """Return the loads of brokers before the first move.

    A broker whose noise is not known yet is taken to be as noisy as others are at the median,
    relative to their cost. If no broker knows its noise, the cluster has just been started, and
    each load is taken to be uncertain.
    """
    # In any order the same.
    costs = [math.fsum(bundle.cost for bundle in broker.bundles) for broker in brokers]
    shares = [
        broker.noise / cost
        for broker, cost in zip(brokers, costs, strict=True)
        if broker.noise is not None and cost > 0
    ]
    capacities = [broker.capacity for broker in brokers]
    idle_max = _IDLE_SHARE * math.fsum(costs) / (sum(capacities) or 1) * min(capacities, default=0)
    unit, uncounted_max = _unit_of(brokers, idle_max)
    loads = list[_LoadedBroker]()
    for broker, cost in zip(brokers, costs, strict=True):
        bundles = (
            broker.bundles
            if unit is None
            else [
                replace(bundle, cost=unit)
                for bundle in broker.bundles
                if bundle.cost > uncounted_max
            ]
        )
        # Of equal bundles the last by name is first, because the heaviest are looked at first.
        in_order = sorted(sorted(bundles, key=lambda bundle: bundle.name, reverse=True), key=_cost)
        if unit is None:
            del in_order[: _idle_among(in_order, idle_max)]
        noise = broker.noise
        if noise is None:
            noise = cost * (median(shares) if shares else _NOISE_SHARE)
        loads.append(
            _LoadedBroker(
                broker=broker.broker,
                capacity=broker.capacity,
                cost=cost if unit is None else unit * len(bundles),
                count=len(in_order),
                noise=noise,
                movable=[
                    bundle for bundle in in_order if bundle.barred is None and not bundle.rests
                ],
                resting=[bundle for bundle in in_order if bundle.barred is None and bundle.rests],
                barred=[bundle for bundle in in_order if bundle.barred is not None],
                other_work=broker.other_work,
                is_new=broker.is_new,
            )
        )
    return _Cluster(loads, settle_ratio=settle_ratio, unit=unit)


def _unit_of(brokers: Sequence[WeighedBroker], idle_max: float) -> tuple[float | None, float]:
    """Return the mean cost of the bundles that count if they cost nearly the same, or if all
    together cost too little for a difference to be worth a pause; else None. A bundle that costs at
    most the second result does not count.

    `idle_max`: what the idle bundles of one broker cost together at most.

    None, too, if a broker has other work, because measuring its capacity is not exact, and if not
    every broker can have a bundle, because it may help to split one.
    """
    costs = [bundle.cost for broker in brokers for bundle in broker.bundles]
    total, capacity = math.fsum(costs), sum(broker.capacity for broker in brokers)
    # Where all cost next to nothing, all count.
    uncounted_max = (
        min(idle_max, _IDLE_SHARE * max(costs, default=0)) if total > _WORTH * capacity else 0.0
    )
    counted = [cost for cost in costs if cost > uncounted_max]
    if (
        math.fsum(counted) < (1 - _IDLE_SHARE) * total
        or len(counted) < max(1, len(brokers))
        or any(broker.other_work for broker in brokers)
    ):
        return None, uncounted_max
    mean = fmean(counted)
    # Not `pstdev`, which is exact and slow.
    spread = math.sqrt(fmean((cost / mean - 1) ** 2 for cost in counted))
    return (mean if evens_by_number(total, spread, capacity) else None), uncounted_max


def evens_by_number(total: float, spread: float, capacity: float) -> bool:
    """Return whether bundles are evened out by number: they cost nearly the same, or next to
    nothing.

    `total` is their cost, `spread` its standard deviation relative to the mean, and `capacity` that
    of all brokers, in percent of a core.
    """
    return total <= _WORTH * capacity or spread <= _EQUAL_RATIO


def _idle_among(bundles: Sequence[WeighedBundle], cost_max: float) -> int:
    """Return how many of the first of these bundles together cost at most `cost_max`."""
    total, number = 0.0, 0
    for bundle in bundles:
        total += bundle.cost
        if total > cost_max:
            break
        number += 1
    return number


def _cost(bundle: WeighedBundle) -> float:
    return bundle.cost


def _move_of(
    bundle: WeighedBundle, source: _LoadedBroker, destination: _LoadedBroker, predicted: Predicted
) -> Move:
    """Return an applied move with its reason."""
    before, after = (
        tuple(format_percent(share) for share in shares)
        for shares in zip(predicted.source, predicted.destination, strict=True)
    )
    reason = (
        f"balanced: {source.broker} has {before[0]} of the mean load{source.beside},"
        f" {destination.broker} has {before[1]}; the bundle brings them to {after[0]} and"
        f" {after[1]}, and is {_percent(bundle.cost, source.cost + bundle.cost)} of the load of"
        f" {source.broker}"
    )
    return Move(
        bundle=bundle.name,
        source=source.broker,
        destination=destination.broker,
        reason=reason,
        predicted=predicted,
    )


def _percent(part: float, whole: float) -> str:
    return format_percent(part / whole if whole else 0.0)
