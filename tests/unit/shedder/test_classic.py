"""Pulsar's classic strategies by default: the worked examples of its documents, and the differences
from Pulsar.

The vectors show that they decide as Pulsar's classes with `pulsar_exact`.
tests/property/test_shedders.py shows what holds for every snapshot.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from equipoise.shedder.average import AvgShedder
from equipoise.shedder.loads import Load, Resources, Use, Weights
from equipoise.shedder.overload import OverloadShedder
from equipoise.shedder.policy import Policy
from equipoise.shedder.snapshot import Candidates, Since, Snapshot
from equipoise.shedder.threshold import ThresholdShedder
from equipoise.shedder.uniform import UniformLoadShedder
from tests.shedding import broker, cluster, moves_of, outcome_of, plan_of, stays_of

M = 1_000_000


def ten_bundles(letter: str, bytes_per_second: float) -> dict[str, float]:
    """Ten bundles of the same weight, named after their broker."""
    return {f"{letter}{number}": bytes_per_second for number in range(10)}


# The documents' example: "broker1 is at 40 %, broker2 and broker3 at 10 %"; so the mean is 20 %,
# and at a threshold of 10 % only the first is above it.
FORTY_TEN_TEN = cluster(
    {
        "b1": broker(40, **ten_bundles("A", 20 * M)),
        "b2": broker(10, **ten_bundles("B", 5 * M)),
        "b3": broker(10, **ten_bundles("C", 5 * M)),
    }
)


def test_threshold_the_documents_40_10_10() -> None:
    """Of brokers at 40, 10 and 10 % only the first is more than 10 % above the mean of 20 %. It
    gives the excess and 5 % more.
    """
    plan = plan_of(ThresholdShedder(), FORTY_TEN_TEN)
    # (40 - 20 - 10) + 5 = 15 % of 200 MB/s are 30 MB/s: two bundles of 20.
    assert ["A0: b1 -> any", "A1: b1 -> any"] == moves_of(plan)
    assert plan.mean == pytest.approx(0.2)
    assert (
        "threshold: b1 should give 30 MB/s of 200 MB/s: use is 40 % (mean: 20 %)"
        == plan.moves[0].reason
    )
    assert {
        "b2": "use is 10 % (mean: 20 %); up to 10 points above the mean are allowed",
        "b3": "use is 10 % (mean: 20 %); up to 10 points above the mean are allowed",
    } == stays_of(plan)


def test_threshold_takes_nothing_from_a_broker_that_only_its_average_tells_of() -> None:
    """After a move the use falls at once, and its average only rounds later. The broker would
    otherwise give in each round.
    """
    loads = dict(FORTY_TEN_TEN.loads)
    loads["b1"] = replace(loads["b1"], resources=Resources(cpu=Use(used=15, limit=100)))
    plan = plan_of(ThresholdShedder(), cluster(loads))
    assert [] == moves_of(plan)
    assert "use is 40 % (mean: 20 %) on average; now it is 15 %" == stays_of(plan)["b1"]


def test_threshold_small_amounts_stay() -> None:
    """A broker above the threshold gives nothing below the least throughput, or if it has one
    bundle, and says why.
    """
    plan = plan_of(ThresholdShedder(bytes_min=31 * M), FORTY_TEN_TEN)
    assert ([], "Skip/NoBundles") == (moves_of(plan), outcome_of(plan))
    assert (
        "use is 40 % (mean: 20 %), but the 30 MB/s to give are too small for a move"
        == stays_of(plan)["b1"]
    )
    one = cluster({"b1": broker(40, A=200 * M), "b2": broker(10, B=M), "b3": broker(10, C=M)})
    assert "its only bundle is too heavy" in stays_of(plan_of(ThresholdShedder(), one))["b1"]
    assert (
        "no broker is used at all"
        == stays_of(plan_of(ThresholdShedder(), cluster({"b1": broker(0)})))["b1"]
    )


def test_threshold_the_lower_boundary() -> None:
    """With this setting, if no broker is too high but one is far too low, the most used gives half
    of the threshold.
    """
    loads = {name: broker(50, **ten_bundles(name, 20 * M)) for name in ("b1", "b2", "b3")}
    low = cluster({**loads, "b4": broker(5, **ten_bundles("D", M))})
    assert [] == moves_of(plan_of(ThresholdShedder(threshold_percent=20), low))
    lower = ThresholdShedder(threshold_percent=20, lower_boundary=True)
    assert ["b10: b1 -> any"] == moves_of(plan_of(lower, low))
    assert [] == moves_of(plan_of(lower, cluster(loads)))


def test_threshold_goes_by_the_reported_averages() -> None:
    """Pulsar computes its own averages, one step per round, and so needs a memory."""
    calm = {
        name: replace(load, average_use=0.1, average_bytes_per_second=0)
        for name, load in FORTY_TEN_TEN.loads.items()
    }
    assert [] == moves_of(plan_of(ThresholdShedder(), cluster(calm)))
    exact = ThresholdShedder(pulsar_exact=True)
    plan, memory = exact.plan(cluster(calm))
    assert ["A0: b1 -> any", "A1: b1 -> any"] == moves_of(plan)
    assert pytest.approx({"b1": 0.4, "b2": 0.1, "b3": 0.1}) == memory
    assert {} == ThresholdShedder().plan(cluster(calm))[1]
    _, memory = exact.plan(cluster({**calm, "b1": broker(0)}), memory)
    assert memory["b1"] == pytest.approx(0.36)


def test_overload_the_documents_95_85_5() -> None:
    """A broker at 95 % (allowed: 85 %) gives (95 - 85) + 5 = 15 % of its throughput: two of ten
    bundles.
    """
    plan = plan_of(
        OverloadShedder(),
        cluster({"b1": broker(95, **ten_bundles("A", 10 * M)), "b2": broker(50, B=M)}),
    )
    assert ["A0: b1 -> any", "A1: b1 -> any"] == moves_of(plan)
    assert (
        "overload: the use of b1 is 95 % (allowed: up to 85 %); it should give 15 MB/s of 100 MB/s"
        == plan.moves[0].reason
    )
    assert {"b2": "use is 50 % (allowed: up to 85 %)"} == stays_of(plan)


def test_overload_nothing_moves_if_no_broker_can_take_it() -> None:
    """If all brokers are overloaded, moves would go round in circles. Pulsar starts them."""
    full = cluster({"b1": broker(95, A1=M, A2=M), "b2": broker(90, B1=M, B2=M)})
    assert [] == moves_of(plan_of(OverloadShedder(), full))
    assert ["A1: b1 -> any", "B1: b2 -> any"] == moves_of(
        plan_of(OverloadShedder(pulsar_exact=True), full)
    )


def test_overload_the_only_bundle_stays() -> None:
    plan = plan_of(OverloadShedder(), cluster({"b1": broker(95, A=M), "b2": broker(50)}))
    assert ([], "Skip/NoBundles") == (moves_of(plan), outcome_of(plan))
    assert (
        "use is 95 %, but its only bundle would overload another broker: split it"
        == stays_of(plan)["b1"]
    )


def test_one_bundle_stays_however_overloaded_a_broker_is() -> None:
    """Pulsar moves them all."""
    burning = cluster({"b1": broker(400, A1=3 * M, A2=2 * M, A3=M), "b2": broker(10, B=M)})
    assert ["A1: b1 -> any", "A2: b1 -> any"] == moves_of(plan_of(OverloadShedder(), burning))
    all_of_them = ["A1: b1 -> any", "A2: b1 -> any", "A3: b1 -> any"]
    assert all_of_them == moves_of(plan_of(OverloadShedder(pulsar_exact=True), burning))
    threshold = ThresholdShedder(bytes_min=0)
    assert ["A1: b1 -> any", "A2: b1 -> any"] == moves_of(plan_of(threshold, burning))
    assert all_of_them == moves_of(plan_of(replace(threshold, pulsar_exact=True), burning))


def test_resources_count_by_their_weights() -> None:
    busy = cluster({"b1": broker(95, A1=M, A2=M), "b2": broker(10, B=M)})
    assert [] == moves_of(plan_of(OverloadShedder(), replace(busy, weights=Weights(cpu=0.5))))


UNEVEN = cluster({"b1": broker(50, A1=50 * M, A2=9 * M, A3=0), "b2": broker(50, B1=M, B2=M)})


def test_uniform_a_part_of_the_difference_is_taken() -> None:
    """A fifth of the difference in messages moves from the busiest broker, in bundles that fit."""
    plan = plan_of(UniformLoadShedder(), UNEVEN)
    assert ["A2: b1 -> any"] == moves_of(plan)
    assert "uniform: the highest rate is 59000 messages/s, the lowest 2000;" in plan.moves[0].reason
    assert "it has no traffic" in stays_of(plan)["A3"]
    assert ["A2: b1 -> any", "A3: b1 -> any"] == moves_of(
        plan_of(UniformLoadShedder(pulsar_exact=True), UNEVEN)
    )
    assert ["A1: b1 -> any"] == moves_of(
        plan_of(UniformLoadShedder(unloaded_share=1, bundles_max=1), UNEVEN)
    )


def test_uniform_throughput_decides_where_messages_do_not() -> None:
    assert ["A2: b1 -> any"] == moves_of(
        plan_of(UniformLoadShedder(rate_difference_percent=0), UNEVEN)
    )
    assert [] == moves_of(
        plan_of(UniformLoadShedder(rate_difference_percent=0, throughput_ratio=0), UNEVEN)
    )
    assert [] == moves_of(
        plan_of(UniformLoadShedder(rate_difference_percent=0, bytes_min=12 * M), UNEVEN)
    )
    assert [] == moves_of(plan_of(UniformLoadShedder(messages_min=12_000), UNEVEN))


@pytest.mark.parametrize("pulsar_exact", [False, True])
def test_uniform_great_throughputs_are_compared_in_full(pulsar_exact: bool) -> None:
    """Above 2 GB/s Pulsar compares with the greatest 32-bit integer, and so takes bundles from
    brokers that are even.
    """
    great = cluster({name: broker(50, **ten_bundles(name, 10**9)) for name in ("b1", "b2")})
    strategy = UniformLoadShedder(rate_difference_percent=0, pulsar_exact=pulsar_exact)
    assert pulsar_exact == bool(moves_of(plan_of(strategy, great)))


def rounds(strategy: Policy, snapshot: Snapshot, number: int) -> list[list[str]]:
    """The moves of several rounds. Each round gets the memory of the one before."""
    memory: object = None
    found = []
    for _ in range(number):
        plan, memory = strategy.plan(snapshot, memory)
        found.append(moves_of(plan))
    return found


PAIRS = {
    "b1": broker(10, A1=M, A2=M),
    "b2": broker(20, B1=M, B2=M),
    "b3": broker(30, C1=M, C2=M),
    "b4": broker(45, D1=5 * M, D2=30 * M),
    "b5": broker(60, E1=5 * M, E2=30 * M),
}


def test_average_pairs_the_extremes_and_then_the_next() -> None:
    """A pair that differs by 40 % or more acts in the second round, one that differs less in the
    eighth.
    """
    found = rounds(AvgShedder(), cluster(PAIRS), 8)
    evened = ["E1: b5 -> b1"]
    assert [[], evened, [], evened, [], evened, [], [*evened, "D1: b4 -> b2"]] == found


def test_average_a_pair_that_is_even_starts_again() -> None:
    """Hits are forgotten when a pair differs by less than the low threshold, or when a broker is
    gone.
    """
    strategy = AvgShedder(high_percent=90)
    _, hit = strategy.plan(cluster(PAIRS))
    assert {"b1": 1, "b2": 1, "b4": 1, "b5": 1} == hit.low
    even: dict[str, Load] = {"b1": broker(10), "b5": broker(11)}
    assert {} == strategy.plan(cluster(even), hit)[1].low
    gone = {name: load for name, load in PAIRS.items() if name != "b4"}
    assert {"b1": 2, "b5": 2} == strategy.plan(cluster(gone), hit)[1].low
    stopped = replace(cluster(PAIRS), since=Since(stopped=True))
    assert hit == strategy.plan(stopped, hit)[1]


def test_average_asks_the_rules_for_its_destination() -> None:
    """A bundle that the partner must not have stays. Pulsar unloads it, and placement finds another
    broker.
    """
    rules = replace(
        cluster(PAIRS),
        rules=lambda _: Candidates(allowed=("b3",), refused={"b1": "it is pinned elsewhere"}),
    )
    at_once = AvgShedder(high_hits=1, low_hits=99)
    plan = plan_of(at_once, rules)
    assert ([], "it is pinned elsewhere") == (moves_of(plan), stays_of(plan)["E1"])
    assert ["E1: b5 -> any"] == moves_of(plan_of(replace(at_once, pulsar_exact=True), rules))


@pytest.mark.parametrize(
    "strategy",
    [ThresholdShedder(), OverloadShedder(), UniformLoadShedder(), AvgShedder()],
    ids=lambda each: type(each).__name__,
)
def test_a_broker_without_a_fresh_report_takes_no_part(strategy: Policy) -> None:
    """Without a fresh report nothing moves, and the round counts the cause. A silent broker gets
    that reason.
    """
    assert "Skip/NoBrokers" == outcome_of(plan_of(strategy, Snapshot(live=("b1",))))
    old = cluster({"b1": replace(broker(95, A1=M, A2=M), at_ms=0)})
    assert "Skip/OutDatedData" == outcome_of(plan_of(strategy, old))
    silent = replace(FORTY_TEN_TEN, live=("b1", "b2", "b3", "b4"))
    assert "it has not reported its load" == stays_of(plan_of(strategy, silent))["b4"]


def test_bundles_that_nobody_else_may_have_stay() -> None:
    """Pulsar unloads such a bundle, and it comes back."""
    fenced = replace(FORTY_TEN_TEN, rules=lambda _: Candidates(allowed=("b1",)))
    plan = plan_of(ThresholdShedder(), fenced)
    assert ([], "the rules allow no other broker") == (moves_of(plan), stays_of(plan)["A0"])
    assert 2 == len(plan_of(ThresholdShedder(pulsar_exact=True), fenced).moves)
