"""From samples to summaries: what is averaged, what is passed on, and what a clock that jumps does
to it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from equipoise.shedder.loads import (
    RATES,
    STEP_MS,
    USE_MAX,
    BundleTraffic,
    Load,
    Resources,
    Traffic,
    Use,
    averaged,
    fault_of,
)


def bundle(name: str, rate: float, *, cost: float = 10.0, topics: int = 1) -> BundleTraffic:
    """A bundle with this rate in every figure of its traffic."""
    return BundleTraffic(
        bundle=name, traffic=Traffic(**dict.fromkeys(RATES, rate)), topics=topics, cost=cost
    )


FIRST = Load(
    broker="a",
    at_ms=100_000,
    resources=Resources(cpu=Use(used=50, limit=100)),
    average_use=0.5,
    traffic=Traffic(bytes_in_per_second=100),
    bundle_count=9,
    topics=4,
    cost=90.0,
    bundles=(bundle("t/n/x", 10),),
)


def test_the_first_sample_is_its_own_average() -> None:
    load = averaged(None, FIRST)
    assert ("a", 90.0, {"t/n/x": 10.0}) == (load.broker, load.cost, load.costs)
    assert (FIRST.at_ms, FIRST.resources, FIRST.traffic, 9, 4, FIRST.bundles) == (
        load.at_ms,
        load.resources,
        load.traffic,
        load.bundle_count,
        load.topics,
        load.bundles,
    )
    assert (0.5, 100.0) == (load.average_use, load.average_bytes_per_second)


@pytest.mark.parametrize("used", [-1.0, math.inf, 2 * USE_MAX])
def test_an_impossible_figure_is_passed_on_but_not_averaged(used: float) -> None:
    """However small its share of the average would be."""
    lied = averaged(averaged(None, FIRST), replace(FIRST, at_ms=FIRST.at_ms + 1, average_use=used))
    assert used == lied.average_use
    assert fault_of(lied) is not None
    assert FIRST.average_use == averaged(lied, FIRST).average_use


def test_averages_decay_by_the_history_of_the_sample() -> None:
    """A tenth is new after a step. Costs and counts are not averaged, and a bundle that was not
    named before starts anew.
    """
    bundles = (bundle("t/n/x", 20, cost=30, topics=2), bundle("t/n/y", 7))
    second = replace(
        FIRST, at_ms=FIRST.at_ms + STEP_MS, average_use=0.9, traffic=Traffic(), bundles=bundles
    )
    load = averaged(averaged(None, FIRST), second)
    assert (0.54, 90.0) == pytest.approx((load.average_use, load.average_bytes_per_second))
    known, new = load.bundles
    assert [11.0] * 4 == pytest.approx([getattr(known.traffic, name) for name in RATES])
    assert (2, 30, bundles[1]) == (known.topics, known.cost, new)


def test_a_clock_that_was_set_back_stops_the_averages_once() -> None:
    """All other figures of the older sample count, and the next sample continues from its time."""
    load = averaged(averaged(None, FIRST), replace(FIRST, at_ms=0, average_use=0.9, bundle_count=3))
    assert (0, 0.5, 3) == (
        load.at_ms,
        load.average_use,
        load.bundle_count,
    )
    assert math.isclose(
        0.54,
        averaged(load, replace(FIRST, at_ms=STEP_MS, average_use=0.9)).average_use,
    )
