"""Forecasts: how a cluster stands before a plan and after it, what would move, and what the rules keep from moving.

May live here: the pure way from a snapshot and a plan to what people look at. Nothing here decides: what moves is the shedder's
plan, and where a move names no destination, the placement's.

What a bundle takes along is what it is known to carry: of throughput and messages what its broker reported, and of use that part
of the broker's use which is its part of the broker's throughput, as `TransferShedder` counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from equipoise.shedder.loads import BrokerLoad, BundleTraffic, fault_of
from equipoise.shedder.plan import Move, Plan
from equipoise.shedder.reported import reported
from equipoise.shedder.snapshot import Snapshot

Measure = Literal["use", "cost"]
"""What brokers are compared by: the average of their busiest resource, or the cost of their bundles for their capacity."""

ASKED_MAX: Final = 2_000
"""So many bundles the rules are asked about: with a thousand brokers and a policy for each that takes a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one broker stands. `used` is a fraction, None where nobody knows it; rates are per second, `cost` as in `shedder.snapshot`."""

    used: float | None
    bytes_per_second: float
    messages_per_second: float
    cost: float
    bundles: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerForecast:
    """One live broker before and after. `apart` says why it takes no part; `capacity` is None where the view does not say."""

    broker: str
    capacity: int | None
    before: Standing
    after: Standing
    apart: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveForecast:
    """One move, where it would lead, and what the bundle carries; None: nobody has reported it, or there is nowhere to go."""

    move: Move
    destination: str | None
    bytes_per_second: float | None
    messages_per_second: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Mean and population deviation of the brokers that take part: of their use, or of their fill as a part of the mean before."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forbidden:
    """What one rule says: that these bundles may not go to these brokers."""

    reason: str
    bundles: tuple[str, ...]
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What would come of a plan. `before` and `after` are None where nobody takes part; `forbidden` is by what is forbidden most."""

    plan: Plan
    measure: Measure
    brokers: tuple[BrokerForecast, ...]
    moves: tuple[MoveForecast, ...]
    before: Level | None
    after: Level | None
    forbidden: tuple[Forbidden, ...]

    @property
    def moved_bytes_per_second(self) -> float:
        """The throughput of all that would move, as far as it is known."""
        return math.fsum(move.bytes_per_second or 0.0 for move in self.moves)

    @property
    def moved_messages_per_second(self) -> float:
        """The message rate of all that would move, as far as it is known."""
        return math.fsum(move.messages_per_second or 0.0 for move in self.moves)

    @property
    def moved_share(self) -> float:
        """The part of the whole throughput that would move."""
        whole = math.fsum(broker.before.bytes_per_second for broker in self.brokers)
        return self.moved_bytes_per_second / whole if whole > 0 else 0.0


def forecast_of(snapshot: Snapshot, plan: Plan, *, measure: Measure, ttl_ms: int, placed: Mapping[str, str] | None = None) -> Forecast:
    """What would come of `plan`. `ttl_ms` is how long a report counts; `placed` says where bundles without a destination would go."""
    apart = _apart(snapshot, measure, ttl_ms)
    carried = _Carried(snapshot)
    before = {broker: carried.standing(broker) for broker in snapshot.live}
    moves = tuple(_foreseen(move, carried, placed or {}) for move in plan.moves)
    after = dict(before)
    for each in moves:
        _carry_out(after, before, each, carried)
    capacities = {broker.broker: broker.capacity for broker in snapshot.brokers}
    brokers = tuple(
        BrokerForecast(broker=broker, capacity=capacities.get(broker), before=before[broker], after=after[broker], apart=apart.get(broker))
        for broker in snapshot.live
    )
    taking = tuple(broker for broker in brokers if broker.apart is None)
    weigh = _by_use if measure == "use" else _by_fill(taking)
    return Forecast(
        plan=plan,
        measure=measure,
        brokers=brokers,
        moves=moves,
        before=_level([weigh(broker, broker.before) for broker in taking]),
        after=_level([weigh(broker, broker.after) for broker in taking]),
        forbidden=_forbidden(snapshot, taking, weigh),
    )


class _Carried:
    """What brokers and bundles carry, of reports that can be true, and what bundles cost."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._loads = {name: load for name, load in snapshot.loads.items() if fault_of(load) is None}
        self._traffic: dict[str, BundleTraffic] = {}
        # Oldest first, so that the newest word on a bundle stays; what its owner says comes before that.
        for _, load in sorted(self._loads.items(), key=lambda each: (each[1].taken_ms, each[0])):
            self._traffic |= {bundle.bundle: bundle for bundle in load.bundles or ()}
        self._weighed = {broker.broker: broker for broker in snapshot.brokers}
        self._costs = {bundle.name: bundle.cost for broker in snapshot.brokers for bundle in broker.bundles}

    def standing(self, broker: str) -> Standing:
        """How a broker stands now."""
        load, weighed = self._loads.get(broker), self._weighed.get(broker)
        counted = 0 if load is None else load.bundle_count
        return Standing(
            used=None if load is None else load.averages.weighted_max,
            bytes_per_second=0.0 if load is None else load.traffic.bytes_per_second,
            messages_per_second=0.0 if load is None else load.traffic.messages_per_second,
            cost=0.0 if weighed is None else math.fsum(bundle.cost for bundle in weighed.bundles),
            bundles=counted if weighed is None else len(weighed.bundles),
        )

    def traffic(self, bundle: str, broker: str) -> BundleTraffic | None:
        """What a bundle carries, by the word of `broker` if it named the bundle, else by the newest of any other."""
        load = self._loads.get(broker)
        own = () if load is None else [each for each in load.bundles or () if each.bundle == bundle]
        return own[-1] if own else self._traffic.get(bundle)

    def cost(self, bundle: str) -> float:
        """What a bundle costs; nothing if nobody weighed it."""
        return self._costs.get(bundle, 0.0)


def _foreseen(move: Move, carried: _Carried, placed: Mapping[str, str]) -> MoveForecast:
    traffic = carried.traffic(move.bundle, move.source)
    return MoveForecast(
        move=move,
        destination=move.destination or placed.get(move.bundle),
        bytes_per_second=None if traffic is None else traffic.traffic.bytes_per_second,
        messages_per_second=None if traffic is None else traffic.traffic.messages_per_second,
    )


def _carry_out(after: dict[str, Standing], before: Mapping[str, Standing], each: MoveForecast, carried: _Carried) -> None:
    """Take one bundle from its source and give it to its destination, if those are live."""
    source = before.get(each.move.source)
    if source is None:
        return
    share = min(1.0, (each.bytes_per_second or 0.0) / source.bytes_per_second) if source.bytes_per_second > 0 else 0.0
    load = Standing(
        used=(source.used or 0.0) * share,
        bytes_per_second=each.bytes_per_second or 0.0,
        messages_per_second=each.messages_per_second or 0.0,
        cost=carried.cost(each.move.bundle),
        bundles=1,
    )
    for broker, sign in ((each.move.source, -1), (each.destination, 1)):
        if broker is not None and broker in after:
            after[broker] = _with(after[broker], load, sign)


def _with(standing: Standing, load: Standing, sign: int) -> Standing:
    """A standing with a load more or less. Nothing falls below 0: reports of a moment do not add up to the last digit."""
    return Standing(
        used=None if standing.used is None else max(0.0, standing.used + sign * (load.used or 0.0)),
        bytes_per_second=max(0.0, standing.bytes_per_second + sign * load.bytes_per_second),
        messages_per_second=max(0.0, standing.messages_per_second + sign * load.messages_per_second),
        cost=max(0.0, standing.cost + sign * load.cost),
        bundles=standing.bundles + sign,
    )


# --- the level ---


_Weigh = Callable[[BrokerForecast, Standing], float]


def _apart(snapshot: Snapshot, measure: Measure, ttl_ms: int) -> Mapping[str, str]:
    """The live brokers that take no part, and why."""
    if measure == "cost":
        return {broker.broker: broker.barred for broker in snapshot.brokers if broker.barred is not None}
    found = reported(snapshot, ttl_ms=ttl_ms)
    return {**found.out, **dict.fromkeys(found.silent, "it has not said what its load is")}


def _by_use(_: BrokerForecast, standing: Standing) -> float:
    return standing.used or 0.0


def _by_fill(taking: Sequence[BrokerForecast]) -> _Weigh:
    """The cost for the capacity, as a part of the mean that it has before the plan."""
    capacity = sum(broker.capacity or 0 for broker in taking)
    mean = math.fsum(broker.before.cost for broker in taking) / capacity if capacity else 0.0

    def weigh(broker: BrokerForecast, standing: Standing) -> float:
        return standing.cost / broker.capacity / mean if broker.capacity and mean else 0.0

    return weigh


def _level(loads: Sequence[float]) -> Level | None:
    if not loads:
        return None
    mean = math.fsum(loads) / len(loads)
    return Level(mean=mean, deviation=math.sqrt(math.fsum((load - mean) * (load - mean) for load in loads) / len(loads)))


# --- the rules ---


def _forbidden(snapshot: Snapshot, taking: Sequence[BrokerForecast], weigh: _Weigh) -> tuple[Forbidden, ...]:
    """What the rules say of the bundles of those that carry more than the mean, from whom something might be taken, busiest first."""
    loads = {broker.broker: weigh(broker, broker.before) for broker in taking}
    mean = math.fsum(loads.values()) / len(loads) if loads else 0.0
    above = sorted((broker for broker in loads if loads[broker] >= mean), key=lambda broker: (-loads[broker], broker))
    live = frozenset(snapshot.live)
    bundles: dict[str, dict[str, None]] = {}  # By reason; the keys are a set that keeps its order.
    brokers: dict[str, set[str]] = {}
    for broker, bundle in _named(snapshot, above):
        for other, reason in snapshot.candidates(bundle).refused.items():
            if other != broker and other in live:
                bundles.setdefault(reason, {})[bundle] = None
                brokers.setdefault(reason, set()).add(other)
    found = [Forbidden(reason=reason, bundles=tuple(bundles[reason]), brokers=tuple(sorted(brokers[reason]))) for reason in sorted(bundles)]
    return tuple(sorted(found, key=lambda each: -len(each.bundles)))


def _named(snapshot: Snapshot, brokers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The bundles that these brokers reported, and still serve, at most `ASKED_MAX`, with the broker of each."""
    named = [
        (broker, bundle.bundle)
        for broker in brokers
        for bundle in reversed(_reported(snapshot.loads.get(broker)))
        if snapshot.owners.get(bundle.bundle) == broker
    ]
    yield from named[:ASKED_MAX]


def _reported(load: BrokerLoad | None) -> Sequence[BundleTraffic]:
    return () if load is None else load.bundles or ()
