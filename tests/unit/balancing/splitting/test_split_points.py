"""Where a bundle is cut: the worked examples of its documents, and the
differences from Pulsar.

The examples are those of "Bundle splitting algorithms" on the page "Concepts" of broker load
balancing in Pulsar's documents. That page computes the middle of two hashes as if their digits were
decimal (0x15 and 0x24 give 0x19.5 instead of 0x1c.8). So the page defines which topics a cut
separates, and the algorithm defines the cut.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import pytest

from equipoise.brokers.balancing.splitting.split_points import (
    ALGORITHMS,
    FLOW_OR_QPS_EQUALLY_DIVIDE,
    MIB,
    RANGE_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
    TOPIC_COUNT_EQUALLY_DIVIDE,
    BundleLimits,
    SplitQuestion,
    TopicLoad,
    split_points,
)
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.records import CUTS_MAX


def topics(*points: int) -> tuple[TopicLoad, ...]:
    """A topic at each point."""
    return tuple(TopicLoad(point=point) for point in points)


def at(low: int, high: int, *positions: int) -> tuple[int, ...]:
    """Where a range with enough topics is cut at positions."""
    return split_points(
        SPECIFIED_POSITIONS_DIVIDE,
        SplitQuestion(low=low, high=high, topics=topics(low, high - 1), positions=positions),
    )


# --- the worked examples of Pulsar's documents ---

SIX_BY_COUNT = topics(0x10000000, 0x20000000, 0x35000000, 0x65000000, 0x70000000, 0x75000000)
PIP_169 = ((10, 100, 1), (20, 200, 2), (80, 300, 3), (90, 400, 4), (100, 500, 5), (110, 2_000, 190))
EXAMPLES = {
    "equal ranges": (RANGE_EQUALLY_DIVIDE, SplitQuestion(low=0, high=0x80000000), 0x40000000),
    # The page suggests 0x50000000, which separates the same topics.
    "equally many topics": (
        TOPIC_COUNT_EQUALLY_DIVIDE,
        SplitQuestion(low=0, high=0x80000000, topics=SIX_BY_COUNT),
        0x4D000000,
    ),
    "two large topics": (
        SPECIFIED_POSITIONS_DIVIDE,
        SplitQuestion(
            low=0, high=0x40000000, topics=topics(0x30000000, 0x35000000), positions=(0x33000000,)
        ),
        0x33000000,
    ),
    "PIP-169: the last topic carries more than all others": (
        FLOW_OR_QPS_EQUALLY_DIVIDE,
        SplitQuestion(
            low=0,
            high=0x200,
            topics=tuple(
                TopicLoad(point=point, messages_per_second=rate, bytes_per_second=mib * MIB)
                for point, rate, mib in PIP_169
            ),
            limits=BundleLimits(messages_per_second_max=1_750, bytes_per_second_max=102.5 * MIB),
        ),
        106,
    ),
}


@pytest.mark.parametrize(("algorithm", "question", "cut"), EXAMPLES.values(), ids=EXAMPLES.keys())
def test_an_example_of_pulsars_documents_is_cut_in_two(
    algorithm: str, question: SplitQuestion, cut: int
) -> None:
    assert (cut,) == split_points(algorithm, question)


@dataclass(frozen=True, kw_only=True)
class FlowExample:
    id: str
    messages_per_second_max: int
    mib_per_second_max: int
    behind: tuple[int, ...]
    cuts: tuple[int, ...]


FLOW_EXAMPLES = [
    FlowExample(
        id="case 1: the message rate decides",
        messages_per_second_max=450,
        mib_per_second_max=200,
        behind=(2, 3, 4, 5),
        cuts=(0x1C800001, 0x2E800001, 0x48800001, 0x67000001),
    ),
    FlowExample(
        id="case 2: the throughput decides",
        messages_per_second_max=1_900,
        mib_per_second_max=90,
        behind=(3, 5),
        cuts=(0x2E800001, 0x67000001),
    ),
    FlowExample(
        id="case 3: both decide alike",
        messages_per_second_max=1_100,
        mib_per_second_max=110,
        behind=(4,),
        cuts=(0x48800001,),
    ),
]


@pytest.mark.parametrize("example", FLOW_EXAMPLES, ids=lambda example: example.id)
def test_pulsars_example_of_flow_or_qps(example: FlowExample) -> None:
    """Six topics of 100 to 600 messages/s and 10 to 60 MiB/s are cut behind the topics that the
    page names.
    """
    points = (0x10000000, 0x15000000, 0x24000000, 0x39000000, 0x58000000, 0x76000000)
    six = tuple(
        TopicLoad(point=point, messages_per_second=100 * number, bytes_per_second=10 * MIB * number)
        for number, point in enumerate(points, start=1)
    )
    limits = BundleLimits(
        messages_per_second_max=example.messages_per_second_max,
        bytes_per_second_max=example.mib_per_second_max * MIB,
    )
    question = SplitQuestion(low=0, high=0x80000000, topics=six, limits=limits)
    cuts = split_points(FLOW_OR_QPS_EQUALLY_DIVIDE, question)
    assert example.cuts == cuts
    assert example.behind == tuple(bisect_left(points, cut) for cut in cuts)


# --- faults of Pulsar's ---


@dataclass(frozen=True, kw_only=True)
class Fault:
    id: str
    algorithm: str
    question: SplitQuestion
    ours: tuple[int, ...]


def busy(*points: int) -> tuple[TopicLoad, ...]:
    """Topics each of which carries 600 messages/s."""
    return tuple(TopicLoad(point=point, messages_per_second=600) for point in points)


A_THOUSAND = BundleLimits(messages_per_second_max=1_000)
FAULTS = [
    Fault(
        id="ends are neighbours",
        algorithm=RANGE_EQUALLY_DIVIDE,
        question=SplitQuestion(low=4, high=5),
        ours=(),
    ),
    Fault(
        id="the two in the middle are neighbours",
        algorithm=TOPIC_COUNT_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=100, topics=topics(10, 20, 21, 30)),
        ours=(21,),
    ),
    Fault(
        id="the two in the middle collide",
        algorithm=TOPIC_COUNT_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=100, topics=topics(10, 20, 20, 30)),
        ours=(15,),
    ),
    Fault(
        id="all collide",
        algorithm=TOPIC_COUNT_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=100, topics=topics(20, 20)),
        ours=(),
    ),
    Fault(
        id="the first topic lies at the beginning",
        algorithm=TOPIC_COUNT_EQUALLY_DIVIDE,
        question=SplitQuestion(low=20, high=100, topics=topics(20, 21)),
        ours=(21,),
    ),
    Fault(
        id="the last two points of all, counted",
        algorithm=TOPIC_COUNT_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=HASH_MAX, topics=topics(HASH_MAX - 1, HASH_MAX)),
        ours=(),
    ),
    Fault(
        id="the last two points of all, weighed",
        algorithm=FLOW_OR_QPS_EQUALLY_DIVIDE,
        question=SplitQuestion(
            low=0, high=HASH_MAX, topics=busy(HASH_MAX - 1, HASH_MAX), limits=A_THOUSAND
        ),
        ours=(),
    ),
    Fault(
        id="two before the end of all",
        algorithm=FLOW_OR_QPS_EQUALLY_DIVIDE,
        question=SplitQuestion(
            low=0, high=HASH_MAX, topics=busy(HASH_MAX - 2, HASH_MAX), limits=A_THOUSAND
        ),
        ours=(HASH_MAX - 1,),
    ),
    Fault(
        id="weighed ones collide",
        algorithm=FLOW_OR_QPS_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=100, topics=busy(10, 50, 50), limits=A_THOUSAND),
        ours=(31,),
    ),
    Fault(
        id="a collision hides what is carried",
        algorithm=FLOW_OR_QPS_EQUALLY_DIVIDE,
        question=SplitQuestion(
            low=0,
            high=100,
            topics=(*busy(10, 10), TopicLoad(point=10, messages_per_second=1), *busy(50)),
            limits=A_THOUSAND,
        ),
        ours=(31,),
    ),
    Fault(
        id="all weighed ones collide",
        algorithm=FLOW_OR_QPS_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=100, topics=busy(50, 50), limits=A_THOUSAND),
        ours=(),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_of_pulsar_is_corrected(fault: Fault) -> None:
    assert fault.ours == split_points(fault.algorithm, fault.question)


@pytest.mark.parametrize("positions", [(30, 130), (0, 50), (50, 100), (50, 50), (50, 30)])
def test_positions_that_are_no_cuts_are_refused(positions: tuple[int, ...]) -> None:
    """Pulsar sorts the positions, and silently drops those outside."""
    with pytest.raises(CallerError, match="cuts rise strictly, and lie strictly inside"):
        at(0, 100, *positions)


# --- errors and bounds ---


def test_an_unknown_algorithm_is_refused_with_the_known_names() -> None:
    with pytest.raises(CallerError, match=f"'by_luck'.*{', '.join(ALGORITHMS)}"):
        split_points("by_luck", SplitQuestion(low=0, high=HASH_MAX))


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_no_topic_can_have_is_refused(rate: float) -> None:
    with pytest.raises(CallerError, match="a topic cannot have bytes_per_second"):
        TopicLoad(point=1, bytes_per_second=rate)


def test_more_cuts_than_a_record_can_hold_are_left_to_the_next_split() -> None:
    """The last part of a hundred busy topics keeps those for which no cuts are left."""
    hundred = busy(*range(0, 1_000, 10))
    question = SplitQuestion(low=0, high=1_000, topics=hundred, limits=A_THOUSAND)
    assert tuple(range(6, 6 + 10 * CUTS_MAX, 10)) == split_points(
        FLOW_OR_QPS_EQUALLY_DIVIDE, question
    )
