"""The balancer's snapshot over any reports: no report affects what is known of other brokers."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from equipoise.shedder.balanced import BalancedShedder
from equipoise.shedder.load_reports import Summary, fault_of_summary
from equipoise.shedder.loads import FIGURE_MAX, USE_MAX, Averages, BrokerLoad, BundleTraffic
from equipoise.shedder.snapshot import IDLE_COST, Snapshot, take
from tests.channels.folding import NAMESPACE, Channel, channel_with
from tests.shedding import plan_of

NOW_MS = 1_000_000
AGE_MS_MAX = 15_000
BROKERS = ("a", "b", "c")
STEP = 0x20000000
BUNDLES = [
    f"{NAMESPACE}/0x{low:08x}_0x{min(low + STEP, 0xFFFFFFFF):08x}"
    for low in range(0, 0x100000000, STEP)
]


def served() -> Channel:
    """Three brokers that share eight bundles."""
    channel = channel_with(*BROKERS, bundles=len(BUNDLES))
    for place in range(len(BUNDLES)):
        channel.own(BROKERS[place % len(BROKERS)], place * STEP)
    return channel


VIEW = served().view
SOUND = st.floats(0, 1e6)
ANY = SOUND | st.sampled_from([math.nan, math.inf, -1.0, 1e300])


COLUMNS = st.binary()


@st.composite
def summaries(
    draw: st.DrawFn,
    figures: st.SearchStrategy[float],
    moments: st.SearchStrategy[int],
    columns: st.SearchStrategy[bytes] = COLUMNS,
) -> list[Summary]:
    """At most one summary of each of four brokers, one of which is dead, over any of the
    bundles.
    """
    found = []
    for broker in draw(st.lists(st.sampled_from([*BROKERS, "dead"]), unique=True)):
        costs = draw(
            st.dictionaries(
                st.sampled_from(BUNDLES), figures.map(lambda cost: cost + IDLE_COST), max_size=3
            )
        )
        load = BrokerLoad(
            taken_ms=draw(moments),
            averages=Averages(
                weighted_max=draw(figures.map(lambda used: used / USE_MAX)),
                bytes_per_second=draw(figures),
            ),
            bundle_count=draw(st.integers(0, 12)),
            bundles=tuple(BundleTraffic(bundle=name, cost=cost) for name, cost in costs.items()),
        )
        found.append(
            Summary(
                broker=broker,
                load=load,
                cost=draw(figures),
                column=draw(columns),
                noise=draw(figures),
            )
        )
    return found


MOMENTS = st.sampled_from([NOW_MS, NOW_MS - 1, NOW_MS - AGE_MS_MAX - 1, NOW_MS + 10**9, 0])


def taken(summaries: list[Summary]) -> Snapshot:
    return take(VIEW, summaries, now_ms=NOW_MS, age_ms_max=AGE_MS_MAX)


def is_possible(summary: Summary) -> bool:
    return fault_of_summary(summary) is None


@given(summaries(ANY, MOMENTS))
def test_all_bundles_are_weighed_for_any_reports(told: list[Summary]) -> None:
    """Each bundle of the view weighs at its owner, at least as much as an idle one."""
    snapshot = taken(told)
    weighed = [bundle for broker in snapshot.brokers for bundle in broker.bundles]
    assert sorted(BUNDLES) == sorted(bundle.name for bundle in weighed)
    assert all(IDLE_COST <= bundle.cost <= FIGURE_MAX for bundle in weighed)
    plan = plan_of(BalancedShedder(), snapshot)
    counts = {
        summary.broker
        for summary in told
        if is_possible(summary) and abs(NOW_MS - summary.load.taken_ms) <= AGE_MS_MAX
    }
    assert counts.issuperset(
        {name for move in plan.moves for name in (move.source, move.destination)}
    )


@given(summaries(ANY, MOMENTS))
def test_implausible_reports_do_not_affect_others(told: list[Summary]) -> None:
    """Costs are the same as without the reports with impossible figures, in any order."""
    sound = [summary for summary in told if is_possible(summary)]
    bare = [
        tuple(replace(broker, barred=None) for broker in taken(each).brokers)
        for each in (told, told[::-1], sound)
    ]
    assert bare[0] == bare[1] == bare[2]


@given(summaries(SOUND, st.just(NOW_MS), st.just(b"")))
def test_a_broker_costs_what_it_says(told: list[Summary]) -> None:
    """The costs of its bundles add up to its total, or to more if its figures contradict each
    other.
    """
    snapshot = taken(told)
    costs = {summary.broker: summary for summary in told}
    for broker in snapshot.brokers:
        summary = costs.get(broker.broker)
        own = {bundle.name for bundle in broker.bundles}
        if (
            summary is not None
            and own.issuperset(summary.costs)
            and len(own) == summary.load.bundle_count
        ):
            known_elsewhere = {
                name for other in told if other is not summary for name in other.costs
            } & own - set(summary.costs)
            total = sum(bundle.cost for bundle in broker.bundles)
            least = sum(summary.costs.values()) + IDLE_COST * (len(own) - len(summary.costs))
            if not known_elsewhere and len(own) > len(summary.costs):
                assert math.isclose(max(summary.cost, least), total)
