"""Plan the moves that even out a Pulsar cluster, with any balancing policy.

A policy plans one round, and then waits for new load reports. A plan here is complete: the policy
is asked again on the cluster as its moves should leave it, until it moves nothing more. It is asked
as if the load had been uneven for as long as the policy waits: an operator who asks for a plan
wants moves now. No bundle moves twice. Bundles of Pulsar's own namespace and bundles in transition
do not move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median_low, pstdev
from typing import Final

from equipoise.brokers.balancing.forecast import Forecast, forecast_of
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.channel.core.ranges import namespace_in
from equipoise.pulsar_cluster.loads import BUNDLES_MAX, HeldBundle, LoadReports, weigh
from equipoise.pulsar_cluster.placement_rules import ClusterPolicies, PlacementRules
from equipoise.pulsar_cluster.records import (
    ASSIGNING,
    IN_FLIGHT,
    OWNED,
    RELEASING,
    SPLITTING,
    Message,
    StateRecord,
)
from equipoise.pulsar_cluster.table import is_of_system
from equipoise.shedder.costs import ASSUMED
from equipoise.shedder.loads import RATES, BundleTraffic, Load, Traffic
from equipoise.shedder.plan import Move, Plan
from equipoise.shedder.reported import format_percent
from equipoise.shedder.snapshot import Snapshot, WeighedBroker, WeighedBundle

ROUNDS_MAX: Final = 64
"""How often a policy is asked for one plan."""

EVEN: Final = BalancingSettings().with_group("balanced", start_ratio=0.05, settle_ratio=0.04)
"""The settings of a plan. It evens out more than a balancer that acts all the time: nothing moves
again when the load changes a little."""

_CAPACITY: Final = 100
"""The capacity of each broker if none reports how many cores it has."""

_MOVES_ALREADY: Final = "it moves in this plan already"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a plan is made from.

    * `members`: the live brokers. `bundles`: the message of each bundle's record. `reports`: the
      load reports.
    * `policies`: isolation, anti-affinity and limits. `measured`: loads of bundles that are known
      better than from the reports.
    * `bundles_max`: how many bundles a full report names.
    * `unsettled`: the brokers without a report whose figures of topics are older than their
      clients, and of how many bundles.
    * `settles_ms`: when all figures of topics are as new as the clients of now (Unix time). None:
      nobody knows.
    """

    members: Collection[str]
    bundles: Mapping[str, Message]
    reports: LoadReports
    policies: ClusterPolicies = field(default_factory=ClusterPolicies)
    measured: Mapping[str, BundleTraffic] = field(default_factory=dict)
    bundles_max: int = BUNDLES_MAX
    unsettled: Mapping[str, int] = field(default_factory=dict)
    settles_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """A plan with its effect.

    * `notes`: what was left out of it, and whom it evens out among themselves, one sentence each.
    * `versions`: those of the records of the moved bundles.
    * `unknown`: the bundles of brokers that take part whose load nobody knows. They stay. What
      comes of the plan depends on them.
    """

    forecast: Forecast
    notes: tuple[str, ...]
    versions: Mapping[str, int]
    unknown: frozenset[str] = frozenset()

    @property
    def moves(self) -> tuple[Move, ...]:
        """The moves, in their order. Each has a destination."""
        return self.forecast.plan.moves


def holder_of(record: StateRecord | None) -> str | None:
    """Return the broker that a bundle's load counts at: its owner, or where it is on its way to;
    None if it has none.
    """
    if record is None:
        return None
    if record.state in {OWNED, ASSIGNING}:
        return record.destination
    if record.state == RELEASING:
        return record.destination or record.source
    return record.source if record.state == SPLITTING else None


def plan_moves(cluster: Cluster, settings: BalancingSettings, *, now_ms: int) -> ClusterPlan:
    """Return the plan of the policy that `settings` name for `cluster` at `now_ms` (Unix time)."""
    measure = settings.policy.measure
    predicted = _Predicted(cluster, now_ms=now_ms, age_ms_max=measure.ttl_ms)
    begin, weighed = predicted.snapshot(now_ms), predicted.weighed
    sets, before = predicted.sets(), predicted.fills()
    plan = _all_rounds(predicted, sets, settings, now_ms)
    # A forecast shows the loads of all bundles, and the reports name only the busiest.
    all_named = {
        broker: replace(
            load, bundles=tuple(weighed.bundles[each.bundle] for each in predicted.held[broker])
        )
        for broker, load in weighed.loads.items()
    }
    forecast = forecast_of(
        replace(
            begin,
            loads=all_named,
            owners=dict(begin.owners),
            rules=predicted.rules_at_begin.candidates,
        ),
        plan,
        measure=measure,
    )
    versions = {
        move.bundle: record.version
        for move in plan.moves
        if (record := cluster.bundles[move.bundle].record) is not None
    }
    lost = Counter(
        broker
        for bundle in cluster.bundles
        if (broker := holder_of(cluster.bundles[bundle].record)) not in cluster.members
    )
    notes = [
        f"{broker} is no broker of the cluster any more, and still has {count} bundles"
        for broker, count in sorted(lost.items())
        if broker
    ]
    after = predicted.fills()
    apart = [among for among in sets if len(sets) > 1 and len(among) > 1]
    notes += [
        f"isolation policies give {', '.join(among)} bundles of their own: these are evened out"
        f" among themselves, from a deviation of {format_percent(_deviation(before, among))} to"
        f" {format_percent(_deviation(after, among))}"
        for among in apart
    ]
    takers = {
        bundle
        for broker, bundles in predicted.held.items()
        if broker not in weighed.apart
        for bundle, _ in bundles
    }
    return ClusterPlan(
        forecast=forecast,
        notes=(*notes, *weighed.notes),
        versions=versions,
        unknown=weighed.unknown & takers,
    )


def _deviation(fills: Mapping[str, float], among: Collection[str]) -> float:
    """Return the deviation of the fills of some brokers, as a fraction of their mean."""
    mean = fmean(fills[broker] for broker in among)
    return pstdev(fills[broker] for broker in among) / mean if mean > 0 else 0.0


def snapshot_of(cluster: Cluster, *, now_ms: int, age_ms_max: int) -> Snapshot:
    """Return the cluster at `now_ms` (Unix time) as policies take it. Reports older than
    `age_ms_max` do not count.
    """
    return _Predicted(cluster, now_ms=now_ms, age_ms_max=age_ms_max).snapshot(now_ms)


def command_of(move: Move) -> str:
    """Return the command of Pulsar's own tool that makes a move."""
    namespace, _, key_range = move.bundle.rpartition("/")
    return (
        f"pulsar-admin namespaces unload --bundle {key_range} --destinationBroker"
        f" {move.destination} {namespace}"
    )


def _all_rounds(
    predicted: _Predicted, sets: Sequence[tuple[str, ...]], settings: BalancingSettings, now_ms: int
) -> Plan:
    """Even out each set of brokers, and return all moves as one plan."""
    plans = [_rounds_of(predicted, among, settings, now_ms) for among in sets]
    whole = max(plans, key=lambda plan: plan.deviation or 0.0)
    moves = tuple(move for plan in plans for move in plan.moves)
    stays = tuple(
        sorted((stay for plan in plans for stay in plan.stays), key=lambda stay: stay.subject)
    )
    return replace(whole, moves=moves, stays=stays, idle=None if moves else whole.idle)


def _rounds_of(
    predicted: _Predicted, among: Collection[str], settings: BalancingSettings, now_ms: int
) -> Plan:
    """Ask the policy about some brokers until it moves nothing more, and return all moves as one
    plan.
    """
    policy = settings.policy
    first: Plan | None = None
    last = Plan()
    moves: list[Move] = []
    for _ in range(ROUNDS_MAX):
        snapshot = replace(predicted.snapshot(now_ms, among), weights=settings.weights)
        last, _ = policy.plan(snapshot, policy.as_if_due(snapshot))
        first = first or last
        accepted = predicted.carry_out(last.moves)
        moves += accepted
        if not accepted:
            break
    assert first is not None, "the policy was asked at least once"
    stays = tuple(stay for stay in last.stays if stay.subject not in predicted.moved)
    return replace(
        first,
        moves=tuple(moves),
        stays=stays,
        idle=None if moves else last.idle,
        deviation_after=last.deviation if last.deviation is not None else first.deviation_after,
    )


def _held_in(cluster: Cluster) -> dict[str, list[HeldBundle]]:
    """Return the bundles of each live broker."""
    held: dict[str, list[HeldBundle]] = {broker: [] for broker in sorted(cluster.members)}
    for bundle in sorted(cluster.bundles):
        message = cluster.bundles[bundle]
        broker = holder_of(message.record)
        if broker in held:
            held[broker].append(HeldBundle(bundle, message.published_ms))
    return held


class _Predicted:
    """The cluster as the moves planned so far should leave it."""

    def __init__(self, cluster: Cluster, *, now_ms: int, age_ms_max: int) -> None:
        """Begin with the cluster as it is. `held` are the bundles of each live broker, `weighed`
        their loads.
        """
        self.held = held = _held_in(cluster)
        self._kinds = {
            name: kind
            for name in dict.fromkeys(map(namespace_in, cluster.bundles))
            if (kind := cluster.policies.kind_of(name)) is not None
        }
        self.weighed = weighed = weigh(
            held,
            cluster.reports,
            now_ms=now_ms,
            age_ms_max=age_ms_max,
            bundles_max=cluster.bundles_max,
            with_policies=frozenset(
                bundle for bundle in cluster.bundles if namespace_in(bundle) in self._kinds
            ),
            measured=cluster.measured,
        )
        self._held = {
            broker: {each.bundle: None for each in bundles} for broker, bundles in held.items()
        }
        self._owners = {each.bundle: broker for broker, bundles in held.items() for each in bundles}
        self._loads = dict(weighed.loads)
        self._costs = _costs_of(weighed.bundles)
        self._barred = {
            bundle: why
            for bundle in self._owners
            if (why := self._why_barred(bundle, cluster.bundles[bundle].record)) is not None
        }
        self._capacities = _capacities_of(held, weighed.loads)
        topics = {broker: load.topics for broker, load in weighed.loads.items()}
        self.rules_at_begin = PlacementRules(cluster.policies, held, self._owners, topics=topics)
        self._rules = PlacementRules(cluster.policies, held, self._owners, topics=topics)
        self.moved: dict[str, str] = {}

    def _why_barred(self, bundle: str, record: StateRecord | None) -> str | None:
        if is_of_system(bundle):
            return "it belongs to Pulsar itself"
        if record is not None and record.state in IN_FLIGHT:
            return f"it is {record.state} already"
        if bundle in self.weighed.unknown:
            return "its load is not known"
        return None if self._costs[bundle] > 0 else "it carries nothing"

    def sets(self) -> list[tuple[str, ...]]:
        """Return the brokers by sets between which isolation policies let no bundle move. All are
        one set without such policies.

        A bundle that a policy does not leave at its broker joins that one to the brokers where it
        may go.
        """
        of_broker = {broker: {broker} for broker in self._held}
        owned = [
            (namespace_in(bundle), owner)
            for bundle, owner in self._owners.items()
            if not is_of_system(bundle)
        ]
        for namespace, owner in dict.fromkeys(owned):
            among = sorted(self._rules.brokers_of(namespace) | {owner})
            joined = set[str]().union(*(of_broker[broker] for broker in among))
            of_broker |= dict.fromkeys(joined, joined)
        return sorted({tuple(sorted(each)) for each in of_broker.values()}) or [()]

    def fills(self) -> Mapping[str, float]:
        """Return the cost per capacity of each broker, after the moves so far."""
        return {broker: self._fill(broker) for broker in self._held}

    def snapshot(self, now_ms: int, among: Collection[str] | None = None) -> Snapshot:
        """Return the cluster as policies take it, or the part of it that some brokers have."""
        held = {
            broker: bundles
            for broker, bundles in self._held.items()
            if among is None or broker in among
        }
        owners = {bundle: owner for bundle, owner in self._owners.items() if owner in held}
        resting = {**self._barred, **dict.fromkeys(self.moved, _MOVES_ALREADY)}
        brokers = tuple(
            WeighedBroker(
                broker=broker,
                capacity=self._capacities[broker],
                bundles=tuple(
                    WeighedBundle(name=bundle, cost=self._costs[bundle], barred=resting.get(bundle))
                    for bundle in bundles
                ),
                barred=self.weighed.apart.get(broker),
            )
            for broker, bundles in held.items()
        )
        return Snapshot(
            brokers=brokers,
            now_ms=now_ms,
            live=tuple(held),
            apart={broker: why for broker, why in self.weighed.apart.items() if broker in held},
            loads={broker: load for broker, load in self._loads.items() if broker in held},
            owners=owners,
            resting=resting,
            policies=self._kinds,
            rules=self._rules.candidates,
        )

    def carry_out(self, moves: Sequence[Move]) -> list[Move]:
        """Predict the effect of `moves`, and return them with destinations.

        A policy sees the rules as they were before its first move. So each move is checked again,
        and left out if an earlier one forbids it.
        """
        accepted = []
        for move in moves:
            allowed = [
                broker
                for broker in self._rules.candidates(move.bundle).allowed
                if broker not in self.weighed.apart
            ]
            destination = move.destination or min(
                (broker for broker in allowed if broker != move.source),
                key=lambda broker: (self._fill(broker), broker),
                default=None,
            )
            is_free = (
                move.bundle not in self.moved
                and move.bundle not in self._barred
                and self._owners.get(move.bundle) == move.source
            )
            if (
                destination is None
                or destination == move.source
                or destination not in allowed
                or not is_free
            ):
                continue
            self._move(move.bundle, move.source, destination)
            accepted.append(replace(move, destination=destination))
        return accepted

    def _fill(self, broker: str) -> float:
        return sum(self._costs[bundle] for bundle in self._held[broker]) / self._capacities[broker]

    def _move(self, bundle: str, source: str, destination: str) -> None:
        self.moved[bundle] = destination
        self._rules.move(bundle, destination)
        del self._held[source][bundle]
        self._held[destination][bundle] = None
        self._owners[bundle] = destination
        giver, taker = self._loads.get(source), self._loads.get(destination)
        if giver is None or taker is None:
            return
        traffic = self.weighed.bundles[bundle]
        carried = (
            traffic.traffic.bytes_per_second / giver.traffic.bytes_per_second
            if giver.traffic.bytes_per_second > 0
            else 0.0
        )
        use = giver.average_use * min(1.0, carried)
        kept = tuple(each for each in giver.bundles if each.bundle != bundle)
        self._loads[source] = _with(replace(giver, bundles=kept), traffic, use, sign=-1)
        taken = taker.bundles
        if len(kept) < len(giver.bundles):
            # Reports name the lightest bundle first.
            taken = tuple(sorted((*taken, traffic), key=lambda each: each.traffic.bytes_per_second))
        self._loads[destination] = _with(replace(taker, bundles=taken), traffic, use, sign=1)


def _with(load: Load, bundle: BundleTraffic, use: float, *, sign: int) -> Load:
    """Return a broker's load with a bundle added or removed. Nothing falls below 0: reports do not
    add up exactly.
    """
    traffic = Traffic(
        **{
            name: max(0.0, getattr(load.traffic, name) + sign * getattr(bundle.traffic, name))
            for name in RATES
        }
    )
    throughput = load.average_bytes_per_second + sign * bundle.traffic.bytes_per_second
    return replace(
        load,
        traffic=traffic,
        average_use=max(0.0, load.average_use + sign * use),
        average_bytes_per_second=max(0.0, throughput),
        bundle_count=max(0, load.bundle_count + sign),
    )


def _costs_of(bundles: Mapping[str, BundleTraffic]) -> Mapping[str, float]:
    """Return the cost of each bundle, as if a message were a call of ours.

    A bundle that carries nothing costs nothing. It stays: a move evens nothing out.
    """
    return {
        name: (
            load.traffic.messages_per_second * ASSUMED.per_call
            + load.traffic.bytes_per_second * ASSUMED.per_byte
            + (load.producers + load.consumers) * ASSUMED.per_session
        )
        for name, load in bundles.items()
    }


def _capacities_of(brokers: Collection[str], loads: Mapping[str, Load]) -> Mapping[str, int]:
    """Return the capacity of each broker: its CPU limit in percent of a core. One that is not known
    is taken to be the median.
    """
    limits = {
        broker: limit
        for broker, load in loads.items()
        if (limit := round(load.resources.cpu.limit)) >= 1
    }
    unknown = median_low(limits.values()) if limits else _CAPACITY
    return {broker: limits.get(broker, unknown) for broker in brokers}
