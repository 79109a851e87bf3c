"""From samples to summaries: what is averaged, what is only told, and what a clock can do to it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from equipoise.shedder.load_reports import Sample, SampledBundle, sampled_in, summarized
from equipoise.shedder.loads import STEP_MS, USE_MAX, BundleTraffic, Resources, Traffic, Use, fault_of


def bundle(name: str, rate: float, *, cost: float = 10.0, topics: int = 1) -> SampledBundle:
    """A bundle that carries so many bytes per second each way."""
    traffic = Traffic(bytes_in_per_second=rate, bytes_out_per_second=rate, messages_in_per_second=rate, messages_out_per_second=rate)
    return SampledBundle(traffic=BundleTraffic(bundle=name, traffic=traffic, topics=topics), cost=cost)


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
    """All of it stands in the summary."""
    summary = summarized(None, FIRST)
    assert ("a", 90.0, {"t/n/x": 10.0}) == (summary.broker, summary.cost, summary.costs)
    load = summary.load
    assert (FIRST.at_ms, FIRST.resources, FIRST.traffic, 9, 4) == (
        load.taken_ms,
        load.resources,
        load.traffic,
        load.bundle_count,
        load.topics,
    )
    assert (0.5, 100.0) == (load.averages.weighted_max, load.averages.bytes_per_second)
    assert FIRST.bundles == sampled_in(summary)


@pytest.mark.parametrize("used", [-1.0, math.inf, 2 * USE_MAX])
def test_what_cannot_be_is_said_and_not_averaged(used: float) -> None:
    """A use that no broker can have stands in the summary as it was said, however little of it an average would take."""
    lied = summarized(summarized(None, FIRST), replace(FIRST, at_ms=FIRST.at_ms + 1, used=used))
    assert used == lied.load.averages.weighted_max
    assert fault_of(lied.load) is not None
    assert FIRST.used == summarized(lied, FIRST).load.averages.weighted_max


def test_a_tenth_is_new_after_a_step() -> None:
    """Averages decay by the history that the sample names, over the time since the sample before; costs and counts are of now."""
    second = replace(FIRST, at_ms=FIRST.at_ms + STEP_MS, used=0.9, traffic=Traffic(), bundles=(bundle("t/n/x", 20, cost=30, topics=2),))
    summary = summarized(summarized(None, FIRST), second)
    assert math.isclose(0.54, summary.load.averages.weighted_max)
    assert math.isclose(90.0, summary.load.averages.bytes_per_second)
    (found,) = sampled_in(summary)
    assert all(
        math.isclose(11.0, getattr(found.traffic.traffic, f"{what}_per_second"))
        for what in ("bytes_in", "bytes_out", "messages_in", "messages_out")
    )
    assert (2, 30) == (found.traffic.topics, found.cost)


def test_a_clock_that_was_set_back_stops_the_averages_once() -> None:
    """An older sample changes no average, but counts for all else, and the next one goes on from its time."""
    summary = summarized(summarized(None, FIRST), replace(FIRST, at_ms=0, used=0.9, bundle_count=3))
    assert (0, 0.5, 3) == (summary.load.taken_ms, summary.load.averages.weighted_max, summary.load.bundle_count)
    assert math.isclose(0.54, summarized(summary, replace(FIRST, at_ms=STEP_MS, used=0.9)).load.averages.weighted_max)


def test_what_is_known_from_elsewhere_comes_first() -> None:
    """A bundle that has come from another broker brings its average along; one that nobody knows begins anew."""
    second = replace(FIRST, at_ms=FIRST.at_ms + STEP_MS, bundles=(bundle("t/n/x", 10), bundle("t/n/y", 10), bundle("t/n/z", 10)))
    known = {"t/n/x": bundle("t/n/x", 110), "t/n/y": bundle("t/n/y", 210)}
    found = sampled_in(summarized(summarized(None, FIRST), second, known))
    assert [100, 190, 10] == [round(each.traffic.traffic.bytes_in_per_second, 6) for each in found]
