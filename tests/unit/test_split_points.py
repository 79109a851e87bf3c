"""Where a bundle is cut: Pulsar's own answers, then what they leave open.

May live here: examples, and ranges so small that every one of them is tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations_with_replacement

import pytest

from brokers.errors import UnsupportedAlgorithm
from brokers.split_points import ALGORITHMS, RANGE_EQUALLY_DIVIDE, SPECIFIED_POSITIONS_DIVIDE, split_points
from channel.errors import InvalidBoundaries
from channel.ranges import HASH_MAX, check_cuts
from tests.vectors.cases import read_cases


@dataclass(frozen=True, kw_only=True)
class SplitCase:
    id: str
    algorithm: str
    low: int
    high: int
    topic_hashes: tuple[int, ...]
    positions: list[int] | None
    force: bool
    cuts: tuple[int, ...]
    error: str | None

    def ask(self) -> tuple[int, ...]:
        """What our algorithm of the case's name answers."""
        return split_points(self.algorithm, self.low, self.high, topic_hashes=self.topic_hashes, positions=self.positions, force=self.force)


SPLIT_CASES = [
    SplitCase(
        id=case["id"],
        algorithm=case["input"]["algorithm"],
        low=case["input"]["lower"],
        high=case["input"]["upper"],
        topic_hashes=tuple(case["input"]["topicHashes"].values()),
        positions=case["input"].get("positions"),
        force=case["input"].get("force", False),
        # Pulsar says by null what we say by no cuts.
        cuts=tuple(case["output"].get("boundaries") or ()),
        error=case["output"].get("error"),
    )
    for case in read_cases("split_boundaries")
    if case["input"]["algorithm"] in ALGORITHMS
]

NARROW = [(low, low + width) for low in (0, 7, HASH_MAX - 5) for width in range(1, 6)]


def test_no_vector_of_these_algorithms_is_left_out() -> None:
    """There are 40 vectors for each algorithm."""
    assert dict.fromkeys(ALGORITHMS, 40) == {name: sum(case.algorithm == name for case in SPLIT_CASES) for name in ALGORITHMS}


@pytest.mark.parametrize("case", SPLIT_CASES, ids=lambda case: case.id)
def test_a_bundle_is_cut_where_pulsar_cuts_it(case: SplitCase) -> None:
    """The cuts are Pulsar's, and what Pulsar throws at is a typed error."""
    if case.error is None:
        assert case.cuts == case.ask()
    else:
        assert "IllegalArgumentException" == case.error
        with pytest.raises(InvalidBoundaries, match=SPECIFIED_POSITIONS_DIVIDE):
            case.ask()


def test_an_unknown_algorithm_is_refused_with_those_that_there_are() -> None:
    """A name that stands for no algorithm is answered with the names that do."""
    with pytest.raises(UnsupportedAlgorithm, match=f"'by_luck'.*{RANGE_EQUALLY_DIVIDE}, {SPECIFIED_POSITIONS_DIVIDE}"):
        split_points("by_luck", 0, HASH_MAX, topic_hashes=(), positions=None)


def test_a_range_without_a_point_inside_is_not_cut() -> None:
    """A range that is too narrow to be halved stays whole, whereas Pulsar names its end and fails later."""
    assert () == split_points(RANGE_EQUALLY_DIVIDE, 4, 5, topic_hashes=(), positions=None)
    assert () == split_points(RANGE_EQUALLY_DIVIDE, HASH_MAX - 1, HASH_MAX, topic_hashes=(), positions=None)


@dataclass(frozen=True, kw_only=True)
class FewTopics:
    topic_hashes: tuple[int, ...]
    force: bool
    cuts: tuple[int, ...]


@pytest.mark.parametrize(
    "case",
    [
        FewTopics(topic_hashes=(), force=False, cuts=()),
        FewTopics(topic_hashes=(20,), force=False, cuts=()),
        FewTopics(topic_hashes=(20, 60), force=False, cuts=(50,)),
        FewTopics(topic_hashes=(), force=True, cuts=(50,)),
        FewTopics(topic_hashes=(20,), force=True, cuts=(50,)),
    ],
)
def test_too_few_topics_are_divided_only_by_force(case: FewTopics) -> None:
    """A position in a bundle that holds fewer than two topics is a cut only if that is forced."""
    assert case.cuts == split_points(SPECIFIED_POSITIONS_DIVIDE, 0, 100, topic_hashes=case.topic_hashes, positions=(50,), force=case.force)


def test_a_position_named_twice_is_one_cut() -> None:
    """A position that is given twice leaves no empty child between its cuts."""
    assert (30, 50) == split_points(SPECIFIED_POSITIONS_DIVIDE, 0, 100, topic_hashes=(1, 2), positions=(50, 30, 50))


@pytest.mark.parametrize(("low", "high"), NARROW)
def test_half_of_every_narrow_range_can_be_cut(low: int, high: int) -> None:
    """The halves of a range differ by one point at most, and the cut is one that a split may make."""
    cuts = split_points(RANGE_EQUALLY_DIVIDE, low, high, topic_hashes=(), positions=None)
    check_cuts(low, high, cuts)
    assert [True] * len(cuts) == [(high - cut) - (cut - low) in {0, 1} for cut in cuts]
    assert (high - low > 1) == bool(cuts)


@pytest.mark.parametrize(("low", "high"), NARROW)
def test_every_choice_of_positions_in_a_narrow_range_can_be_cut(low: int, high: int) -> None:
    """Whatever positions are asked for, in or around a range, the cuts are exactly those inside, and a split may make them."""
    around = range(low - 1, high + 2)
    for positions in combinations_with_replacement(reversed(around), 3):
        cuts = split_points(SPECIFIED_POSITIONS_DIVIDE, low, high, topic_hashes=(low, high - 1), positions=positions)
        check_cuts(low, high, cuts)
        assert [point for point in around if low < point < high and point in positions] == list(cuts)
