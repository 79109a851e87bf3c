"""Where a bundle is cut, for any content: cuts are valid, do not depend on order, and keep their
promises.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.splitting.split_points import (
    ALGORITHMS,
    FLOW_OR_QPS_EQUALLY_DIVIDE,
    SPECIFIED_POSITIONS_DIVIDE,
    TOPIC_COUNT_EQUALLY_DIVIDE,
    BundleLimits,
    SplitQuestion,
    TopicLoad,
    split_points,
)
from equipoise.channel.core.ranges import HASH_MAX, bundle_contains, check_cuts, children
from equipoise.channel.core.records import CUTS_MAX

LIMITS = BundleLimits(messages_per_second_max=1_000, bytes_per_second_max=1_000)


RATES = st.one_of(st.sampled_from([0.0, 400.0, 600.0, 1_000.0, 1_500.0]), st.floats(0, 1e18))
WHOLE_RATES = st.integers(0, 12).map(lambda hundreds: 100.0 * hundreds)


@st.composite
def questions(draw: st.DrawFn, *, rates: st.SearchStrategy[float] = RATES) -> SplitQuestion:
    """Narrow and wide ranges, also at the end of the hash space, with up to thirty topics, some at
    one point or outside.
    """
    low = draw(
        st.one_of(
            st.integers(0, HASH_MAX - 1), st.integers(HASH_MAX - 12, HASH_MAX - 1), st.just(0)
        )
    )
    high = draw(
        st.one_of(
            st.integers(low + 1, HASH_MAX),
            st.integers(low + 1, min(low + 12, HASH_MAX)),
            st.just(HASH_MAX),
        )
    )
    points = st.one_of(
        st.integers(low, high),
        st.sampled_from([low, high, high - 1, (low + high) // 2]),
        st.integers(0, HASH_MAX),
    )
    topics = draw(
        st.lists(
            st.builds(TopicLoad, point=points, messages_per_second=rates, bytes_per_second=rates),
            max_size=30,
        )
    )
    return SplitQuestion(low=low, high=high, topics=topics, limits=LIMITS)


WITHOUT_POSITIONS = st.sampled_from(
    [name for name in ALGORITHMS if name != SPECIFIED_POSITIONS_DIVIDE]
)


@given(WITHOUT_POSITIONS, questions())
def test_all_cuts_are_valid(algorithm: str, question: SplitQuestion) -> None:
    cuts = split_points(algorithm, question)
    check_cuts(question.low, question.high, cuts)
    assert len(cuts) <= CUTS_MAX


@given(WITHOUT_POSITIONS, questions(), st.randoms(use_true_random=False))
def test_the_order_of_topics_does_not_matter(
    algorithm: str, question: SplitQuestion, chance: random.Random
) -> None:
    shuffled = replace(question, topics=chance.sample(list(question.topics), len(question.topics)))
    assert split_points(algorithm, question) == split_points(algorithm, shuffled)


@given(questions())
def test_topics_are_divided_as_evenly_as_their_points_allow(question: SplitQuestion) -> None:
    """No cut between two neighbouring topics gives more equal numbers."""
    points = sorted(topic.point for topic in question.inside)
    cuts = split_points(TOPIC_COUNT_EQUALLY_DIVIDE, question)
    possible = [
        place
        for place, (one, other) in enumerate(pairwise(points), start=1)
        if one < min(other, question.high - 1)
    ]
    if not possible:
        assert () == cuts
        return
    place = bisect_left(points, cuts[0])
    half = len(points) // 2
    assert min(abs(each - half) for each in possible) == abs(place - half)


@given(questions(rates=WHOLE_RATES))
def test_each_part_carries_no_more_than_the_limit_unless_one_point_does(
    question: SplitQuestion,
) -> None:
    """Or the last two points of all. No two neighbouring parts would fit together."""
    cuts = split_points(FLOW_OR_QPS_EQUALLY_DIVIDE, question)
    if not cuts:
        return
    carried = []
    for low, high in children(question.low, question.high, cuts):
        there = [topic for topic in question.topics if bundle_contains(low, high, topic.point)]
        points = {
            topic.point for topic in there if topic.messages_per_second + topic.bytes_per_second > 0
        }
        total = load_of(question, low, high)
        assert max(total) <= 1_000 or len(points) == 1 or points == {HASH_MAX - 1, HASH_MAX}
        carried.append(total)
    for one, other in pairwise(carried):
        assert max(one[0] + other[0], one[1] + other[1]) > 1_000


def load_of(question: SplitQuestion, low: int, high: int) -> tuple[float, float]:
    there = [topic for topic in question.topics if bundle_contains(low, high, topic.point)]
    return math.fsum(topic.messages_per_second for topic in there), math.fsum(
        topic.bytes_per_second for topic in there
    )
