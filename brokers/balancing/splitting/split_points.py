"""Define the limits of a bundle, and compute where a split cuts it, by algorithms with Apache
Pulsar's names.

Above one limit a bundle is split, and far below all of them two neighbours are merged.

Each list of cuts satisfies `channel.core.ranges.check_cuts`. Pulsar may return a point that cannot
be cut, and refuses the split later.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from equipoise.channel.core.errors import CallerError, invalid_boundaries
from equipoise.channel.core.ranges import bundle_contains, check_cuts
from equipoise.channel.core.records import CUTS_MAX
from equipoise.shedder.loads import RATES, BundleTraffic, fault_among, impossible_figure

MIB: Final = 1_048_576

# The counts of `BundleTraffic`, by field name.
_COUNTS: Final = ("topics", "consumers", "producers")


class Excess(StrEnum):
    """The limit that a bundle exceeds, by the name in Pulsar's decisions and counters."""

    TOPICS = "Topics"
    SESSIONS = "Sessions"
    MESSAGES = "MsgRate"
    BYTES = "Bandwidth"


_UNITS: Final = {
    Excess.TOPICS: "topics",
    Excess.SESSIONS: "sessions",
    Excess.MESSAGES: "messages/s",
    Excess.BYTES: "bytes/s",
}


class Measure(NamedTuple):
    """One measured load of a bundle, with its limit."""

    excess: Excess
    carried: float
    limit: float

    @property
    def is_exceeded(self) -> bool:
        """Return whether the load is above the limit. A load equal to the limit is allowed."""
        return self.carried > self.limit

    @property
    def share(self) -> float:
        """The used fraction of the limit."""
        return self.carried / self.limit

    def __str__(self) -> str:
        return f"{self.carried:,.0f} {_UNITS[self.excess]} (limit: {self.limit:,.0f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLimits:
    """The limits of a bundle, both ways together: Pulsar's `loadBalancerNamespaceBundleMax...`
    settings with their defaults.

    Sessions are consumers and producers; None: no limit. Every limit is above 0.
    """

    topics_max: int = 1_000
    sessions_max: int | None = 1_000
    messages_per_second_max: float = 30_000
    bytes_per_second_max: float = 100 * MIB

    def measures(self, *bundles: BundleTraffic) -> Iterator[Measure]:
        """Yield each limited load of the bundles together, in Pulsar's order."""
        yield Measure(Excess.TOPICS, sum(bundle.topics for bundle in bundles), self.topics_max)
        if self.sessions_max is not None:
            yield Measure(
                Excess.SESSIONS,
                sum(bundle.consumers + bundle.producers for bundle in bundles),
                self.sessions_max,
            )
        yield Measure(
            Excess.MESSAGES,
            sum(bundle.traffic.messages_per_second for bundle in bundles),
            self.messages_per_second_max,
        )
        yield Measure(
            Excess.BYTES,
            sum(bundle.traffic.bytes_per_second for bundle in bundles),
            self.bytes_per_second_max,
        )

    def exceeded(self, bundle: BundleTraffic) -> Measure | None:
        """Return the first limit that a bundle exceeds; None if it exceeds none."""
        return next((measure for measure in self.measures(bundle) if measure.is_exceeded), None)

    def fullest(self, *bundles: BundleTraffic) -> Measure:
        """Return the measure with the largest used fraction, of the bundles together; of equals the
        first.
        """
        return max(self.measures(*bundles), key=lambda measure: measure.share)


def fault_of_bundle(bundle: BundleTraffic) -> str | None:
    """Return a message about the first impossible figure (not a number, negative, or absurd); None
    if there is none.
    """
    fault = fault_among(bundle.traffic, RATES) or fault_among(bundle, _COUNTS)
    return None if fault is None else f"it has {fault}"


RANGE_EQUALLY_DIVIDE: Final = "range_equally_divide"
TOPIC_COUNT_EQUALLY_DIVIDE: Final = "topic_count_equally_divide"
SPECIFIED_POSITIONS_DIVIDE: Final = "specified_positions_divide"
FLOW_OR_QPS_EQUALLY_DIVIDE: Final = "flow_or_qps_equally_divide"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLoad:
    """One topic or key of a bundle: its hash point, and its load both ways, per second.

    Raises `CallerError` for a rate that is negative or not finite.
    """

    point: int
    messages_per_second: float = 0.0
    bytes_per_second: float = 0.0

    def __post_init__(self) -> None:
        for name in ("messages_per_second", "bytes_per_second"):
            if not 0 <= getattr(self, name) < math.inf:
                raise impossible_figure("topic", name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQuestion:
    """The input of an algorithm: the bundle from `low` to `high`, and its contents.

    * `topics`: the known topics or keys. Those outside the bundle are ignored.
    * `positions`: the points at which an operator wants cuts.
    * `force`: cut at `positions` even if fewer than two topics are known.
    * `limits`: what one part may carry. Load divides the bundle only if the whole exceeds a limit
      by `margin`.
    """

    low: int
    high: int
    topics: Collection[TopicLoad] = ()
    positions: Sequence[int] | None = None
    force: bool = False
    limits: BundleLimits = field(default_factory=BundleLimits)
    margin: float = 0.10

    @property
    def inside(self) -> list[TopicLoad]:
        """The topics in the bundle. A topic at the end of the hash space moves down by one point:
        no cut separates these two.
        """
        here = (topic for topic in self.topics if bundle_contains(self.low, self.high, topic.point))
        return [
            topic if topic.point < self.high else replace(topic, point=self.high - 1)
            for topic in here
        ]


SplitAlgorithm = Callable[[SplitQuestion], tuple[int, ...]]


class _Pile(NamedTuple):
    """The load of all topics at one point."""

    point: int
    messages: float
    bytes: float


def _range_equally_divide(question: SplitQuestion) -> tuple[int, ...]:
    """Return the middle of the range, rounded down; nothing if no point is strictly inside."""
    middle = question.low + (question.high - question.low) // 2
    return (middle,) if middle > question.low else ()


def _topic_count_equally_divide(question: SplitQuestion) -> tuple[int, ...]:
    """Return the middle between the two middle topics, rounded down.

    If both have the same point, use the nearest two topics that do not; of two equally near pairs
    the lower. If their points are adjacent, the cut is the right one. In both cases Pulsar returns
    the left point, which separates other topics, or none.
    """
    points = sorted(topic.point for topic in question.inside)
    half = len(points) // 2
    if half == 0:
        return ()
    for place in sorted(range(1, len(points)), key=lambda place: (abs(place - half), place)):
        left, right = points[place - 1], points[place]
        if left < right:
            return (max(left + 1, left + (right - left) // 2),)
    return ()


def _specified_positions_divide(question: SplitQuestion) -> tuple[int, ...]:
    """Return the positions, which must be cuts of this range.

    A bundle with fewer than two topics is not cut unless forced, because a cut relieves no broker.
    Pulsar sorts the positions, and silently drops those outside the range.
    """
    if not question.positions:
        raise invalid_boundaries(
            subject=f"the range 0x{question.low:08x}_0x{question.high:08x}",
            problem=(
                f"{SPECIFIED_POSITIONS_DIVIDE} cuts at the positions that it is given, and was"
                " given none"
            ),
        )
    check_cuts(question.low, question.high, question.positions)
    return tuple(question.positions) if question.force or len(question.inside) > 1 else ()


def _flow_or_qps_equally_divide(question: SplitQuestion) -> tuple[int, ...]:
    """Cut before each topic, in order of points, with which a part would exceed a limit.

    The cut is one above the middle between the two topics. Nothing is cut unless the whole bundle
    exceeds a limit by `margin`. There are at most `CUTS_MAX` cuts; the last part takes the rest,
    and can be split again.
    """
    limits = question.limits
    busy = [
        topic
        for topic in question.inside
        if topic.messages_per_second > 0 or topic.bytes_per_second > 0
    ]
    messages_all = math.fsum(topic.messages_per_second for topic in busy)
    bytes_all = math.fsum(topic.bytes_per_second for topic in busy)
    factor = 1 + question.margin
    if (
        messages_all < limits.messages_per_second_max * factor
        and bytes_all < limits.bytes_per_second_max * factor
    ):
        return ()
    piles = _piles(busy)
    cuts: list[int] = []
    messages = bytes_ = 0.0
    for place, pile in enumerate(piles):
        messages, bytes_ = messages + pile.messages, bytes_ + pile.bytes
        if place > 0 and (
            messages > limits.messages_per_second_max or bytes_ > limits.bytes_per_second_max
        ):
            before = piles[place - 1].point
            cuts.append(before + (pile.point - before) // 2 + 1)
            messages, bytes_ = pile.messages, pile.bytes
    return tuple(cuts[:CUTS_MAX])


def _piles(topics: Iterable[TopicLoad]) -> list[_Pile]:
    by_point: defaultdict[int, list[TopicLoad]] = defaultdict(list)
    for topic in topics:
        by_point[topic.point].append(topic)
    return [
        _Pile(
            point,
            math.fsum(each.messages_per_second for each in there),
            math.fsum(each.bytes_per_second for each in there),
        )
        for point, there in sorted(by_point.items())
    ]


ALGORITHMS: Final[Mapping[str, SplitAlgorithm]] = MappingProxyType(
    {
        RANGE_EQUALLY_DIVIDE: _range_equally_divide,
        TOPIC_COUNT_EQUALLY_DIVIDE: _topic_count_equally_divide,
        SPECIFIED_POSITIONS_DIVIDE: _specified_positions_divide,
        FLOW_OR_QPS_EQUALLY_DIVIDE: _flow_or_qps_equally_divide,
    }
)


def split_points(algorithm: str, question: SplitQuestion) -> tuple[int, ...]:
    """Return the points at which to cut a bundle; empty if it cannot or need not be cut.

    Raises `CallerError` for an unknown algorithm, also if positions are needed and missing, are not
    strictly rising, or are not strictly inside.
    """
    divide = ALGORITHMS.get(algorithm)
    if divide is None:
        raise CallerError(
            f"there is no split algorithm {algorithm!r}; choose one of {', '.join(ALGORITHMS)}"
        )
    return divide(question)
