"""Where a bundle is cut in a split: the algorithms, by the names that Apache Pulsar gives them.

May live here: pure functions from a bundle's range, its topics and the wishes of an operator to the points where it is cut.
That a bundle is split at all is decided elsewhere, and so is what becomes of the children.

Whatever an algorithm returns satisfies `channel.core.ranges.check_cuts`. That is stricter than Pulsar, which lets an algorithm
return a point that cannot be cut and refuses the split afterwards; so does `SplitQuestion.pulsar_exact`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from equipoise.brokers.balancing.splitting.bundle_limits import BundleLimits
from equipoise.brokers.errors import InvalidLoad, UnsupportedAlgorithm
from equipoise.channel.core.errors import InvalidBoundaries
from equipoise.channel.core.ranges import bundle_contains, check_cuts
from equipoise.channel.core.records import CUTS_MAX

RANGE_EQUALLY_DIVIDE: Final = "range_equally_divide"
TOPIC_COUNT_EQUALLY_DIVIDE: Final = "topic_count_equally_divide"
SPECIFIED_POSITIONS_DIVIDE: Final = "specified_positions_divide"
FLOW_OR_QPS_EQUALLY_DIVIDE: Final = "flow_or_qps_equally_divide"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoad:
    """One topic or key of a bundle: its hash point, and what it carries both ways, per second.

    Raises `InvalidLoad` for a rate that is negative or not finite.
    """

    point: int
    messages_per_second: float = 0.0
    bytes_per_second: float = 0.0

    def __post_init__(self) -> None:
        for name in ("messages_per_second", "bytes_per_second"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidLoad(subject="topic", field=name, value=getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQuestion:
    """All that an algorithm may look at: the bundle from `low` to `high`, and what is in it.

    `topics` are the bundle's topics or keys as far as they are known; one that does not lie in it is passed over. `positions`
    are the points at which an operator wants it cut. `force` cuts there even where there are too few topics to divide, or none
    known. `limits` are what one part may carry, and by `margin` the whole must exceed them before load divides it.
    """

    low: int
    high: int
    topics: Collection[TopicLoad] = ()
    positions: Sequence[int] | None = None
    force: bool = False
    limits: BundleLimits = field(default_factory=BundleLimits)
    margin: float = 0.10
    pulsar_exact: bool = False

    @property
    def inside(self) -> list[TopicLoad]:
        """The topics that lie in the bundle. One at the very end of the hash space counts a point lower: no cut parts these two."""
        if self.pulsar_exact:
            return list(self.topics)
        here = (topic for topic in self.topics if bundle_contains(self.low, self.high, topic.point))
        return [topic if topic.point < self.high else replace(topic, point=self.high - 1) for topic in here]


SplitAlgorithm = Callable[[SplitQuestion], tuple[int, ...]]


class _Pile(NamedTuple):
    """What all topics at one point carry."""

    point: int
    messages: float
    bytes: float


def _range_equally_divide(question: SplitQuestion) -> tuple[int, ...]:
    """The middle of the range, rounded down; none if no point lies strictly inside."""
    middle = question.low + (question.high - question.low) // 2
    return (middle,) if middle > question.low or question.pulsar_exact else ()


def _topic_count_equally_divide(question: SplitQuestion) -> tuple[int, ...]:
    """The middle between the two topics in the middle, rounded down.

    Where these two have one point, the nearest two that have not; of two equally near the lower. Where they are neighbours, the
    cut is the right one. Pulsar names the left one in both cases, which parts others, or nothing.
    """
    points = sorted(topic.point for topic in question.inside)
    half = len(points) // 2
    if half == 0:
        return ()
    if question.pulsar_exact:
        return (points[half - 1] + (points[half] - points[half - 1]) // 2,)
    for place in sorted(range(1, len(points)), key=lambda place: (abs(place - half), place)):
        left, right = points[place - 1], points[place]
        if left < right:
            return (max(left + 1, left + (right - left) // 2),)
    return ()


def _specified_positions_divide(question: SplitQuestion) -> tuple[int, ...]:
    """The positions, which must be cuts of this range.

    A bundle with fewer than two topics is left alone, since a cut can relieve nobody there, unless it is forced. Pulsar sorts
    the positions, and drops without a word those that do not lie inside.
    """
    if not question.positions:
        raise InvalidBoundaries(
            subject=f"the range 0x{question.low:08x}_0x{question.high:08x}",
            problem=f"{SPECIFIED_POSITIONS_DIVIDE} cuts at the positions that it is given, and was given none",
        )
    if not question.pulsar_exact:
        check_cuts(question.low, question.high, question.positions)
    if len(question.inside) <= 1 and not question.force:
        return ()
    return tuple(sorted(position for position in question.positions if question.low < position < question.high))


def _flow_or_qps_equally_divide(question: SplitQuestion) -> tuple[int, ...]:
    """Before each topic, in order of their points, with which a part would carry more than the limits allow.

    The cut lies one behind the middle of the two topics that it parts. Nothing is cut unless the whole bundle exceeds a limit
    by `margin`. At most `CUTS_MAX` cuts: what is left over is the last part's, which can be split again.
    """
    limits = question.limits
    busy = [topic for topic in question.inside if topic.messages_per_second > 0 or topic.bytes_per_second > 0]
    messages_all = math.fsum(topic.messages_per_second for topic in busy)
    bytes_all = math.fsum(topic.bytes_per_second for topic in busy)
    factor = 1 + question.margin
    if messages_all < limits.messages_per_second_max * factor and bytes_all < limits.bytes_per_second_max * factor:
        return ()
    piles = _counted_like_pulsar(busy) if question.pulsar_exact else _piles(busy)
    cuts: list[int] = []
    messages = bytes_ = 0.0
    for place, pile in enumerate(piles):
        messages, bytes_ = messages + pile.messages, bytes_ + pile.bytes
        if place > 0 and (messages > limits.messages_per_second_max or bytes_ > limits.bytes_per_second_max):
            before = piles[place - 1].point
            cuts.append(before + (pile.point - before) // 2 + 1)
            messages, bytes_ = pile.messages, pile.bytes
    return tuple(cuts) if question.pulsar_exact else tuple(cuts[:CUTS_MAX])


def _piles(topics: Iterable[TopicLoad]) -> list[_Pile]:
    """What is carried at each point, in rising order."""
    by_point: defaultdict[int, list[TopicLoad]] = defaultdict(list)
    for topic in topics:
        by_point[topic.point].append(topic)
    return [
        _Pile(point, math.fsum(each.messages_per_second for each in there), math.fsum(each.bytes_per_second for each in there))
        for point, there in sorted(by_point.items())
    ]


def _counted_like_pulsar(topics: Sequence[TopicLoad]) -> list[_Pile]:
    """A pile for each topic, in rising order; of several topics at one point each carries what the last of them does."""
    last = {topic.point: topic for topic in topics}
    if len(last) <= 1:
        return []
    return [_Pile(point, last[point].messages_per_second, last[point].bytes_per_second) for point in sorted(each.point for each in topics)]


ALGORITHMS: Final[Mapping[str, SplitAlgorithm]] = MappingProxyType(
    {
        RANGE_EQUALLY_DIVIDE: _range_equally_divide,
        TOPIC_COUNT_EQUALLY_DIVIDE: _topic_count_equally_divide,
        SPECIFIED_POSITIONS_DIVIDE: _specified_positions_divide,
        FLOW_OR_QPS_EQUALLY_DIVIDE: _flow_or_qps_equally_divide,
    }
)


def split_points(algorithm: str, question: SplitQuestion) -> tuple[int, ...]:
    """The points at which a bundle is cut; none if it cannot be divided so, or need not be.

    Raises `UnsupportedAlgorithm`; and `InvalidBoundaries` where positions are wanted and there are none, or they do not rise
    strictly, or do not lie strictly inside.
    """
    divide = ALGORITHMS.get(algorithm)
    if divide is None:
        raise UnsupportedAlgorithm(algorithm=algorithm, supported=tuple(ALGORITHMS))
    return divide(question)
