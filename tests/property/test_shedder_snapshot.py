"""The balancer's snapshot over any reports: no report affects what is known of other brokers."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from equipoise.shedder.balanced import BalancedShedder
from equipoise.shedder.costs import IDLE_COST
from equipoise.shedder.loads import FIGURE_MAX, USE_MAX, BundleTraffic, Load, fault_of
from equipoise.shedder.snapshot import Snapshot, take
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
def loads(
    draw: st.DrawFn,
    figures: st.SearchStrategy[float],
    moments: st.SearchStrategy[int],
    columns: st.SearchStrategy[bytes] = COLUMNS,
) -> list[Load]:
    """At most one load of each of four brokers, one of which is dead, over any of the
    bundles.
    """
    found = []
    for broker in draw(st.lists(st.sampled_from([*BROKERS, "dead"]), unique=True)):
        costs = draw(
            st.dictionaries(
                st.sampled_from(BUNDLES), figures.map(lambda cost: cost + IDLE_COST), max_size=3
            )
        )
        load = Load(
            broker=broker,
            at_ms=draw(moments),
            average_use=draw(figures.map(lambda used: used / USE_MAX)),
            average_bytes_per_second=draw(figures),
            bundle_count=draw(st.integers(0, 12)),
            bundles=tuple(BundleTraffic(bundle=name, cost=cost) for name, cost in costs.items()),
            cost=draw(figures),
            column=draw(columns),
            noise=draw(figures),
        )
        found.append(load)
    return found


MOMENTS = st.sampled_from([NOW_MS, NOW_MS - 1, NOW_MS - AGE_MS_MAX - 1, NOW_MS + 10**9, 0])


def taken(loads: list[Load]) -> Snapshot:
    return take(VIEW, loads, now_ms=NOW_MS, age_ms_max=AGE_MS_MAX)


def is_possible(load: Load) -> bool:
    return fault_of(load) is None


@given(loads(ANY, MOMENTS))
def test_all_bundles_are_weighed_for_any_reports(told: list[Load]) -> None:
    """Each bundle of the view weighs at its owner, at least as much as an idle one."""
    snapshot = taken(told)
    weighed = [bundle for broker in snapshot.brokers for bundle in broker.bundles]
    assert sorted(BUNDLES) == sorted(bundle.name for bundle in weighed)
    assert all(IDLE_COST <= bundle.cost <= FIGURE_MAX for bundle in weighed)
    plan = plan_of(BalancedShedder(), snapshot)
    counts = {
        load.broker for load in told if is_possible(load) and abs(NOW_MS - load.at_ms) <= AGE_MS_MAX
    }
    assert counts.issuperset(
        {name for move in plan.moves for name in (move.source, move.destination)}
    )


@given(loads(ANY, MOMENTS))
def test_implausible_reports_do_not_affect_others(told: list[Load]) -> None:
    """Costs are the same as without the reports with impossible figures, in any order."""
    sound = [load for load in told if is_possible(load)]
    bare = [
        tuple(replace(broker, barred=None) for broker in taken(each).brokers)
        for each in (told, told[::-1], sound)
    ]
    assert bare[0] == bare[1] == bare[2]
