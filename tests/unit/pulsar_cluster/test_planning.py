"""A plan evens a cluster out at once, by any policy, within the rules of the cluster."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.settings.balancing_settings import SHEDDERS, BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import with_values
from equipoise.pulsar_cluster.credentials import NotSent, Reply, Request
from equipoise.pulsar_cluster.loads import LoadReports
from equipoise.pulsar_cluster.placement_rules import ClusterPolicies, parse_isolation
from equipoise.pulsar_cluster.planning import EVEN, Cluster, ClusterPlan, holder_of, plan_moves
from equipoise.pulsar_cluster.records import StateRecord
from equipoise.pulsar_cluster.sources import cluster_of, measured_loads
from equipoise.pulsar_cluster.table import Table
from equipoise.shedder.loads import BundleTraffic, Traffic
from tests.unit.pulsar_cluster.made_clusters import (
    BROKERS,
    NOW_MS,
    admin_of,
    answers,
    bundles_at,
    host_of,
    names,
    owned,
    path_of,
    replied,
    reports_of,
)

BUNDLES = names(16)


def by(shedder: str) -> BalancingSettings:
    return with_values(EVEN, {"balancing.shedder": shedder})


def piled(**options: object) -> Cluster:
    owners: dict[str, list[str]] = {"a:8080": BUNDLES, "b:8080": [], "c:8080": []}
    rates = dict.fromkeys(BUNDLES, 40.0)
    return Cluster(
        members=BROKERS,
        bundles=bundles_at(owners),
        reports=reports_of(owners, rates),
        **options,  # type: ignore[arg-type]
    )


def carried(
    planned: ClusterPlan, rates: dict[str, float], owners: dict[str, str]
) -> dict[str, float]:
    after = owners | {move.bundle: move.destination or "" for move in planned.moves}
    return {
        broker: sum(rates[bundle] for bundle, at in after.items() if at == broker)
        for broker in BROKERS
    }


def test_16_bundles_piled_on_one_broker_are_one_plan() -> None:
    """10 of them are named, the others share the rest."""
    planned = plan_moves(piled(), EVEN, now_ms=NOW_MS)
    after = carried(planned, dict.fromkeys(BUNDLES, 40.0), dict.fromkeys(BUNDLES, "a:8080"))
    assert {200.0, 240.0} == set(after.values())
    assert {2} == set(planned.versions.values())
    assert all(move.source == "a:8080" and move.reason for move in planned.moves)


@pytest.mark.parametrize("shedder", SHEDDERS)
def test_every_policy_makes_a_sound_plan(shedder: str) -> None:
    """No bundle moves twice, and each move has a destination."""
    planned = plan_moves(piled(), by(shedder), now_ms=NOW_MS)
    assert len(planned.moves) == len({move.bundle for move in planned.moves})
    assert all(move.destination in BROKERS for move in planned.moves)


def test_pulsars_policy_acts_at_once_and_more_than_once() -> None:
    """Its one round moves to one broker alone. The plan goes on from there."""
    planned = plan_moves(
        piled(),
        with_values(by("TransferShedder"), {"transfer.target_deviation": 0.05}),
        now_ms=NOW_MS,
    )
    assert {"b:8080", "c:8080"} == {move.destination for move in planned.moves}


@given(st.lists(st.integers(0, 300), min_size=6, max_size=30), st.randoms(use_true_random=False))
def test_a_plan_never_makes_the_load_less_even(rates: list[int], chance: object) -> None:
    bundles = names(len(rates))
    owners = {bundle: BROKERS[chance.randrange(3)] for bundle in bundles}  # type: ignore[attr-defined]
    held = {
        broker: [bundle for bundle in bundles if owners[bundle] == broker] for broker in BROKERS
    }
    loads = {bundle: float(rate) for bundle, rate in zip(bundles, rates, strict=True)}
    cluster = Cluster(
        members=BROKERS,
        bundles=bundles_at(held),
        reports=reports_of(held, loads, named_max=99),
        bundles_max=99,
    )
    planned = plan_moves(cluster, EVEN, now_ms=NOW_MS)
    assert planned.forecast.before is not None
    assert planned.forecast.after is not None
    assert planned.forecast.after.deviation <= planned.forecast.before.deviation + 1e-9
    assert planned == plan_moves(cluster, EVEN, now_ms=NOW_MS)


def test_bundles_of_pulsar_and_in_transition_stay() -> None:
    system = names(4, "pulsar/system")
    bundles = bundles_at({"a:8080": [*system, *BUNDLES[:4]]})
    bundles[BUNDLES[0]] = owned(BUNDLES[0], "b:8080", source="a:8080", state="Releasing")
    bundles[BUNDLES[1]] = owned(BUNDLES[1], None, source="a:8080", state="Splitting")
    held = {"a:8080": [*system, *BUNDLES[:4]], "b:8080": [], "c:8080": []}
    reports = reports_of(held, dict.fromkeys([*system, *BUNDLES[:4]], 50.0))
    planned = plan_moves(
        Cluster(members=BROKERS, bundles=bundles, reports=reports), EVEN, now_ms=NOW_MS
    )
    assert {BUNDLES[2], BUNDLES[3]} >= {move.bundle for move in planned.moves}
    assert planned.moves


def test_a_broker_that_is_gone_or_silent_takes_no_part() -> None:
    cluster = piled()
    del cluster.reports.loads["c:8080"]
    cluster.bundles["x/y/0x00000000_0xffffffff"] = owned("x/y/0x00000000_0xffffffff", "gone:8080")  # type: ignore[index]
    planned = plan_moves(cluster, EVEN, now_ms=NOW_MS)
    assert {"b:8080"} == {move.destination for move in planned.moves}
    assert (
        "gone:8080 is no broker of the cluster any more, and still has 1 bundles",
    ) == planned.notes
    assert {"c:8080": "it has not reported its load"} == {
        broker.broker: broker.apart
        for broker in planned.forecast.brokers
        if broker.apart is not None
    }


def test_without_any_report_nothing_moves() -> None:
    cluster = Cluster(
        members=BROKERS, bundles=bundles_at({"a:8080": BUNDLES}), reports=LoadReports()
    )
    planned = plan_moves(cluster, EVEN, now_ms=NOW_MS)
    assert () == planned.moves
    assert planned.forecast.before is None


def test_isolation_keeps_bundles_from_other_brokers() -> None:
    policy = parse_isolation(
        "apart", {"namespaces": ["public/default"], "primary": ["a", "b"], "secondary": []}
    )
    planned = plan_moves(piled(policies=ClusterPolicies(isolations=(policy,))), EVEN, now_ms=NOW_MS)
    assert {"b:8080"} == {move.destination for move in planned.moves}
    assert ["the isolation policy apart gives this namespace other brokers"] == [
        each.reason for each in planned.forecast.forbidden
    ]


def test_a_group_is_never_put_together_although_one_round_would() -> None:
    """A policy sees the rules as they were before its first move: three bundles on one broker must
    not all go to one other.
    """
    spaces = [f"t/{name}" for name in "uvwxyz"]
    bundles = [names(1, space)[0] for space in spaces]
    held: dict[str, list[str]] = {"a:8080": bundles, "b:8080": [], "c:8080": []}
    cluster = Cluster(
        members=BROKERS,
        bundles=bundles_at(held),
        reports=reports_of(held, dict.fromkeys(bundles, 50.0)),
        policies=ClusterPolicies(groups=dict.fromkeys(spaces, "group")),
    )
    after = carried(
        plan_moves(cluster, EVEN, now_ms=NOW_MS),
        dict.fromkeys(bundles, 1.0),
        dict.fromkeys(bundles, "a:8080"),
    )
    assert {2.0} == set(after.values())


def test_a_bundle_without_figures_is_idle_only_if_its_broker_has_renewed_them_since_it_came() -> (
    None
):
    """A broker renews the figures of its topics once a minute, and has none for a while after it
    started.
    """
    idle, busy, new, come = (owned(bundle, "a:8080") for bundle in BUNDLES[:4])
    held = {
        idle.bundle: idle,
        busy.bundle: busy,
        new.bundle: new,
        come.bundle: come._replace(published_ms=NOW_MS),
    }
    load = BundleTraffic(bundle=busy.bundle, traffic=Traffic(messages_in_per_second=9.0))
    figures = {busy.bundle: load, new.bundle: None}
    found = measured_loads(held, figures, settled_ms=NOW_MS - 1)
    assert {busy.bundle: load, idle.bundle: BundleTraffic(bundle=idle.bundle)} == found
    assert {} == measured_loads(held, {}, settled_ms=NOW_MS - 1)


def test_a_broker_that_sent_no_report_counts_by_its_measured_bundles() -> None:
    cluster = piled()
    for broker in BROKERS:
        del cluster.reports.loads[broker]
    measured = {
        bundle: BundleTraffic(bundle=bundle, traffic=Traffic(messages_in_per_second=40.0))
        for bundle in BUNDLES
    }
    cluster.reports.measure("a:8080", tuple(measured.values()), NOW_MS)
    cluster.reports.measure("b:8080", (), NOW_MS)
    planned = plan_moves(replace(cluster, measured=measured), EVEN, now_ms=NOW_MS)
    assert ({"b:8080"}, 8) == ({move.destination for move in planned.moves}, len(planned.moves))


@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_broker_that_has_only_bundles_of_pulsar_itself_takes_part_without_a_report(
    is_hidden: bool,
) -> None:
    """A broker reports only when its load changes, so an idle one may be silent for long. If it is
    hidden, nothing is known.
    """
    own = {"topic": {"msgRateIn": 0.0, "producerCount": 1}}
    busy = {"topic": {"msgRateIn": 40.0}}
    figures = {
        "a": {
            "public/default": {
                bundle.rpartition("/")[2]: {"persistent": busy} for bundle in BUNDLES
            }
        }
    }
    figures["b"] = {"pulsar/system": {"0x00000000_0x10000000": {"persistent": own}}}

    def answer(request: Request) -> Reply:
        if is_hidden and host_of(request) == "b":
            raise NotSent("filtered")
        paths = {
            "/brokers": ["a:8080", "b:8080"],
            "/broker-stats/topics": figures[host_of(request)],
        }
        return replied(paths.get(path_of(request), {}))

    table, reports = Table(), LoadReports()
    system = "pulsar/system/0x00000000_0x10000000"
    for number, message in enumerate(
        [*bundles_at({"a:8080": BUNDLES}).values(), owned(system, "b:8080")]
    ):
        table.fold(message._replace(offset=number))
    cluster = cluster_of(table, reports, admin_of(answer), may_measure=True)
    assert is_hidden == ("b:8080" not in reports.loads)
    if is_hidden:
        return
    planned = plan_moves(cluster, EVEN, now_ms=max(load.at_ms for load in reports.loads.values()))
    assert ({"b:8080"}, 8) == ({move.destination for move in planned.moves}, len(planned.moves))


@pytest.mark.parametrize("rate", [0.0, 30.0])
def test_what_carries_nothing_stays(rate: float) -> None:
    """A move of it interrupts nobody, and evens nothing out."""
    held: dict[str, list[str]] = {"a:8080": BUNDLES[:12], "b:8080": [], "c:8080": []}
    rates = dict.fromkeys(BUNDLES, 0.0) | dict.fromkeys(BUNDLES[:3], rate)
    planned = plan_moves(
        Cluster(members=BROKERS, bundles=bundles_at(held), reports=reports_of(held, rates)),
        EVEN,
        now_ms=NOW_MS,
    )
    assert (2 if rate else 0, True) == (
        len(planned.moves),
        {move.bundle for move in planned.moves} <= set(BUNDLES[:3]),
    )


def test_each_set_of_brokers_is_evened_out_in_itself() -> None:
    """By the mean of all brokers, neither of the two that an isolation policy sets apart has too
    much.
    """
    mine, others = names(8, "t/mine"), names(8, "t/others")
    members = ("a:8080", "b:8080", "c:8080", "d:8080", "e:8080")
    held = {
        "a:8080": mine[:3],
        "b:8080": mine[3:],
        "c:8080": others[:1],
        "d:8080": others[1:2],
        "e:8080": others[2:],
    }
    rates = dict(
        zip(mine, (36.0, 36.0, 35.0, 19.0, 36.0, 36.0, 36.0, 18.0), strict=True)
    ) | dict.fromkeys(others, 10.0)
    policy = parse_isolation(
        "apart", {"namespaces": ["t/mine"], "primary": ["a", "b"], "secondary": []}
    )
    cluster = Cluster(
        members=members,
        bundles=bundles_at(held),
        reports=reports_of(held, rates),
        policies=ClusterPolicies(isolations=(policy,)),
    )
    planned = plan_moves(cluster, EVEN, now_ms=NOW_MS)
    after = {bundle: broker for broker, bundles in held.items() for bundle in bundles}
    after |= {move.bundle: move.destination or "" for move in planned.moves}
    carry = [
        sum(rates[bundle] for bundle, at in after.items() if at == broker) for broker in members
    ]
    assert (252.0, {20.0, 30.0}) == (sum(carry[:2]), set(carry[2:]))
    assert abs(carry[0] - carry[1]) <= 2.0, carry
    assert any(
        "isolation policies give a:8080, b:8080 bundles of their own: these are evened out" in note
        for note in planned.notes
    )


def test_a_bundle_of_unknown_load_stays_and_is_named() -> None:
    """It came after the last report of its broker, and has no figures yet."""
    held: dict[str, list[str]] = {"a:8080": BUNDLES[:8], "b:8080": [], "c:8080": []}
    bundles = bundles_at(held) | {
        BUNDLES[0]: owned(BUNDLES[0], "a:8080")._replace(published_ms=NOW_MS + 1)
    }
    reports = reports_of(held, dict.fromkeys(BUNDLES, 40.0) | {BUNDLES[0]: 0.0})
    planned = plan_moves(
        Cluster(members=BROKERS, bundles=bundles, reports=reports), EVEN, now_ms=NOW_MS
    )
    assert frozenset({BUNDLES[0]}) == planned.unknown
    assert BUNDLES[0] not in {move.bundle for move in planned.moves}
    assert planned.moves


def gathered(present: dict[str, object], figures: dict[str, object]) -> Cluster:
    """Gather a cluster of one broker with these boundaries and figures of topics."""
    table = Table()
    for number, message in enumerate(bundles_at({"a:8080": BUNDLES}).values()):
        table.fold(message._replace(offset=number))
    paths = {"/brokers": ["a:8080"], "/broker-stats/topics": figures, "*": {}, **present}
    return cluster_of(table, LoadReports(), admin_of(answers(path_of, paths)), may_measure=True)


@pytest.mark.parametrize(
    ("boundaries", "left"), [(["0x00000000", "0x10000000", "0xffffffff"], 1), (None, 0)]
)
def test_leftovers_of_a_namespace_that_was_made_again_are_not_planned_for(
    boundaries: list[str] | None, left: int
) -> None:
    answer = Reply(404) if boundaries is None else {"boundaries": boundaries}
    assert left == len(gathered({"/namespaces/public/default/bundles": answer}, {}).bundles)


def test_it_is_known_when_the_figures_of_clients_that_came_lately_are_settled() -> None:
    now_ms = time.time_ns() // 1_000_000
    late = {"publishers": [{"connectedSince": "2999-01-01T00:00:00Z"}], "producerCount": 1}
    figures = {
        bundle.rpartition("/")[2]: {
            "persistent": {"x": late if bundle == BUNDLES[0] else {"msgRateIn": 9.0}}
        }
        for bundle in BUNDLES
    }
    cluster = gathered(
        {"/brokers/configuration/runtime": {"statsUpdateFrequencyInSecs": "10"}},
        {"public/default": figures},
    )
    assert {"a:8080": 1} == cluster.unsettled
    assert cluster.settles_ms is not None
    assert 30_000 <= cluster.settles_ms - now_ms < 60_000


@pytest.mark.parametrize(
    ("state", "destination", "source", "holder"),
    [
        ("Owned", "a", "b", "a"),
        ("Assigning", "a", "b", "a"),
        ("Releasing", "a", "b", "a"),
        ("Releasing", None, "b", "b"),
        ("Splitting", None, "b", "b"),
        ("Free", None, "b", None),
        ("Deleted", None, "b", None),
        ("Warming", "a", "b", None),
    ],
)
def test_the_load_of_a_bundle_counts_where_it_goes(
    state: str, destination: str | None, source: str | None, holder: str | None
) -> None:
    assert holder == holder_of(StateRecord(state, destination, source, force=False, version=1))
