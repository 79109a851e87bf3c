"""Where a bundle is cut in a split: the algorithms, by the names that Apache Pulsar gives them.

May live here: pure functions from a bundle's range, its load and the wishes of an operator to the points where it is cut.
That a bundle is split at all is decided elsewhere, and so is what becomes of the children.

Whatever an algorithm returns satisfies `channel.ranges.check_cuts`. That is stricter than Pulsar, which lets an algorithm
return a point that cannot be cut and refuses the split afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from brokers.errors import UnsupportedAlgorithm
from channel.errors import InvalidBoundaries

RANGE_EQUALLY_DIVIDE: Final = "range_equally_divide"
SPECIFIED_POSITIONS_DIVIDE: Final = "specified_positions_divide"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitQuestion:
    """All that an algorithm may look at; the meaning of each field is told by `split_points`."""

    low: int
    high: int
    topic_hashes: Collection[int]
    positions: Collection[int] | None
    force: bool


SplitAlgorithm = Callable[[SplitQuestion], tuple[int, ...]]


def _range_equally_divide(question: SplitQuestion) -> tuple[int, ...]:
    """The middle of the range, rounded down; none if no point lies strictly inside."""
    middle = question.low + (question.high - question.low) // 2
    return (middle,) if middle > question.low else ()


def _specified_positions_divide(question: SplitQuestion) -> tuple[int, ...]:
    """The positions that lie strictly inside, each once and in rising order.

    A bundle with fewer than two topics is left alone, since a cut can relieve nobody there, unless it is forced.
    """
    if not question.positions:
        raise InvalidBoundaries(
            subject=f"the range 0x{question.low:08x}_0x{question.high:08x}",
            problem=f"{SPECIFIED_POSITIONS_DIVIDE} cuts at the positions that it is given, and was given none",
        )
    if len(question.topic_hashes) <= 1 and not question.force:
        return ()
    return tuple(sorted({position for position in question.positions if question.low < position < question.high}))


ALGORITHMS: Final[Mapping[str, SplitAlgorithm]] = MappingProxyType(
    {
        RANGE_EQUALLY_DIVIDE: _range_equally_divide,
        SPECIFIED_POSITIONS_DIVIDE: _specified_positions_divide,
    }
)


def split_points(
    algorithm: str,
    low: int,
    high: int,
    *,
    topic_hashes: Collection[int],
    positions: Collection[int] | None,
    force: bool = False,
) -> tuple[int, ...]:
    """The points at which the bundle from `low` to `high` is cut; none if it cannot be split so.

    `topic_hashes` are the points of the bundle's topics or keys, `positions` the points that an operator asks for, in any
    order. `force` cuts at the positions even where there are too few topics to divide, or none known.
    Raises `UnsupportedAlgorithm`, and `InvalidBoundaries` where an algorithm needs positions and there are none.
    """
    divide = ALGORITHMS.get(algorithm)
    if divide is None:
        raise UnsupportedAlgorithm(algorithm=algorithm, supported=tuple(ALGORITHMS))
    return divide(SplitQuestion(low=low, high=high, topic_hashes=topic_hashes, positions=positions, force=force))
