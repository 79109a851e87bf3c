"""Where a bundle is cut: Pulsar's own answers, the worked examples of its documents, then what both leave open.

The examples are those of "Bundle splitting algorithms" on the page "Concepts" of broker load balancing in Pulsar's documents.
That page takes the middle of two hashes digit by digit as if they were decimal (0x15 and 0x24 give 0x19.5, and 0x1c.8 is meant), and
rounds one that it only suggests. So which topics a cut parts is taken from the page, and the cut itself from the rule.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import pytest

from equipoise.brokers.balancing.splitting.bundle_limits import MIB, BundleLimits
from equipoise.brokers.balancing.splitting.split_points import (
    ALGORITHMS,
    FLOW_OR_QPS_EQUALLY_DIVIDE,
    RANGE_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
    TOPIC_COUNT_EQUALLY_DIVIDE,
    SplitQuestion,
    TopicLoad,
    split_points,
)
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.ranges import HASH_MAX, check_cuts
from equipoise.channel.core.records import CUTS_MAX
from tests.vectors.cases import Case, read_cases
from tests.vectors.split_boundaries import question_of

CASES = read_cases("split_boundaries")
NARROW = [(low, low + width) for low in (0, 7, HASH_MAX - 5) for width in range(1, 6)]


def topics(*points: int) -> tuple[TopicLoad, ...]:
    """A topic at each point."""
    return tuple(TopicLoad(point=point) for point in points)


def halves(low: int, high: int) -> tuple[int, ...]:
    """Where a range is cut into halves."""
    return split_points(RANGE_EQUALLY_DIVIDE, SplitQuestion(low=low, high=high))


def at(low: int, high: int, *positions: int) -> tuple[int, ...]:
    """Where a range with enough topics is cut at positions."""
    return split_points(SPECIFIED_POSITIONS_DIVIDE, SplitQuestion(low=low, high=high, topics=topics(low, high - 1), positions=positions))


def are_cuts(low: int, high: int, positions: Sequence[int]) -> bool:
    """Whether positions rise strictly, and lie strictly inside."""
    return all(before < after for before, after in pairwise((low, *positions, high)))


# --- Pulsar's own answers ---


def test_no_vector_is_left_out() -> None:
    """There are 40 vectors for each algorithm, and none for another."""
    assert dict.fromkeys(ALGORITHMS, 40) == {name: sum(case["input"]["algorithm"] == name for case in CASES) for name in ALGORITHMS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_without_a_fault_of_pulsar_the_cuts_are_its_own(case: Case) -> None:
    """Ours are the same cuts without being asked to be exact, unless positions are none or no cuts, which is an error."""
    question = question_of(case, pulsar_exact=False)
    positions = sorted(question.positions or ())
    if question.positions is not None:
        question = replace(question, positions=positions)
    is_wrong = question.positions is not None and not are_cuts(question.low, question.high, positions)
    if is_wrong or "error" in case["output"]:
        with pytest.raises(CallerError, match="cannot be used"):
            split_points(case["input"]["algorithm"], question)
    else:
        assert (case["output"]["boundaries"] or []) == list(split_points(case["input"]["algorithm"], question))


# --- the worked examples of Pulsar's documents ---


def test_pulsars_example_of_equal_ranges() -> None:
    """Pulsar's documents: 0x00000000 to 0x80000000 is cut at 0x40000000; Pulsar's own test: 10 to 0xffffffff at its middle."""
    assert (0x40000000,) == halves(0x00000000, 0x80000000)
    assert (10 + (0xFFFFFFFF - 10) // 2,) == halves(10, 0xFFFFFFFF)


def test_pulsars_example_of_equally_many_topics() -> None:
    """Pulsar's documents: of six topics three lie on either side of the cut, for which the page suggests 0x50000000."""
    six = topics(0x10000000, 0x20000000, 0x35000000, 0x65000000, 0x70000000, 0x75000000)
    cuts = split_points(TOPIC_COUNT_EQUALLY_DIVIDE, SplitQuestion(low=0, high=0x80000000, topics=six))
    assert (0x4D000000,) == cuts
    assert 3 == sum(topic.point < 0x50000000 for topic in six) == sum(topic.point < cuts[0] for topic in six)


def test_pulsars_example_of_specified_positions() -> None:
    """Pulsar's documents: two large topics at 0x30000000 and 0x35000000 are parted at 0x33000000."""
    question = SplitQuestion(low=0, high=0x40000000, topics=topics(0x30000000, 0x35000000), positions=(0x33000000,))
    assert (0x33000000,) == split_points(SPECIFIED_POSITIONS_DIVIDE, question)


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
    """Pulsar's documents: six topics of 100 to 600 messages/s and 10 to 60 MiB/s are parted behind those that the page names."""
    points = (0x10000000, 0x15000000, 0x24000000, 0x39000000, 0x58000000, 0x76000000)
    six = tuple(
        TopicLoad(point=point, messages_per_second=100 * number, bytes_per_second=10 * MIB * number)
        for number, point in enumerate(points, start=1)
    )
    limits = BundleLimits(messages_per_second_max=example.messages_per_second_max, bytes_per_second_max=example.mib_per_second_max * MIB)
    for exact in (False, True):
        question = SplitQuestion(low=0, high=0x80000000, topics=six, limits=limits, pulsar_exact=exact)
        cuts = split_points(FLOW_OR_QPS_EQUALLY_DIVIDE, question)
        assert example.cuts == cuts
        assert example.behind == tuple(bisect_left(points, cut) for cut in cuts)


def test_the_example_of_the_proposal_for_flow_or_qps() -> None:
    """PIP-169: six topics, of which the last carries more than all others, are parted behind the fifth, one behind the middle."""
    carried = ((10, 100, 1), (20, 200, 2), (80, 300, 3), (90, 400, 4), (100, 500, 5), (110, 2_000, 190))
    six = tuple(TopicLoad(point=point, messages_per_second=rate, bytes_per_second=mib * MIB) for point, rate, mib in carried)
    limits = BundleLimits(messages_per_second_max=1_750, bytes_per_second_max=102.5 * MIB)
    assert (106,) == split_points(FLOW_OR_QPS_EQUALLY_DIVIDE, SplitQuestion(low=0, high=0x200, topics=six, limits=limits))


# --- faults of Pulsar's ---


@dataclass(frozen=True, kw_only=True)
class Fault:
    id: str
    algorithm: str
    question: SplitQuestion
    pulsar: tuple[int, ...]
    ours: tuple[int, ...]


def busy(*points: int) -> tuple[TopicLoad, ...]:
    """Topics each of which carries 600 messages/s."""
    return tuple(TopicLoad(point=point, messages_per_second=600) for point in points)


A_THOUSAND = BundleLimits(messages_per_second_max=1_000)
FAULTS = [
    Fault(id="ends are neighbours", algorithm=RANGE_EQUALLY_DIVIDE, question=SplitQuestion(low=4, high=5), pulsar=(4,), ours=()),
    Fault(
        id="the two in the middle are neighbours",
        algorithm=TOPIC_COUNT_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=100, topics=topics(10, 20, 21, 30)),
        pulsar=(20,),
        ours=(21,),
    ),
    Fault(
        id="the two in the middle collide",
        algorithm=TOPIC_COUNT_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=100, topics=topics(10, 20, 20, 30)),
        pulsar=(20,),
        ours=(15,),
    ),
    Fault(
        id="all collide",
        algorithm=TOPIC_COUNT_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=100, topics=topics(20, 20)),
        pulsar=(20,),
        ours=(),
    ),
    Fault(
        id="the first topic lies at the beginning",
        algorithm=TOPIC_COUNT_EQUALLY_DIVIDE,
        question=SplitQuestion(low=20, high=100, topics=topics(20, 21)),
        pulsar=(20,),
        ours=(21,),
    ),
    Fault(
        id="the last two points of all, counted",
        algorithm=TOPIC_COUNT_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=HASH_MAX, topics=topics(HASH_MAX - 1, HASH_MAX)),
        pulsar=(HASH_MAX - 1,),
        ours=(),
    ),
    Fault(
        id="the last two points of all, weighed",
        algorithm=FLOW_OR_QPS_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=HASH_MAX, topics=busy(HASH_MAX - 1, HASH_MAX), limits=A_THOUSAND),
        pulsar=(HASH_MAX,),
        ours=(),
    ),
    Fault(
        id="two before the end of all",
        algorithm=FLOW_OR_QPS_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=HASH_MAX, topics=busy(HASH_MAX - 2, HASH_MAX), limits=A_THOUSAND),
        pulsar=(HASH_MAX,),
        ours=(HASH_MAX - 1,),
    ),
    Fault(
        id="weighed ones collide",
        algorithm=FLOW_OR_QPS_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=100, topics=busy(10, 50, 50), limits=A_THOUSAND),
        pulsar=(31, 51),
        ours=(31,),
    ),
    Fault(
        id="a collision hides what is carried",
        algorithm=FLOW_OR_QPS_EQUALLY_DIVIDE,
        question=SplitQuestion(
            low=0, high=100, topics=(*busy(10, 10), TopicLoad(point=10, messages_per_second=1), *busy(50)), limits=A_THOUSAND
        ),
        pulsar=(),
        ours=(31,),
    ),
    Fault(
        id="all weighed ones collide",
        algorithm=FLOW_OR_QPS_EQUALLY_DIVIDE,
        question=SplitQuestion(low=0, high=100, topics=busy(50, 50), limits=A_THOUSAND),
        pulsar=(),
        ours=(),
    ),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_of_pulsars_is_only_made_on_request(fault: Fault) -> None:
    """What Pulsar answers wrongly is answered rightly, unless Pulsar's very answer is asked for."""
    assert fault.ours == split_points(fault.algorithm, fault.question)
    assert fault.pulsar == split_points(fault.algorithm, replace(fault.question, pulsar_exact=True))


@pytest.mark.parametrize("positions", [(30, 130), (0, 50), (50, 100), (50, 50), (50, 30)])
def test_positions_that_are_no_cuts_are_refused(positions: tuple[int, ...]) -> None:
    """A position outside or at an edge, doubled, or out of order is an error, where Pulsar sorts and drops without a word."""
    with pytest.raises(CallerError, match="cuts rise strictly, and lie strictly inside"):
        at(0, 100, *positions)
    exact = SplitQuestion(low=0, high=100, positions=positions, force=True, pulsar_exact=True)
    assert sorted(point for point in positions if 0 < point < 100) == list(split_points(SPECIFIED_POSITIONS_DIVIDE, exact))


# --- what is left open ---


def test_an_unknown_algorithm_is_refused_with_those_that_there_are() -> None:
    """A name that stands for no algorithm is answered with the names that do."""
    with pytest.raises(CallerError, match=f"'by_luck'.*{', '.join(ALGORITHMS)}"):
        split_points("by_luck", SplitQuestion(low=0, high=HASH_MAX))


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_no_topic_can_have_is_refused(rate: float) -> None:
    """A rate is a number, finite, and not negative."""
    with pytest.raises(CallerError, match="a topic cannot have bytes_per_second"):
        TopicLoad(point=1, bytes_per_second=rate)


@dataclass(frozen=True, kw_only=True)
class FewTopics:
    points: tuple[int, ...]
    force: bool
    cuts: tuple[int, ...]


@pytest.mark.parametrize(
    "case",
    [
        FewTopics(points=(), force=False, cuts=()),
        FewTopics(points=(20,), force=False, cuts=()),
        FewTopics(points=(20, 160), force=False, cuts=()),
        FewTopics(points=(20, 60), force=False, cuts=(50,)),
        FewTopics(points=(), force=True, cuts=(50,)),
        FewTopics(points=(20,), force=True, cuts=(50,)),
    ],
)
def test_too_few_topics_are_divided_only_by_force(case: FewTopics) -> None:
    """A position in a bundle that holds fewer than two topics is a cut only if that is forced; those of other bundles do not count."""
    question = SplitQuestion(low=0, high=100, topics=topics(*case.points), positions=(50,), force=case.force)
    assert case.cuts == split_points(SPECIFIED_POSITIONS_DIVIDE, question)


def test_more_parts_than_a_record_can_tell_are_left_to_the_next_split() -> None:
    """Where a hundred topics each fill a part, the last part keeps those for which there are no cuts left."""
    hundred = busy(*range(0, 1_000, 10))
    question = SplitQuestion(low=0, high=1_000, topics=hundred, limits=A_THOUSAND)
    assert tuple(range(6, 6 + 10 * CUTS_MAX, 10)) == split_points(FLOW_OR_QPS_EQUALLY_DIVIDE, question)


def test_the_whole_must_exceed_a_limit_by_the_margin() -> None:
    """Beyond 1,100 messages/s is cut where the limit is 1,000 and the margin a tenth, below is not; the same of bytes."""
    for name in ("messages", "bytes"):
        limits = BundleLimits(**{f"{name}_per_second_max": 1_000})
        for last, cuts in ((501, (31,)), (498, ())):
            pair = tuple(TopicLoad(point=point, **{f"{name}_per_second": rate}) for point, rate in ((10, 600), (50, last)))
            assert cuts == split_points(FLOW_OR_QPS_EQUALLY_DIVIDE, SplitQuestion(low=0, high=100, topics=pair, limits=limits))


@pytest.mark.parametrize(("low", "high"), NARROW)
def test_half_of_every_narrow_range_can_be_cut(low: int, high: int) -> None:
    """The halves of a range differ by one point at most, and the cut is one that a split may make."""
    cuts = halves(low, high)
    check_cuts(low, high, cuts)
    assert [True] * len(cuts) == [(high - cut) - (cut - low) in {0, 1} for cut in cuts]
    assert (high - low > 1) == bool(cuts)


@pytest.mark.parametrize(("low", "high"), NARROW)
def test_every_choice_of_positions_in_a_narrow_range(low: int, high: int) -> None:
    """Of all choices of positions in or around a range, those that rise strictly inside are the cuts, and all others errors."""
    for positions in product(range(low - 1, high + 2), repeat=2):
        if are_cuts(low, high, positions):
            assert positions == at(low, high, *positions)
        else:
            with pytest.raises(CallerError, match="cannot be used"):
                at(low, high, *positions)
