"""Turn the channel, the load reports and the settings into a shedder's input, and run one round on
it.

The leader's rounds and the dry run share this code, so a dry run shows what a round would do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from equipoise.brokers.balancing.controls import controls_in
from equipoise.brokers.balancing.decisions import Kind
from equipoise.brokers.balancing.destinations import Destinations, PlacementRules
from equipoise.brokers.balancing.forecast import Forecast, forecast_of
from equipoise.brokers.balancing.placement import Placement, believed, places_elsewhere
from equipoise.brokers.balancing.policy_violations import policy_violations
from equipoise.brokers.balancing.settings.balancing_settings import SHEDDERS, BalancingSettings
from equipoise.channel.core.view import View
from equipoise.shedder.load_reports import Summary
from equipoise.shedder.plan import Budget, Move, Plan
from equipoise.shedder.reported import format_age, format_duration
from equipoise.shedder.scheduler import Ends
from equipoise.shedder.snapshot import Candidates, Since, Snapshot, WeighedBrokers, take

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

    def clear(self) -> None:
        """Free the weighed brokers; see `WeighedBrokers.clear`."""
        if isinstance(self.snapshot.brokers, WeighedBrokers):
            self.snapshot.brokers.clear()


def cluster_snapshot_of(
    view: View,
    summaries: Iterable[Summary],
    settings: BalancingSettings,
    *,
    now_ms: int,
    resting: Collection[str] = (),
    since: Since | None = None,
) -> ClusterSnapshot:
    """Return the cluster of `view` at `now_ms` (Unix time), with its policies and placement rules.

    `resting` are bundles that have moved lately, `since` is what has happened since the last round.
    A broker without recent reports takes no part, even if a policy's own limit would still accept
    its last report.
    """
    known = tuple(summaries)
    loads = believed({summary.broker: summary.load for summary in known})
    destinations = Destinations(view, loads=loads, rules=settings.placement)
    age_ms_max = _age_ms_max(settings)
    snapshot = take(
        view,
        known,
        now_ms=now_ms,
        age_ms_max=age_ms_max,
        resting=resting,
        maintained=destinations.maintained,
        frozen=controls_in(view, now_ms).why_frozen,
    )
    silent = {
        summary.broker: (
            f"its last load report was made {format_age(now_ms - summary.load.taken_ms)} (limit:"
            f" {format_duration(age_ms_max)})"
        )
        for summary in known
        if summary.broker in snapshot.live and abs(now_ms - summary.load.taken_ms) > age_ms_max
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


def fresh(
    summaries: Iterable[Summary], settings: BalancingSettings, *, now_ms: int
) -> Mapping[str, Summary]:
    """Return the summaries that placement uses at `now_ms` (Unix time), by broker: those that
    `cluster_snapshot_of` counts as recent.

    Without this check, a broker that was idle when its reports stopped would get every bundle. An
    unknown broker counts as the mean.
    """
    age_ms_max = _age_ms_max(settings)
    return {
        summary.broker: summary
        for summary in summaries
        if abs(now_ms - summary.load.taken_ms) <= age_ms_max
    }


def _age_ms_max(settings: BalancingSettings) -> int:
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
        return Candidates(allowed=()) if bundle is None else destinations.of(bundle)

    return candidates


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancingRound:
    """The plan of one round of the leader, and its strategy: `OF_POLICIES`, or the name of a
    shedder.

    `memory`: what the shedder remembers. `capacities`: of the brokers whose mean load the
    predictions of the moves refer to, by id; empty without predictions.
    """

    plan: Plan
    strategy: str
    memory: object = None
    capacities: Mapping[str, int] = field(default_factory=dict)

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
    if moves:
        return BalancingRound(
            plan=Plan(moves=moves, stays=stays), strategy=OF_POLICIES, memory=memory
        )
    plan, memory = settings.policy.plan(snapshot, memory)
    plan = plan.with_stays(stays)
    is_predicted = any(move.predicted is not None for move in plan.moves)
    capacities = (
        {broker.broker: broker.capacity for broker in snapshot.brokers if broker.barred is None}
        if is_predicted
        else {}
    )
    return BalancingRound(
        plan=plan, strategy=settings.balancing.shedder, memory=memory, capacities=capacities
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


def foreseen(
    cluster: ClusterSnapshot,
    settings: BalancingSettings,
    placement: Placement,
    *,
    budget: Budget | None = None,
    at_ms: int = 0,
) -> tuple[str, Forecast]:
    """Return the strategy of the next round, as in `BalancingRound.strategy`, and what the round
    would do if it were due. `budget`: the leader's after its last round, at `at_ms`, if known.
    """
    snapshot, policy = cluster.snapshot, settings.policy
    due = policy.as_if_due(snapshot, budget, at_ms)
    planned = plan_round(cluster, settings, placement, memory=due)
    placed = _placed(cluster.destinations.view, planned.plan, placement)
    return planned.strategy, forecast_of(
        snapshot, planned.plan, measure=policy.measure, placed=placed
    )


def groups_in_play(settings: BalancingSettings) -> tuple[str, ...]:
    """Return the groups of settings that affect a round: `balancing`, the shedder's own, `weights`
    and `placement`.
    """
    return ("balancing", SHEDDERS[settings.balancing.shedder], "weights", "placement")


def _placed(view: View, plan: Plan, placement: Placement) -> Mapping[str, str]:
    """Return where placement would put the planned bundles that have no destination."""
    chosen = planned_elsewhere(view, plan.moves, placement)
    return {bundle: view.live[incarnation].broker for bundle, incarnation in chosen.items()}
