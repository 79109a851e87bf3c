"""Planning: how view, load and settings become a snapshot, a round and a forecast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from equipoise.brokers.balancing import destinations
from equipoise.brokers.balancing.decisions import STAYS_MAX, ends_of
from equipoise.brokers.balancing.destinations import Destinations, PlacementRules
from equipoise.brokers.balancing.placement import FewestBundles, LeastCost, Placement
from equipoise.brokers.balancing.planning import (
    OF_POLICIES,
    ClusterSnapshot,
    cluster_snapshot_of,
    fresh,
    groups_in_play,
    plan_round,
    policy_violations,
    predicted_round,
    stale_moves,
)
from equipoise.brokers.balancing.policies import Isolation, Pattern, control_document, is_named
from equipoise.brokers.balancing.settings.balancing_settings import (
    BalancingSettings,
    ReportRules,
    RoundSettings,
    placement_of,
)
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import Document
from equipoise.channel.core.view import View
from equipoise.shedder.loads import Load, Weights, averaged
from equipoise.shedder.plan import Budget, Move
from equipoise.shedder.scheduler import RETURNS
from equipoise.shedder.snapshot import Candidates, Since, Snapshot
from equipoise.shedder.transfer import TransferShedder
from tests.channels.folding import Channel
from tests.channels.ruled import Member, give, load, ruled_channel, set_policy
from tests.decisions import idle, with_plan
from tests.load.loaded import sample, uneven_channel
from tests.shedding import plan_of

NOW_MS = 1_700_000_000_000
SETTINGS = BalancingSettings(balancing=RoundSettings(shedder="TransferShedder"))
FIRST = "tenant/ns/0x00000000_0x20000000"
PERCENTS = {"a": 90.0, "b": 35.0, "c": 5.0}


def loads(channel: Channel, percents: Mapping[str, float], *, age_ms: int = 0) -> list[Load]:
    """The loads of brokers that have reported once."""
    return [
        averaged(None, replace(sample(channel, broker, percents[broker]), at_ms=NOW_MS - age_ms))
        for broker in percents
    ]


def seen(channel: Channel, settings: BalancingSettings = SETTINGS) -> ClusterSnapshot:
    """The cluster when all have just reported."""
    return cluster_snapshot_of(channel.view, loads(channel, PERCENTS), settings, now_ms=NOW_MS)


def taken(channel: Channel, settings: BalancingSettings = SETTINGS) -> Snapshot:
    """The snapshot of that cluster."""
    return seen(channel, settings).snapshot


def with_policy(channel: Channel, name: str, **document: str) -> Channel:
    """The channel with a cluster policy. Two underscores in a field stand for a dot."""
    fields = {field.replace("__", "."): value for field, value in document.items()}
    channel.accept(propose.set_policy(channel.admin(), channel.view, name=name, document=fields))
    return channel


def test_a_snapshot_combines_load_and_view() -> None:
    since, weights = Since(stopped=True), Weights(cpu=0.5)
    channel = uneven_channel()
    snapshot = cluster_snapshot_of(
        channel.view,
        loads(channel, PERCENTS),
        replace(SETTINGS, weights=weights),
        now_ms=NOW_MS,
        since=since,
        resting={FIRST},
    ).snapshot
    assert ("a", "b", "c") == snapshot.live
    assert {"a": 0.9, "b": 0.35, "c": 0.05} == {
        name: load.average_use for name, load in snapshot.loads.items()
    }
    assert [6, 2, 0] == [len(broker.bundles) for broker in snapshot.brokers]
    assert ({FIRST: "it has moved lately"}, since, weights, {}) == (
        snapshot.resting,
        snapshot.since,
        snapshot.weights,
        snapshot.policies,
    )


def test_rules_are_those_of_placement() -> None:
    channel = with_policy(
        uneven_channel(), "isolation/first", namespaces__0="tenant/ns", primary__0="[ab]"
    )
    snapshot = taken(channel)
    assert {"tenant/ns": "isolation"} == snapshot.policies
    expected = Candidates(
        allowed=("a", "b"), refused={"c": "isolation/first gives this namespace other brokers"}
    )
    assert expected == snapshot.candidates(FIRST)


def test_no_broker_may_have_a_bundle_that_is_gone() -> None:
    """A report may name a bundle that was split since."""
    assert Candidates(allowed=()) == taken(uneven_channel()).candidates(
        "tenant/ns/0x00000000_0x10000000"
    )


def test_the_topic_limit_uses_the_reports() -> None:
    """A report with an impossible figure does not count."""
    channel = uneven_channel()
    few = replace(SETTINGS, placement=replace(SETTINGS.placement, topics_max=6))
    assert ("b", "c") == taken(channel, few).candidates(FIRST).allowed
    liars = loads(channel, {**PERCENTS, "a": math.nan})
    assert ("a", "b", "c") == cluster_snapshot_of(
        channel.view, liars, few, now_ms=NOW_MS
    ).snapshot.candidates(FIRST).allowed


@pytest.mark.parametrize(
    ("age_ms", "told"),
    [
        (15_000, None),
        (15_001, "15 s ago"),
        (-15_000, None),
        (-15_001, "15 s ahead of this clock"),
    ],
)
def test_a_broker_that_stopped_reporting_takes_no_part(age_ms: int, told: str | None) -> None:
    """After three intervals without a report, or with a report from as far in the future. Placement
    forgets it, too.
    """
    channel = uneven_channel()
    old = loads(channel, {"a": 90.0}, age_ms=age_ms)
    known = [*old, *loads(channel, {"b": 35.0, "c": 5.0})]
    settings = replace(SETTINGS, reports=ReportRules(interval_max_ms=5_000))
    apart = cluster_snapshot_of(channel.view, known, settings, now_ms=NOW_MS).snapshot.apart
    message = f"its last load report was made {told} (limit: 15 s)"
    assert ({} if told is None else {"a": message}) == apart
    assert (told is None) == ("a" in fresh(old, settings, now_ms=NOW_MS))


def test_a_broker_that_returns_takes_no_part_yet() -> None:
    """Unless there is another reason, which comes first."""
    channel = uneven_channel()
    channel.accept(propose.draining(channel.author("a"), channel.view.brokers["a"]))
    snapshot = cluster_snapshot_of(
        channel.view,
        loads(channel, PERCENTS),
        SETTINGS,
        now_ms=NOW_MS,
        returning={"a": RETURNS, "c": RETURNS, "gone": RETURNS},
    ).snapshot
    assert ["a", "c"] == sorted(snapshot.apart)
    barred = {broker.broker: broker.barred for broker in snapshot.brokers}
    assert (None, RETURNS) == (barred["b"], barred["c"])
    assert RETURNS != barred["a"]


def test_a_draining_broker_takes_no_part_because_it_drains() -> None:
    """However old its report is."""
    channel = uneven_channel()
    channel.accept(propose.draining(channel.author("a"), channel.view.brokers["a"]))
    known = loads(channel, PERCENTS, age_ms=10**9)
    assert (
        "it drains"
        in cluster_snapshot_of(channel.view, known, SETTINGS, now_ms=NOW_MS).snapshot.apart["a"]
    )


@pytest.mark.parametrize(
    ("shedder", "group", "measure"),
    [
        ("BalancedShedder", "balanced", "cost"),
        ("TransferShedder", "transfer", "use"),
        ("AvgShedder", "average", "use"),
    ],
)
def test_each_shedder_has_its_settings_and_its_measure(
    shedder: str, group: str, measure: str
) -> None:
    """A forecast shows the groups of settings that affect a round, and compares brokers as the
    shedder does.
    """
    settings = BalancingSettings(balancing=RoundSettings(shedder=shedder))
    assert ("balancing", group, "weights", "placement") == groups_in_play(settings)
    _, forecast = predicted_round(seen(uneven_channel(), settings), settings, LeastCost())
    assert measure == forecast.measure.kind


def test_a_forecast_acts_where_the_leader_would_wait() -> None:
    """A policy that waits for several rounds plans as if they had passed."""
    cluster = seen(uneven_channel())
    snapshot = cluster.snapshot
    assert () == plan_of(TransferShedder(), snapshot).moves
    strategy, forecast = predicted_round(cluster, SETTINGS, LeastCost())
    assert ("TransferShedder", 3) == (strategy, len(forecast.plan.moves))


def test_a_forecast_keeps_to_the_budget_that_the_leader_has_left() -> None:
    settings = BalancingSettings()
    cluster = seen(uneven_channel(), settings)
    last = with_plan(idle(NOW_MS), budget=Budget(most=1.0, used=0.75))
    used = []
    for each in (last, replace(last, broker="b"), replace(last, at_ms=0), None):
        _, forecast = predicted_round(cluster, settings, LeastCost(), last=each)
        assert forecast.plan.budget is not None
        used.append(forecast.plan.budget.used >= 0.75)
    assert [True, False, False, False] == used, "only what it decided since it joined"


def test_placement_chooses_another_broker_than_the_owner() -> None:
    """A bundle without a destination goes to another broker than its owner, by the configured
    placement.
    """
    settings = replace(
        SETTINGS,
        balancing=RoundSettings(
            shedder="ThresholdShedder", placement="LeastResourceUsageWithWeight"
        ),
    ).with_group("threshold", bytes_min=0)
    channel = uneven_channel()
    placement = placement_of(settings, {load.broker: load for load in loads(channel, PERCENTS)})
    _, forecast = predicted_round(seen(channel, settings), settings, placement)
    assert {"c"} == {move.destination for move in forecast.plan.moves}
    assert {move.bundle for move in forecast.plan.moves} == forecast.placed


def test_a_round_asks_each_policy_once_about_each_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshot and plan share their answers: no pattern is matched twice with a namespace or a
    broker.
    """
    asked: list[tuple[object, str]] = []
    covers = Isolation.covers

    def noted_covers(self: Isolation, namespace: str) -> bool:
        asked.append((self.name, namespace))
        return covers(self, namespace)

    def noted_named(patterns: Sequence[Pattern], broker: str) -> bool:
        asked.append((tuple(patterns), broker))
        return is_named(patterns, broker)

    monkeypatch.setattr(Isolation, "covers", noted_covers)
    monkeypatch.setattr(destinations, "is_named", noted_named)
    channel = with_policy(
        uneven_channel(),
        "isolation/first",
        namespaces__0="tenant/ns",
        primary__0="[ab]",
        secondary__0="c",
    )
    planned = plan_round(seen(channel), SETTINGS, Unasked())
    assert "TransferShedder" == planned.strategy
    # One namespace, and three brokers as primaries and secondaries.
    assert 1 + 2 * 3 == len(set(asked)) == len(asked)


class Unasked:
    """A placement that must not be called."""

    def place(
        self,
        view: View,
        bundles: Sequence[BundleEntry],
        *,
        avoid: Mapping[str, frozenset[int]],
        at_most: int,
    ) -> dict[str, int]:
        raise AssertionError((view, bundles, avoid, at_most))


# --- bundles whose owner violates a policy ---

NS, OTHER = "t/ns", "t/other"
TO_B: Document = {"namespaces.0": NS, "primary.0": "b"}
ELSEWHERE = "a may not have it: isolation/x gives this namespace other brokers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A channel whose first broker owns all bundles of two namespaces, and a policy.

    `moves`: the place of each bundle that moves, and its destination. `stays`: why others do not.
    """

    name: str
    key: str = "isolation/x"
    policy: Document = field(default_factory=lambda: TO_B)
    bundles: int = 1
    at_most: int = 9
    namespace: str = NS
    resting: Sequence[int] = ()
    placement: Placement | None = None
    rules: PlacementRules = field(default_factory=PlacementRules)
    version: str = "1.0.0"
    groups: str | None = None
    loads: Mapping[str, Load] = field(default_factory=dict)
    moves: Sequence[tuple[int, str, str]] = ()
    stays: Sequence[str] = ()


class Stubborn:
    """A placement that puts everything at one broker."""

    def __init__(self, broker: str) -> None:
        self._broker = broker

    def place(
        self,
        view: View,
        bundles: Sequence[BundleEntry],
        *,
        avoid: Mapping[str, frozenset[int]],
        at_most: int,
    ) -> dict[str, int]:
        """See `Placement.place`."""
        return {bundle.name: view.brokers[self._broker].incarnation for bundle in bundles}


WITH_SECONDARY: Document = {
    "namespaces.0": NS,
    "primary.0": "b",
    "secondary.0": "a",
    "usage_threshold": 80,
}
VIOLATIONS = (
    Violation(name="its namespace belongs elsewhere", moves=[(0, "b", ELSEWHERE)]),
    Violation(
        name="a primary gives away bundles of other namespaces",
        policy={"namespaces.0": NS, "primary.0": "a"},
        namespace=OTHER,
        moves=[(0, "b", "a may not have it: isolation/x keeps it for other namespaces")],
    ),
    Violation(
        name="a pin moves what it covers",
        key="pin/x",
        policy={"namespace": NS, "range": "0x40000000_0x80000001", "brokers.0": "b"},
        bundles=4,
        moves=[(place, "b", "a may not have it: pin/x keeps this bundle at b") for place in (1, 2)],
    ),
    Violation(
        name="a pin of a missing namespace moves nothing",
        key="pin/x",
        policy={"namespace": "t/new", "brokers.0": "b"},
    ),
    Violation(
        name="a bundle that no other broker may have stays, and of very many the first are named",
        policy={"namespaces.0": NS, "primary.0": "gone"},
        bundles=STAYS_MAX + 1,
        stays=[f"{ELSEWHERE}; but no other broker may have it"] * STAYS_MAX,
    ),
    Violation(
        name="an unreadable policy moves nothing",
        policy={"namespaces.0": NS, "primary.0": "("},
        stays=[
            (
                "a may not have it: the policy isolation/x cannot be read, so nobody may have what"
                " it is about: primary.0 is '(', which is no regular expression that can be used:"
                " missing ): (; but no other broker may have it"
            )
        ],
    ),
    Violation(
        name="a bundle rests after a move, and another one moves instead",
        bundles=2,
        resting=[0],
        at_most=1,
        moves=[(1, "b", ELSEWHERE)],
        stays=[f"{ELSEWHERE}; but it has just moved"],
    ),
    Violation(
        name="at most so many move",
        bundles=8,
        at_most=3,
        moves=[(place, "b", ELSEWHERE) for place in range(3)],
    ),
    Violation(name="no bundle moves at all", at_most=0),
    Violation(
        name="versions, anti-affinity and the topic limit count only when a bundle is placed",
        policy={"namespaces.0": ".*", "primary.0": ".*"},
        rules=PlacementRules(prefer_later_versions=True, topics_max=1),
        version="2.0.0",
        groups="group",
        loads={"a": load(topics=5)},
    ),
    Violation(
        name="a secondary keeps a bundle while its primary is full",
        policy=WITH_SECONDARY,
        loads={"b": load(0.9)},
    ),
    Violation(
        name="a secondary gives a bundle back when its primary has room",
        policy=WITH_SECONDARY,
        loads={"b": load(0.7)},
        moves=[(0, "b", "a may not have it: isolation/x has 1 primaries available, and needs 1")],
    ),
    *(
        Violation(
            name=f"a forbidden choice of placement, {broker}, is not followed",
            placement=Stubborn(broker),
            stays=[f"{ELSEWHERE}; but placement finds no place among the allowed brokers"],
        )
        for broker in "ac"
    ),
)


@pytest.mark.parametrize("case", VIOLATIONS, ids=lambda case: case.name)
def test_a_bundle_leaves_an_owner_that_may_not_have_it(case: Violation) -> None:
    members: list[Member | str] = ["a", "b", Member(broker="c", version=case.version)]
    channel = ruled_channel(members, dict.fromkeys((NS, OTHER), case.groups), bundles=case.bundles)
    for name in sorted(channel.view.bundles):
        give(channel, name, "a")
    set_policy(channel, case.key, case.policy)
    names = [bundle.name for bundle in channel.view.bundles_of(case.namespace)]
    moves, stays = policy_violations(
        Destinations(channel.view, loads=case.loads, rules=case.rules),
        placement=case.placement or FewestBundles(rules=case.rules),
        at_most=case.at_most,
        resting=[names[place] for place in case.resting],
    )
    expected = [(names[place], "a", broker, why) for place, broker, why in case.moves]
    assert expected == [(move.bundle, move.source, move.destination, move.reason) for move in moves]
    assert list(case.stays) == [stay.reason for stay in stays]


def test_a_draining_broker_is_skipped() -> None:
    """A bundle on its way no longer violates a policy at its source. Rules may also refuse a
    draining broker, which takes nothing in any case.
    """
    channel = ruled_channel(["a", "b", "c"], {NS: None}, bundles=2)
    first, second = (bundle.name for bundle in channel.view.bundles_of(NS))
    for name in (first, second):
        give(channel, name, "a")
    set_policy(channel, "isolation/x", TO_B)
    moving = channel.view.bundles[first]
    channel.accept(propose.transfer(channel.admin(), moving, destination=channel.incarnation("c")))

    def found() -> list[str]:
        moves, _ = policy_violations(
            Destinations(channel.view), placement=FewestBundles(), at_most=9
        )
        return [move.bundle for move in moves]

    assert [second] == found()
    channel.accept(propose.draining(channel.author("a"), channel.broker("a")))
    assert [] == found()
    bound = Destinations(channel.view).bound(channel.view.bundles[second])
    assert (("b",), {"a", "c"}) == (bound.allowed, set(bound.refused))


def test_policy_violations_come_first() -> None:
    """Policy violations are the whole round, whatever the load. Without them the shedder plans."""
    channel = uneven_channel()
    bundle = next(
        bundle
        for bundle in channel.view.bundles.values()
        if bundle.owner == channel.incarnation("a")
    )
    with_policy(
        channel,
        "pin/p",
        namespace=bundle.namespace,
        range=bundle.name.rpartition("/")[2],
        brokers__0="b",
    )
    planned = plan_round(seen(channel), SETTINGS, LeastCost())
    assert (OF_POLICIES, "misplaced") == (planned.strategy, planned.kind)
    assert [(bundle.name, "a", "b")] == [
        (move.bundle, move.source, move.destination) for move in planned.plan.moves
    ]
    resting = plan_round(seen(channel), SETTINGS, LeastCost(), resting=(bundle.name,))
    assert ("TransferShedder", True) == (
        resting.strategy,
        bundle.name in {stay.subject for stay in resting.plan.stays},
    )


# --- controls ---


FROZEN = "its namespace is frozen: a sale"


def frozen_channel() -> Channel:
    """The uneven channel with a namespace that is frozen until 1 s after `NOW_MS`."""
    channel = uneven_channel()
    document = control_document("a sale", until_ms=NOW_MS + 1_000)
    channel.accept(
        propose.set_policy(
            channel.admin(), channel.view, name="freeze/tenant/ns", document=document
        )
    )
    return channel


def to(destination: str | None, *, source: str = "a", bundle: str = FIRST) -> Move:
    return Move(bundle=bundle, source=source, destination=destination, reason="test")


@pytest.mark.parametrize(
    ("rule", "move", "problem"),
    [
        ("", to("b"), None),
        ("", to(None), None),
        ("", to("c", source="b"), "it is not at its source any more"),
        (
            "",
            to("b", bundle="tenant/ns/0x00000000_0x00000001"),
            "it is not at its source any more",
        ),
        ("", to("gone"), "gone takes nothing now"),
        ("pin", to("b"), "pin/kept keeps this bundle at a"),
        ("pin", to(None), "no other broker may have it now"),
        ("freeze", to("b"), FROZEN),
    ],
)
def test_a_move_is_stale_once_its_ends_or_the_rules_are_not_what_they_were(
    rule: str, move: Move, problem: str | None
) -> None:
    channel = frozen_channel() if rule == "freeze" else uneven_channel()
    if rule == "pin":
        with_policy(channel, "pin/kept", namespace="tenant/ns", brokers__0="a")
    told = stale_moves(channel.view, [move], PlacementRules(), now_ms=NOW_MS)
    assert ({} if problem is None else {move.bundle: problem}) == told


def test_nothing_of_a_frozen_namespace_moves_for_load() -> None:
    """The reason of each stay is that of the operator."""
    cluster = seen(frozen_channel(), BalancingSettings())
    assert {FROZEN} == {
        bundle.barred for broker in cluster.snapshot.brokers for bundle in broker.bundles
    }
    strategy, forecast = predicted_round(cluster, BalancingSettings(), LeastCost())
    assert ("BalancedShedder", ()) == (strategy, forecast.plan.moves)


def test_a_freeze_that_has_ended_does_not_count() -> None:
    channel = frozen_channel()
    cluster = cluster_snapshot_of(channel.view, (), SETTINGS, now_ms=NOW_MS + 1_000)
    assert {None} == {
        bundle.barred for broker in cluster.snapshot.brokers for bundle in broker.bundles
    }


def test_a_policy_moves_a_frozen_bundle() -> None:
    """It is an operator's wish as well, and a rule."""
    channel = with_policy(frozen_channel(), "pin/kept", namespace="tenant/ns", brokers__0="b")
    cluster = seen(channel)
    planned = plan_round(cluster, SETTINGS, LeastCost())
    assert (OF_POLICIES, "b") == (planned.strategy, planned.plan.moves[0].destination)
    assert {} == stale_moves(channel.view, planned.plan.moves, PlacementRules(), now_ms=NOW_MS)


@pytest.mark.parametrize("shedder", ["BalancedShedder", "TransferShedder"])
def test_brokers_are_compared_with_those_that_serve_the_same(shedder: str) -> None:
    """Two programs: both brokers of the one have far more load than those of the other. What it
    has is evened out all the same, and the other program is not in the way.
    """
    channel = Channel()
    channel.genesis()
    channel.create(even_boundaries(30), namespace="tenant/ns")
    for name, broker in (("tenant/ns", "a"), ("tenant/ns", "b"), ("t/two", "c"), ("t/two", "d")):
        channel.join(broker, serves=[name])
    channel.join("idle", serves=["t/later"])
    channel.create(even_boundaries(2), namespace="t/two")
    for bundle in channel.view.bundles_of("tenant/ns"):
        give(channel, bundle.name, "a" if bundle.low < 0xA0000000 else "b")
    for bundle, broker in zip(channel.view.bundles_of("t/two"), "cd", strict=True):
        give(channel, bundle.name, broker)
    settings = BalancingSettings(balancing=RoundSettings(shedder=shedder))
    percents = {"a": 95.0, "b": 20.0, "c": 5.0, "d": 5.0, "idle": 1.0}
    cluster = cluster_snapshot_of(channel.view, loads(channel, percents), settings, now_ms=NOW_MS)
    assert (frozenset({"a", "b", "idle"}), frozenset({"c", "d"})) == cluster.snapshot.pools
    strategy, forecast = predicted_round(cluster, settings, placement_of(settings, {}))
    assert shedder == strategy
    assert {frozenset("ab")} == {frozenset(ends_of(move)) for move in forecast.plan.moves}
    assert forecast.forbidden == ()
    first = plan_round(cluster, settings, placement_of(settings, {}))
    again = plan_round(cluster, settings, placement_of(settings, {}), memory=first.memory)
    assert {frozenset("ab")} >= {frozenset(ends_of(move)) for move in again.plan.moves}
    stays = {stay.subject: stay.reason for stay in first.plan.stays}
    assert "its program serves no namespace that exists" == stays["idle"]
