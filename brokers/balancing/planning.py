"""Turn the channel, the load reports and the settings into a shedder's input, and run one round on
it: first move the bundles whose owner violates an isolation policy or a pin.

Preferences and topic limits count only when a bundle is placed. A broker that drains or is in
maintenance moves its bundles away without this module.

The leader's rounds and the dry run share this code, so a dry run shows what a round would do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from equipoise.brokers.balancing.controls import controls_in
from equipoise.brokers.balancing.decisions import STAYS_MAX, Decision, Kind
from equipoise.brokers.balancing.destinations import Destinations, PlacementRules
from equipoise.brokers.balancing.forecast import Forecast, forecast_of
from equipoise.brokers.balancing.placement import Placement, believed, places_elsewhere
from equipoise.brokers.balancing.settings.balancing_settings import SHEDDERS, BalancingSettings
from equipoise.channel.core.entries import BrokerEntry, BundleEntry
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX
from equipoise.channel.core.view import View
from equipoise.shedder.costs import Exchange, exchanges_of
from equipoise.shedder.loads import Load
from equipoise.shedder.plan import Budget, Move, Plan, Stay, together
from equipoise.shedder.policy import Policy
from equipoise.shedder.reported import format_age, format_duration
from equipoise.shedder.scheduler import Ends
from equipoise.shedder.snapshot import (
    Candidates,
    Since,
    Snapshot,
    WeighedBrokers,
    capacities_in,
    take,
)

# A broker without a report for three times the longest report interval is stuck, or gone.
_REPORTS_MISSED: Final = 3

OF_POLICIES: Final = "policies"
"""The strategy name of a round that moves bundles because they violate a policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """A cluster as a round sees it: the allowed destinations, and the snapshot for shedders.

    Both read the view lazily. Make a plan before the view changes, or use a view that does not
    change.
    """

    destinations: Destinations
    snapshot: Snapshot

    @property
    def units(self) -> Mapping[str, Exchange]:
        """What each declared unit of costs counts as."""
        percents = capacities_in(self.destinations.view)
        return exchanges_of(self.snapshot.loads.values(), percents)

    def clear(self) -> None:
        """Free the weighed brokers; see `WeighedBrokers.clear`."""
        if isinstance(self.snapshot.brokers, WeighedBrokers):
            self.snapshot.brokers.clear()


def cluster_snapshot_of(
    view: View,
    loads: Iterable[Load],
    settings: BalancingSettings,
    *,
    now_ms: int,
    resting: Collection[str] = (),
    returning: Mapping[str, str] | None = None,
    since: Since | None = None,
) -> ClusterSnapshot:
    """Return the cluster of `view` at `now_ms` (Unix time), with its policies and placement rules.

    `resting` are bundles that have moved lately, `returning` brokers that take no part yet, and
    why, `since` is what has happened since the last round.
    A broker without recent reports takes no part, even if a policy's own limit would still accept
    its last report.
    """
    known = tuple(loads)
    plausible = believed({load.broker: load for load in known})
    destinations = Destinations(view, loads=plausible, rules=settings.placement)
    oldest_ms = age_ms_max(settings)
    snapshot = take(
        view,
        known,
        now_ms=now_ms,
        age_ms_max=oldest_ms,
        resting=resting,
        apart={**(returning or {}), **destinations.maintained},
        frozen=controls_in(view, now_ms).why_frozen,
    )
    destinations.weigh(snapshot.brokers)
    silent = {
        load.broker: (
            f"its last load report was made {format_age(now_ms - load.at_ms)} (limit:"
            f" {format_duration(oldest_ms)})"
        )
        for load in known
        if load.broker in snapshot.live and abs(now_ms - load.at_ms) > oldest_ms
    }
    snapshot = replace(
        snapshot,
        apart={**silent, **snapshot.apart},
        policies=destinations.bound_namespaces,
        rules=_rules(view, destinations),
        weights=settings.weights,
        since=since or Since(),
    )
    return ClusterSnapshot(destinations=destinations, snapshot=snapshot)


def fresh(loads: Iterable[Load], settings: BalancingSettings, *, now_ms: int) -> Mapping[str, Load]:
    """Return the loads that placement uses at `now_ms` (Unix time), by broker: those that
    `cluster_snapshot_of` counts as recent.

    Without this check, a broker that was idle when its reports stopped would get every bundle. An
    unknown broker counts as the mean.
    """
    oldest_ms = age_ms_max(settings)
    return {load.broker: load for load in loads if abs(now_ms - load.at_ms) <= oldest_ms}


def age_ms_max(settings: BalancingSettings) -> int:
    """Return how old the last report of a broker that takes part may be."""
    reports = settings.reports
    return _REPORTS_MISSED * max(
        reports.interval_max_ms, reports.interval_min_ms, reports.sample_interval_ms
    )


def _rules(view: View, destinations: Destinations) -> Callable[[str], Candidates]:
    """Return a function that gives the candidates of a bundle. A reported bundle that was split or
    merged since has none.
    """

    def candidates(name: str) -> Candidates:
        bundle = view.bundles.get(name)
        return Candidates(allowed=()) if bundle is None else destinations.movable_to(bundle)

    return candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancingRound:
    """The plan of one round of the leader, and its strategy: `OF_POLICIES`, or the name of a
    shedder.

    `memory`: what the shedder remembers. `capacities`: of the brokers whose mean load the
    predictions of the moves refer to, by id, for each pool; empty without predictions.
    """

    plan: Plan
    strategy: str
    memory: object = None
    capacities: tuple[Mapping[str, int], ...] = ()

    @property
    def kind(self) -> Kind:
        """The kind of the decision to record."""
        return "misplaced" if self.strategy == OF_POLICIES else "shed"


def plan_round(
    cluster: ClusterSnapshot,
    settings: BalancingSettings,
    placement: Placement,
    *,
    memory: object = None,
    resting: Collection[str] = (),
) -> BalancingRound:
    """Return the plan of one round over `cluster`, which was made with the same `settings` and
    `resting`.

    `memory`: what the shedder returned in its last round. If bundles violate a policy, only they
    move, to where `placement` puts them; the next round sees the load after that.
    """
    snapshot = cluster.snapshot
    at_most = settings.balancing.moves_max
    moves, stays = policy_violations(
        cluster.destinations, placement=placement, at_most=at_most, resting=resting
    )
    plan = _with_room(Plan(moves=moves, stays=stays), cluster.destinations)
    if plan.moves:
        return BalancingRound(plan=plan, strategy=OF_POLICIES, memory=memory)
    stays = plan.stays
    plan, memory = _plan(settings.policy, snapshot, memory)
    plan = _with_room(plan, cluster.destinations).with_stays(stays)
    is_predicted = any(move.predicted is not None for move in plan.moves)
    capacities = tuple(
        {
            broker.broker: broker.capacity
            for broker in snapshot.brokers
            if broker.barred is None and broker.broker in pool
        }
        for pool in (snapshot.pools or (snapshot.live,))
        if is_predicted
    )
    return BalancingRound(
        plan=plan, strategy=settings.balancing.shedder, memory=memory, capacities=capacities
    )


def _with_room(plan: Plan, destinations: Destinations) -> Plan:
    """Return the plan without the moves for which earlier ones leave no room. Policies know only
    the room before the first.
    """
    if not plan.moves:
        return plan
    room, kept, stays = destinations.room.copy(), list[Move](), list[Stay]()
    for move in plan.moves:
        refusal = room.refusals(move.bundle).get(move.destination or "")
        if refusal is None:
            kept.append(move)
            room.take(move.bundle, move.destination or "")
        else:
            reason = f"{move.destination} has no room left after other moves: {refusal}"
            stays.append(Stay(subject=move.bundle, reason=reason))
    return replace(plan, moves=tuple(kept)).with_stays(stays) if stays else plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Memories:
    """What a policy remembers of each pool."""

    by_pool: Mapping[frozenset[str], object]

    def of(self, pool: frozenset[str]) -> object:
        """Return what it remembers of the pool that was most like this one."""
        nearest = max(self.by_pool, key=lambda each: len(each & pool))
        return self.by_pool[nearest] if nearest & pool else None


def _plan(policy: Policy, snapshot: Snapshot, memory: object) -> tuple[Plan, object]:
    """Return the plan of each pool as one plan, and what the policy remembers."""

    def remembered(pool: frozenset[str]) -> object:
        return memory.of(pool) if isinstance(memory, _Memories) else memory

    if not snapshot.pools:
        return policy.plan(snapshot, remembered(frozenset(snapshot.live)))
    planned = {pool: policy.plan(snapshot.only(pool), remembered(pool)) for pool in snapshot.pools}
    memories = _Memories(by_pool={pool: kept for pool, (_, kept) in planned.items()})
    return together([plan for plan, _ in planned.values()]), memories


def policy_violations(
    destinations: Destinations, *, placement: Placement, at_most: int, resting: Collection[str] = ()
) -> tuple[tuple[Move, ...], tuple[Stay, ...]]:
    """Return up to `at_most` moves of bundles away from brokers that may not have them, to the
    brokers that `placement` chooses.

    A bundle stays, with a reason, in two cases:

    * It is in `resting`. Otherwise a rule that depends on load could move it back and forth.
    * No other broker may have it. A forbidden owner is better than none.

    The search ends after `at_most` moves, so later stays are missing. At most `STAYS_MAX` stays are
    about bundles that no other broker may have. `destinations` and `placement` must have the same
    rules and loads.
    """
    view = destinations.view
    movable: dict[str, _Kept] = {}
    stays: list[Stay] = []
    for kept in _kept_from_owner(destinations):
        if len(movable) == at_most:
            break
        if kept.bundle.name in resting:
            stays.append(kept.stay("it has just moved"))
        elif _has_a_place(destinations, kept):
            movable[kept.bundle.name] = kept
        elif len(stays) < STAYS_MAX:
            stays.append(kept.stay("no other broker may have it"))
    if not movable:
        return (), tuple(stays)  # The usual case: placing nothing would still look at all brokers.
    avoid = {name: frozenset({kept.owner.incarnation}) for name, kept in movable.items()}
    placed = placement.place(
        view, [kept.bundle for kept in movable.values()], avoid=avoid, at_most=at_most
    )
    moves = []
    for name, kept in movable.items():
        destination = view.live[placed[name]].broker if name in placed else None
        # `placement` may use other loads and choose a forbidden broker, which would have to give
        # the bundle back.
        if destination in destinations.bound(kept.bundle).allowed:
            moves.append(
                Move(
                    bundle=name,
                    source=kept.owner.broker,
                    destination=destination,
                    reason=kept.reason,
                    cause="Unknown",
                )
            )
        else:
            stays.append(kept.stay("placement finds no place among the allowed brokers"))
    return tuple(moves), tuple(stays)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """A bundle, its owner, and why the owner may not have it."""

    bundle: BundleEntry
    owner: BrokerEntry
    reason: str

    def stay(self, problem: str) -> Stay:
        return Stay(subject=self.bundle.name, reason=f"{self.reason}; but {problem}")


def _has_a_place(destinations: Destinations, kept: _Kept) -> bool:
    """Return whether another broker may have it. The first check is cheap and excludes most; the
    second also knows preferences.
    """
    bundle = kept.bundle
    return bool(
        destinations.bound(bundle).allowed
        and destinations.movable_to(bundle, avoid={kept.owner.incarnation}).allowed
    )


def _kept_from_owner(destinations: Destinations) -> Iterator[_Kept]:
    """Yield the bundles whose owner is up and may not have them."""
    for bundle in _ruled(destinations):
        if bundle.phase != "owned":
            continue
        assert bundle.owner is not None, "an owned bundle has an owner"
        owner = destinations.view.live[bundle.owner]
        reason = destinations.bound(bundle).refused.get(owner.broker)
        if (
            reason is not None
            and owner.status == "up"
            and owner.broker not in destinations.maintained
        ):
            yield _Kept(
                bundle=bundle,
                owner=owner,
                reason=f"{owner.broker} may not have it: {reason}"[:TEXT_CHARACTERS_MAX],
            )


def _ruled(destinations: Destinations) -> Iterator[BundleEntry]:
    """Yield the bundles that a policy may concern. Without policies, yield nothing and look at
    nothing.

    An isolation policy concerns its namespaces and all bundles of its primaries, which are reserved
    for these namespaces. A pin concerns its namespace.
    """
    view, policies = destinations.view, destinations.policies
    if not (policies.isolations or policies.closed or policies.pins):
        return
    isolated = {
        namespace
        for namespace, kind in destinations.bound_namespaces.items()
        if kind == "isolation"
    }
    pinned = {pin.namespace for pin in policies.pins if pin.namespace in view.namespaces}
    namespaces = sorted(isolated | pinned)
    for namespace in namespaces:
        bundles = view.bundles_of(namespace)
        if namespace not in pinned:
            # Without pins all bundles of a namespace have one answer. There may be 65,536, so skip
            # allowed owners at once.
            refused = {
                view.brokers[broker].incarnation
                for broker in destinations.bound(bundles[0]).refused
            }
            bundles = [bundle for bundle in bundles if bundle.owner in refused]
        yield from bundles
    seen = frozenset(namespaces)
    for broker in view.live_brokers():
        if broker.broker in destinations.kept:
            yield from (
                bundle
                for bundle in view.held_by(broker.incarnation)
                if bundle.namespace not in seen
            )


def stale_moves(
    view: View, moves: Iterable[Move], rules: PlacementRules, *, now_ms: int
) -> Mapping[str, str]:
    """Return which planned moves must not start any more, by bundle, and why. They may have waited
    for a free slot.

    The bundle may have moved or gone since the plan, a new policy may forbid the move, or its
    namespace may be frozen at `now_ms` (Unix time). A bundle whose owner violates a policy still
    moves.
    """
    destinations, frozen = Destinations(view, rules=rules), controls_in(view, now_ms).why_frozen
    reasons = {move.bundle: _why_stale(view, destinations, move, frozen) for move in moves}
    return {bundle: reason for bundle, reason in reasons.items() if reason is not None}


def _why_stale(
    view: View, destinations: Destinations, move: Move, frozen: Mapping[str, str]
) -> str | None:
    entry = view.bundles.get(move.bundle)
    owner = None if entry is None or entry.owner is None else view.live.get(entry.owner)
    if entry is None or owner is None or owner.broker != move.source:
        return "it is not at its source any more"
    if entry.namespace in frozen and move.source not in destinations.bound(entry).refused:
        return frozen[entry.namespace]
    if move.destination is None:
        return (
            None
            if destinations.of(entry, avoid={owner.incarnation}).allowed
            else "no other broker may have it now"
        )
    bound = destinations.bound(entry)
    return (
        None
        if move.destination in bound.allowed
        else bound.refused.get(move.destination, f"{move.destination} takes nothing now")
    )


def planned_elsewhere(view: View, moves: Iterable[Move], placement: Placement) -> Mapping[str, int]:
    """Return where the bundles go whose moves name no destination, all together: an incarnation by
    bundle name.
    """
    away = [
        view.bundles[move.bundle]
        for move in moves
        if move.destination is None and move.bundle in view.bundles
    ]
    return places_elsewhere(view, away, placement)


def moving_in(view: View) -> dict[str, Ends]:
    """Return the moving bundles of any broker, with both ends. A bundle that nobody serves is
    placed, not moved.
    """
    return {
        bundle.name: (broker_id_of(view, bundle.source), broker_id_of(view, bundle.owner))
        for bundle in view.unsettled()
        if bundle.source is not None
    }


def broker_id_of(view: View, incarnation: int | None) -> str | None:
    """Return the id of the live broker with this incarnation; None if there is none."""
    broker = None if incarnation is None else view.live.get(incarnation)
    return None if broker is None else broker.broker


def predicted_round(
    cluster: ClusterSnapshot,
    settings: BalancingSettings,
    placement: Placement,
    *,
    last: Decision | None = None,
) -> tuple[str, Forecast]:
    """Return the strategy of the next round, as in `BalancingRound.strategy`, and what the round
    would do if it were due. `last`: the last round that was decided, for the budget that is left.
    """
    snapshot, policy = cluster.snapshot, settings.policy
    due = policy.as_if_due(snapshot, *_budget(cluster.destinations.view, last))
    planned = plan_round(cluster, settings, placement, memory=due)
    placed = _placed(cluster.destinations.view, planned.plan, placement)
    return planned.strategy, forecast_of(
        snapshot, planned.plan, measure=policy.measure, placed=placed
    )


def _budget(view: View, last: Decision | None) -> tuple[Budget | None, int]:
    """Return the budget of moved load and its time, if the present leader made the last decision
    since it joined.
    """
    leader = view.leader()
    if leader is None or last is None or last.broker != leader.broker:
        return None, 0
    is_its_own = last.at_ms >= leader.joined.timestamp_ms
    return (last.plan.budget, last.at_ms) if is_its_own else (None, 0)


def groups_in_play(settings: BalancingSettings) -> tuple[str, ...]:
    """Return the groups of settings that affect a round: `balancing`, the shedder's own, `weights`
    and `placement`.
    """
    return ("balancing", SHEDDERS[settings.balancing.shedder], "weights", "placement")


def _placed(view: View, plan: Plan, placement: Placement) -> Mapping[str, str]:
    """Return where placement would put the planned bundles that have no destination."""
    chosen = planned_elsewhere(view, plan.moves, placement)
    return {bundle: view.live[incarnation].broker for bundle, incarnation in chosen.items()}
