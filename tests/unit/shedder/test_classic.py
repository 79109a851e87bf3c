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
from equipoise.shedder.policy import Policy
from equipoise.shedder.snapshot import Candidates, Since, Snapshot
from equipoise.shedder.threshold import OverloadShedder, ThresholdShedder
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


FIFTIES = {name: broker(50, **ten_bundles(name, 20 * M)) for name in ("b1", "b2", "b3")}
LOW = cluster({**FIFTIES, "b4": broker(5, **ten_bundles("D", M))})
NINETY_FIVE = cluster({"b1": broker(95, **ten_bundles("A", 10 * M)), "b2": broker(50, B=M)})
ALL_FULL = cluster({"b1": broker(95, A1=M, A2=M), "b2": broker(90, B1=M, B2=M)})
BURNING = cluster({"b1": broker(400, A1=3 * M, A2=2 * M, A3=M), "b2": broker(10, B=M)})
BUSY = cluster({"b1": broker(95, A1=M, A2=M), "b2": broker(10, B=M)})
UNEVEN = cluster({"b1": broker(50, A1=50 * M, A2=9 * M, A3=0), "b2": broker(50, B1=M, B2=M)})
GREAT = cluster({name: broker(50, **ten_bundles(name, 10**9)) for name in ("b1", "b2")})
BY_BYTES = UniformLoadShedder(rate_difference_percent=0)
LOWER = ThresholdShedder(threshold_percent=20, lower_boundary=True)
PAIRS = {
    "b1": broker(10, A1=M, A2=M),
    "b2": broker(20, B1=M, B2=M),
    "b3": broker(30, C1=M, C2=M),
    "b4": broker(45, D1=5 * M, D2=30 * M),
    "b5": broker(60, E1=5 * M, E2=30 * M),
}
PINNED = replace(
    cluster(PAIRS),
    rules=lambda _: Candidates(allowed=("b3",), refused={"b1": "it is pinned elsewhere"}),
)
FENCED = replace(FORTY_TEN_TEN, rules=lambda _: Candidates(allowed=("b1",)))
AT_ONCE = AvgShedder(high_hits=1, low_hits=99)
# The use of the first broker has fallen at once after a move, its average only falls rounds later.
# It would otherwise give in each round.
FALLEN = cluster(
    {
        **FORTY_TEN_TEN.loads,
        "b1": replace(FORTY_TEN_TEN.loads["b1"], resources=Resources(cpu=Use(used=15, limit=100))),
    }
)


def gone(*bundles: str, source: str = "b1") -> list[str]:
    """The moves of these bundles, wherever placement puts them."""
    return [f"{bundle}: {source} -> any" for bundle in bundles]


ROUNDS: dict[str, tuple[Policy, Snapshot, list[str]]] = {
    # (40 - 20 - 10) + 5 = 15 % of 200 MB/s are 30 MB/s: two bundles of 20.
    "threshold: 40, 10 and 10 %": (ThresholdShedder(), FORTY_TEN_TEN, gone("A0", "A1")),
    "threshold: only the average is too high": (ThresholdShedder(), FALLEN, []),
    "threshold: none is too high": (ThresholdShedder(threshold_percent=20), LOW, []),
    "threshold: the lower boundary": (LOWER, LOW, gone("b10")),
    "threshold: none is too low": (LOWER, cluster(FIFTIES), []),
    "threshold: nobody else may have it": (ThresholdShedder(), FENCED, []),
    "threshold: Pulsar unloads it, and it comes back": (
        ThresholdShedder(pulsar_exact=True),
        FENCED,
        gone("A0", "A1"),
    ),
    "threshold: one bundle stays": (ThresholdShedder(bytes_min=0), BURNING, gone("A1", "A2")),
    "threshold: Pulsar moves them all": (
        ThresholdShedder(bytes_min=0, pulsar_exact=True),
        BURNING,
        gone("A1", "A2", "A3"),
    ),
    # (95 - 85) + 5 = 15 % of the throughput: two of ten bundles.
    "overload: 95 %, where 85 % is allowed": (OverloadShedder(), NINETY_FIVE, gone("A0", "A1")),
    # Moves would go round in circles.
    "overload: no broker can take it": (OverloadShedder(), ALL_FULL, []),
    "overload: Pulsar starts these moves": (
        OverloadShedder(pulsar_exact=True),
        ALL_FULL,
        [*gone("A1"), *gone("B1", source="b2")],
    ),
    "overload: one bundle stays": (OverloadShedder(), BURNING, gone("A1", "A2")),
    "overload: Pulsar moves them all": (
        OverloadShedder(pulsar_exact=True),
        BURNING,
        gone("A1", "A2", "A3"),
    ),
    "overload: resources count by their weights": (
        OverloadShedder(),
        replace(BUSY, weights=Weights(cpu=0.5)),
        [],
    ),
    # A fifth of the difference in messages moves from the busiest broker, in bundles that fit.
    "uniform: a part of the difference": (UniformLoadShedder(), UNEVEN, gone("A2")),
    "uniform: Pulsar moves what has no traffic": (
        UniformLoadShedder(pulsar_exact=True),
        UNEVEN,
        gone("A2", "A3"),
    ),
    "uniform: all of it": (
        UniformLoadShedder(unloaded_share=1, bundles_max=1),
        UNEVEN,
        gone("A1"),
    ),
    "uniform: too few messages": (UniformLoadShedder(messages_min=12_000), UNEVEN, []),
    "uniform: throughput decides": (BY_BYTES, UNEVEN, gone("A2")),
    "uniform: nothing decides": (replace(BY_BYTES, throughput_ratio=0), UNEVEN, []),
    "uniform: too few bytes": (replace(BY_BYTES, bytes_min=12 * M), UNEVEN, []),
    "uniform: great throughputs are compared in full": (BY_BYTES, GREAT, []),
    # Above 2 GB/s Pulsar compares with the greatest 32-bit integer.
    "uniform: Pulsar takes bundles from brokers that are even": (
        replace(BY_BYTES, pulsar_exact=True),
        GREAT,
        gone("b10"),
    ),
    "average: the rules decide about the partner": (AT_ONCE, PINNED, []),
    "average: Pulsar unloads it, and placement finds another broker": (
        replace(AT_ONCE, pulsar_exact=True),
        PINNED,
        gone("E1", source="b5"),
    ),
}


@pytest.mark.parametrize(("policy", "snapshot", "moves"), ROUNDS.values(), ids=ROUNDS.keys())
def test_which_bundles_move(policy: Policy, snapshot: Snapshot, moves: list[str]) -> None:
    plan = plan_of(policy, snapshot)
    assert (moves, bool(moves)) == (moves_of(plan), outcome_of(plan) is None)


CLASSIC = (ThresholdShedder(), OverloadShedder(), UniformLoadShedder(), AvgShedder())
SILENT = replace(FORTY_TEN_TEN, live=("b1", "b2", "b3", "b4"))


@pytest.mark.parametrize(
    ("policy", "snapshot", "subject", "reason"),
    [
        *(
            (
                ThresholdShedder(),
                FORTY_TEN_TEN,
                name,
                "use is 10 % (mean: 20 %); up to 10 points above the mean are allowed",
            )
            for name in ("b2", "b3")
        ),
        (
            ThresholdShedder(),
            FALLEN,
            "b1",
            "use is 40 % (mean: 20 %) on average; now it is 15 %",
        ),
        (
            ThresholdShedder(bytes_min=31 * M),
            FORTY_TEN_TEN,
            "b1",
            "use is 40 % (mean: 20 %), but the 30 MB/s to give are too small for a move",
        ),
        (
            ThresholdShedder(),
            cluster({"b1": broker(40, A=200 * M), "b2": broker(10, B=M), "b3": broker(10, C=M)}),
            "b1",
            (
                "use is 40 % (mean: 20 %), but its only bundle is too heavy for another broker:"
                " split it"
            ),
        ),
        (ThresholdShedder(), cluster({"b1": broker(0)}), "b1", "no broker is used at all"),
        (ThresholdShedder(), FENCED, "A0", "the rules allow no other broker"),
        (OverloadShedder(), NINETY_FIVE, "b2", "use is 50 % (allowed: up to 85 %)"),
        (
            OverloadShedder(),
            cluster({"b1": broker(95, A=M), "b2": broker(50)}),
            "b1",
            "use is 95 %, but its only bundle would overload another broker: split it",
        ),
        (UniformLoadShedder(), UNEVEN, "A3", "it has no traffic, so a move would change nothing"),
        (AT_ONCE, PINNED, "E1", "it is pinned elsewhere"),
        *((policy, SILENT, "b4", "it has not reported its load") for policy in CLASSIC),
    ],
)
def test_a_stay_says_why(policy: Policy, snapshot: Snapshot, subject: str, reason: str) -> None:
    assert reason == stays_of(plan_of(policy, snapshot))[subject]


@pytest.mark.parametrize(
    ("policy", "snapshot", "reason"),
    [
        (
            ThresholdShedder(),
            FORTY_TEN_TEN,
            "threshold: b1 should give 30 MB/s of 200 MB/s: use is 40 % (mean: 20 %)",
        ),
        (
            OverloadShedder(),
            NINETY_FIVE,
            (
                "overload: the use of b1 is 95 % (allowed: up to 85 %); it should give 15 MB/s of"
                " 100 MB/s"
            ),
        ),
        (
            UniformLoadShedder(),
            UNEVEN,
            "uniform: the highest rate is 59000 messages/s, the lowest 2000;",
        ),
    ],
)
def test_a_move_says_why(policy: Policy, snapshot: Snapshot, reason: str) -> None:
    assert plan_of(policy, snapshot).moves[0].reason.startswith(reason)


@pytest.mark.parametrize("policy", CLASSIC, ids=lambda each: type(each).__name__)
def test_without_a_fresh_report_nothing_moves_and_the_round_counts_the_cause(
    policy: Policy,
) -> None:
    old = cluster({"b1": replace(broker(95, A1=M, A2=M), at_ms=0)})
    assert ["Skip/NoBrokers", "Skip/OutDatedData"] == [
        outcome_of(plan_of(policy, snapshot)) for snapshot in (Snapshot(live=("b1",)), old)
    ]


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


def rounds(strategy: Policy, snapshot: Snapshot, number: int) -> list[list[str]]:
    """The moves of several rounds. Each round gets the memory of the one before."""
    memory: object = None
    found = []
    for _ in range(number):
        plan, memory = strategy.plan(snapshot, memory)
        found.append(moves_of(plan))
    return found


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
