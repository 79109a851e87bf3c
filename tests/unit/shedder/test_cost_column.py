"""The column of costs in a report: small, close, and readable by a broker that knows other
bundles.
"""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from equipoise.shedder.costs import IDLE_COST
from equipoise.shedder.loads import COSTS_MAX, ENTRY_BYTES, Load, pack, tag_of, unpack
from equipoise.shedder.snapshot import Snapshot, take
from tests.channels.folding import NAMESPACE, channel_with

HALVES = tuple(
    f"{NAMESPACE}/{bounds}" for bounds in ("0x00000000_0x80000000", "0x80000000_0xffffffff")
)


@given(st.lists(st.floats(10, 1e6), min_size=1, max_size=50))
def test_each_cost_is_read_nearly_as_it_was_written(costs: list[float]) -> None:
    named = {f"t/n/{number}": cost for number, cost in enumerate(costs)}
    total = sum(costs)
    column = pack(named, total=total)
    assert ENTRY_BYTES * len(costs) == len(column)
    read = unpack(column, total)
    for name, cost in named.items():
        assert math.isclose(max(cost, total / 62_000), read[tag_of(name)], rel_tol=0.03)


def test_the_most_costly_bundles_are_kept() -> None:
    names = [f"t/n/{number}" for number in range(COSTS_MAX + 1)]
    costs = {name: float(number + 1) for number, name in enumerate(names)}
    column = pack(costs, total=sum(costs.values()))
    assert COSTS_MAX * ENTRY_BYTES == len(column)
    assert {tag_of(name) for name in names[1:]} == set(unpack(column, 1.0))


@given(
    st.lists(st.floats() | st.sampled_from([0.0, 1e308, 5e-324]), max_size=5),
    st.binary(max_size=30),
    st.floats(0, 1e18),
)
def test_any_figures_and_any_bytes_give_costs_within_the_total(
    costs: list[float], column: bytes, total: float
) -> None:
    named = {f"t/n/{number}": cost for number, cost in enumerate(costs)}
    assert len(pack(named, total=sum(costs))) <= ENTRY_BYTES * len(costs)
    assert all(0 <= cost <= total for cost in unpack(column, total).values())


def weighed(owner: str, *summaries: Load) -> dict[str, float]:
    """The costs of the bundles of `owner`, which serves both halves of a namespace."""
    channel = channel_with("a", "b", bundles=2)
    for low in (0, 0x80000000):
        channel.own(owner, low)
    snapshot: Snapshot = take(channel.view, summaries, now_ms=0, age_ms_max=1)
    return {bundle.name: bundle.cost for broker in snapshot.brokers for bundle in broker.bundles}


def reported(broker: str, *costs: float, total: float | None = None, counted: int = 2) -> Load:
    """A report that names no bundle. `counted` may be more bundles than the column has."""
    column = pack(dict(zip(HALVES, costs, strict=False)), total=sum(costs))
    return Load(
        broker=broker,
        at_ms=0,
        bundle_count=counted,
        cost=sum(costs) if total is None else total,
        column=column,
    )


def test_bundles_that_no_report_names_weigh_what_a_column_says() -> None:
    """The column of the former owner serves until the new owner reports."""
    for costs in (weighed("a", reported("a", 100, 300)), weighed("a", reported("b", 100, 300))):
        assert [True, True] == [
            math.isclose(cost, costs[name], rel_tol=0.03)
            for name, cost in zip(HALVES, (100, 300), strict=True)
        ]


def test_a_bundle_outside_of_the_column_weighs_its_part_of_the_rest() -> None:
    costs = weighed("a", reported("a", 100, total=100, counted=3))
    assert [100, IDLE_COST] == [costs[name] for name in HALVES]
