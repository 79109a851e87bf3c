"""Show a cluster before and after a plan: what would move, and which rules prevent moves.

This module decides nothing: the shedder plans the moves, and placement chooses missing
destinations.

A moving bundle takes its reported throughput and messages along. Its use is the broker's use times
the bundle's share of the broker's throughput, as in `TransferShedder`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from equipoise.shedder.loads import BundleTraffic, Load, Traffic, fault_of, oldest_first
from equipoise.shedder.plan import Move, Plan
from equipoise.shedder.policy import Measure
from equipoise.shedder.reported import reported
from equipoise.shedder.snapshot import SERVES_NOTHING, Snapshot

ASKED_MAX: Final = 2_000
"""The most bundles whose rules are checked. With 1,000 brokers and a policy for each, 2,000 bundles
take a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The load of one broker. `used` is a fraction, or None if unknown; rates are per second;
    `cost` is as in `shedder.snapshot`.
    """

    used: float | None
    bytes_per_second: float
    messages_per_second: float
    cost: float
    bundles: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerForecast:
    """One live broker before and after. `apart`: why it takes no part. `capacity`: None if the view
    does not have it.
    """

    broker: str
    capacity: int | None
    before: Standing
    after: Standing
    apart: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Mean and population deviation of the brokers that take part: of their use, or of their fill
    relative to the mean before.
    """

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Forbidden:
    """The bundles that one rule keeps from these brokers."""

    reason: str
    bundles: tuple[str, ...]
    brokers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The effect of a plan.

    * `plan`: with the destinations that placement chooses. `placed`: the bundles whose moves named
      none. `traffic`: of each bundle that moves, as far as it is reported.
    * `before`, `after`: None if no broker takes part. `forbidden` starts with the rule of most
      bundles.
    """

    plan: Plan
    measure: Measure
    placed: frozenset[str]
    traffic: Mapping[str, Traffic]
    brokers: tuple[BrokerForecast, ...]
    before: Level | None
    after: Level | None
    forbidden: tuple[Forbidden, ...]

    @property
    def moved_bytes_per_second(self) -> float:
        """The known throughput of all bundles that would move."""
        return math.fsum(traffic.bytes_per_second for traffic in self.traffic.values())

    @property
    def moved_messages_per_second(self) -> float:
        """The known message rate of all bundles that would move."""
        return math.fsum(traffic.messages_per_second for traffic in self.traffic.values())

    @property
    def moved_share(self) -> float:
        """The share of the total throughput that would move."""
        whole = math.fsum(broker.before.bytes_per_second for broker in self.brokers)
        return self.moved_bytes_per_second / whole if whole > 0 else 0.0


def forecast_of(
    snapshot: Snapshot,
    plan: Plan,
    *,
    measure: Measure,
    placed: Mapping[str, str] | None = None,
) -> Forecast:
    """Return the effect of `plan` of a policy with this measure. `placed`: destinations of moves
    that name none.
    """
    apart = _apart(snapshot, measure)
    carried = _Carried(snapshot)
    before = {broker: carried.standing(broker) for broker in snapshot.live}
    moves = tuple(_placed(move, placed or {}) for move in plan.moves)
    traffic = {
        move.bundle: found
        for move in moves
        if (found := carried.traffic(move.bundle, move.source)) is not None
    }
    after = dict(before)
    for move in moves:
        _carry_out(after, before, move, traffic.get(move.bundle, Traffic()), carried)
    capacities = {broker.broker: broker.capacity for broker in snapshot.brokers}
    brokers = tuple(
        BrokerForecast(
            broker=broker,
            capacity=capacities.get(broker),
            before=before[broker],
            after=after[broker],
            apart=apart.get(broker),
        )
        for broker in snapshot.live
    )
    taking = tuple(broker for broker in brokers if broker.apart is None)
    weigh = _by_use if measure.kind == "use" else _by_fill(taking, snapshot.pools)
    return Forecast(
        plan=replace(plan, moves=moves),
        measure=measure,
        placed=frozenset(move.bundle for move in plan.moves if move.destination is None),
        traffic=traffic,
        brokers=brokers,
        before=_level([weigh(broker, broker.before) for broker in taking]),
        after=_level([weigh(broker, broker.after) for broker in taking]),
        forbidden=_forbidden(snapshot, taking, weigh),
    )


class _Carried:
    """The loads of brokers and bundles from plausible reports, and the costs of bundles."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._loads = {
            name: load for name, load in snapshot.loads.items() if fault_of(load) is None
        }
        self._traffic: dict[str, Traffic] = {}
        # `traffic` prefers the owner's report.
        for load in oldest_first(self._loads.values()):
            self._traffic |= {bundle.bundle: bundle.traffic for bundle in load.bundles}
        self._weighed = {broker.broker: broker for broker in snapshot.brokers}
        self._costs = {
            bundle.name: bundle.cost for broker in snapshot.brokers for bundle in broker.bundles
        }

    def standing(self, broker: str) -> Standing:
        """Return the load of a broker before the plan."""
        load, weighed = self._loads.get(broker), self._weighed.get(broker)
        counted = 0 if load is None else load.bundle_count
        return Standing(
            used=None if load is None else load.average_use,
            bytes_per_second=0.0 if load is None else load.traffic.bytes_per_second,
            messages_per_second=0.0 if load is None else load.traffic.messages_per_second,
            cost=0.0 if weighed is None else math.fsum(bundle.cost for bundle in weighed.bundles),
            bundles=counted if weighed is None else len(weighed.bundles),
        )

    def traffic(self, bundle: str, broker: str) -> Traffic | None:
        """Return the traffic of a bundle as `broker` reports it, else as the newest report of
        another broker has it.
        """
        own = _reported(self._loads.get(broker))
        found = [each.traffic for each in own if each.bundle == bundle]
        return found[-1] if found else self._traffic.get(bundle)

    def cost(self, bundle: str) -> float:
        """Return the cost of a bundle; 0 if unknown."""
        return self._costs.get(bundle, 0.0)


def _placed(move: Move, placed: Mapping[str, str]) -> Move:
    return replace(move, destination=move.destination or placed.get(move.bundle))


def _carry_out(
    after: dict[str, Standing],
    before: Mapping[str, Standing],
    move: Move,
    traffic: Traffic,
    carried: _Carried,
) -> None:
    """Move one bundle's load from its source to its destination, if these are live."""
    source = before.get(move.source)
    if source is None:
        return
    share = (
        min(1.0, traffic.bytes_per_second / source.bytes_per_second)
        if source.bytes_per_second > 0
        else 0.0
    )
    load = Standing(
        used=(source.used or 0.0) * share,
        bytes_per_second=traffic.bytes_per_second,
        messages_per_second=traffic.messages_per_second,
        cost=carried.cost(move.bundle),
        bundles=1,
    )
    for broker, sign in ((move.source, -1), (move.destination, 1)):
        if broker is not None and broker in after:
            after[broker] = _with(after[broker], load, sign)


def _with(standing: Standing, load: Standing, sign: int) -> Standing:
    """Return the standing with a load added or removed. Nothing falls below 0: reports do not add
    up exactly.
    """
    return Standing(
        used=None if standing.used is None else max(0.0, standing.used + sign * (load.used or 0.0)),
        bytes_per_second=max(0.0, standing.bytes_per_second + sign * load.bytes_per_second),
        messages_per_second=max(
            0.0, standing.messages_per_second + sign * load.messages_per_second
        ),
        cost=max(0.0, standing.cost + sign * load.cost),
        bundles=standing.bundles + sign,
    )


# --- the level ---


_Weigh = Callable[[BrokerForecast, Standing], float]


def _apart(snapshot: Snapshot, measure: Measure) -> Mapping[str, str]:
    if measure.kind == "cost":
        return {
            broker.broker: broker.barred for broker in snapshot.brokers if broker.barred is not None
        }
    return reported(snapshot, ttl_ms=measure.ttl_ms).apart


def _by_use(_: BrokerForecast, standing: Standing) -> float:
    return standing.used or 0.0


def _by_fill(taking: Sequence[BrokerForecast], pools: Sequence[frozenset[str]]) -> _Weigh:
    """Return a function for a broker's cost per capacity, relative to the mean of its pool before
    the plan.
    """
    means = dict[str, float]()
    for pool in pools or (frozenset(broker.broker for broker in taking),):
        members = [broker for broker in taking if broker.broker in pool]
        capacity = sum(broker.capacity or 0 for broker in members)
        cost = math.fsum(broker.before.cost for broker in members)
        means |= {broker.broker: cost / capacity if capacity else 0.0 for broker in members}

    def weigh(broker: BrokerForecast, standing: Standing) -> float:
        mean = means[broker.broker]
        return standing.cost / broker.capacity / mean if broker.capacity and mean else 0.0

    return weigh


def _level(loads: Sequence[float]) -> Level | None:
    if not loads:
        return None
    mean = math.fsum(loads) / len(loads)
    return Level(
        mean=mean,
        deviation=math.sqrt(
            math.fsum((load - mean) * (load - mean) for load in loads) / len(loads)
        ),
    )


# --- the rules ---


def _forbidden(
    snapshot: Snapshot, taking: Sequence[BrokerForecast], weigh: _Weigh
) -> tuple[Forbidden, ...]:
    """Return which rules forbid moves of bundles away from brokers above the mean, busiest brokers
    first.
    """
    loads = {broker.broker: weigh(broker, broker.before) for broker in taking}
    mean = math.fsum(loads.values()) / len(loads) if loads else 0.0
    above = sorted(
        (broker for broker in loads if loads[broker] >= mean),
        key=lambda broker: (-loads[broker], broker),
    )
    everybody = frozenset(snapshot.live)
    peers = {broker: pool for pool in snapshot.pools for broker in pool}
    bundles: dict[str, dict[str, None]] = {}  # By reason. The keys are an ordered set.
    brokers: dict[str, set[str]] = {}
    for broker, bundle in _named(snapshot, above):
        for other, reason in snapshot.candidates(bundle).refused.items():
            is_peer = other != broker and other in peers.get(broker, everybody)
            if is_peer and snapshot.apart.get(other) != SERVES_NOTHING:
                bundles.setdefault(reason, {})[bundle] = None
                brokers.setdefault(reason, set()).add(other)
    found = [
        Forbidden(
            reason=reason, bundles=tuple(bundles[reason]), brokers=tuple(sorted(brokers[reason]))
        )
        for reason in sorted(bundles)
    ]
    return tuple(sorted(found, key=lambda each: -len(each.bundles)))


def _named(snapshot: Snapshot, brokers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield up to `ASKED_MAX` bundles that these brokers reported and still serve, with the broker
    of each.
    """
    named = [
        (broker, bundle.bundle)
        for broker in brokers
        for bundle in reversed(_reported(snapshot.loads.get(broker)))
        if snapshot.owners.get(bundle.bundle) == broker
    ]
    yield from named[:ASKED_MAX]


def _reported(load: Load | None) -> Sequence[BundleTraffic]:
    return () if load is None else load.bundles
