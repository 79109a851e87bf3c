"""From samples to summaries: what is averaged, what is passed on, and what a clock that jumps does
to it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from equipoise.shedder.load_reports import Sample, summarized
from equipoise.shedder.loads import (
    RATES,
    STEP_MS,
    USE_MAX,
    BundleTraffic,
    Resources,
    Traffic,
    Use,
    fault_of,
)


def bundle(name: str, rate: float, *, cost: float = 10.0, topics: int = 1) -> BundleTraffic:
    """A bundle with this rate in every figure of its traffic."""
    return BundleTraffic(
        bundle=name, traffic=Traffic(**dict.fromkeys(RATES, rate)), topics=topics, cost=cost
    )


FIRST = Sample(
    broker="a",
    at_ms=100_000,
    resources=Resources(cpu=Use(used=50, limit=100)),
    used=0.5,
    traffic=Traffic(bytes_in_per_second=100),
    bundle_count=9,
    topics=4,
    cost=90.0,
    bundles=(bundle("t/n/x", 10),),
)


def test_the_first_sample_is_its_own_average() -> None:
    summary = summarized(None, FIRST)
    assert ("a", 90.0, {"t/n/x": 10.0}) == (summary.broker, summary.cost, summary.costs)
    load = summary.load
    assert (FIRST.at_ms, FIRST.resources, FIRST.traffic, 9, 4, FIRST.bundles) == (
        load.taken_ms,
        load.resources,
        load.traffic,
        load.bundle_count,
        load.topics,
        load.bundles,
    )
    assert (0.5, 100.0) == (load.averages.weighted_max, load.averages.bytes_per_second)


@pytest.mark.parametrize("used", [-1.0, math.inf, 2 * USE_MAX])
def test_an_impossible_figure_is_passed_on_but_not_averaged(used: float) -> None:
    """However small its share of the average would be."""
    lied = summarized(summarized(None, FIRST), replace(FIRST, at_ms=FIRST.at_ms + 1, used=used))
    assert used == lied.load.averages.weighted_max
    assert fault_of(lied.load) is not None
    assert FIRST.used == summarized(lied, FIRST).load.averages.weighted_max


def test_averages_decay_by_the_history_of_the_sample() -> None:
    """A tenth is new after a step. Costs and counts are not averaged, and a bundle that was not
    named before starts anew.
    """
    bundles = (bundle("t/n/x", 20, cost=30, topics=2), bundle("t/n/y", 7))
    second = replace(
        FIRST, at_ms=FIRST.at_ms + STEP_MS, used=0.9, traffic=Traffic(), bundles=bundles
    )
    load = summarized(summarized(None, FIRST), second).load
    assert (0.54, 90.0) == pytest.approx(
        (load.averages.weighted_max, load.averages.bytes_per_second)
    )
    known, new = load.bundles or ()
    assert [11.0] * 4 == pytest.approx([getattr(known.traffic, name) for name in RATES])
    assert (2, 30, bundles[1]) == (known.topics, known.cost, new)


def test_a_clock_that_was_set_back_stops_the_averages_once() -> None:
    """All other figures of the older sample count, and the next sample continues from its time."""
    summary = summarized(summarized(None, FIRST), replace(FIRST, at_ms=0, used=0.9, bundle_count=3))
    assert (0, 0.5, 3) == (
        summary.load.taken_ms,
        summary.load.averages.weighted_max,
        summary.load.bundle_count,
    )
    assert math.isclose(
        0.54,
        summarized(summary, replace(FIRST, at_ms=STEP_MS, used=0.9)).load.averages.weighted_max,
    )
