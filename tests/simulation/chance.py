"""Draw everything random in a simulated run from one seed.

Draws use only `Random.random()`, whose sequence is the same in every Python version, and integers.
A seed thus gives the same run everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from tests.simulation.faults import Span

T = TypeVar("T")


class Chance:
    """One seeded source of draws."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random

    def happens(self, permille: int) -> bool:
        """Return True in `permille` of 1,000 draws."""
        return permille > 0 and self._random() * 1_000 < permille

    def within(self, span: Span) -> int:
        """Return an integer of the span, uniformly."""
        low, high = span
        return low + int(self._random() * (high - low + 1))

    def long_within(self, span: Span) -> int:
        """Return an integer of the span, where each doubling of its low end is equally likely:
        mostly short, rarely very long.
        """
        low, high = span
        lows = [max(low, 1)]
        while lows[-1] * 2 < high:
            lows.append(lows[-1] * 2)
        low = self.one_of(lows)
        return self.within((low, min(low * 2, high)))

    def microseconds(self, span_ms: Span) -> int:
        """Return a duration in microseconds from a span in milliseconds."""
        return self.within((span_ms[0] * 1_000, span_ms[1] * 1_000))

    def about(self, mean: int) -> int:
        """Return a wait with this mean, uniformly between 0 and twice the mean."""
        return self.within((0, 2 * mean))

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of the choices. There must be at least one."""
        return choices[int(self._random() * len(choices))]

    def by_weight(self, choices: Sequence[tuple[T, int]]) -> T:
        """Return one of the choices by weight. The sum of the weights must be positive."""
        left = self.within((1, sum(weight for _, weight in choices)))
        for choice, weight in choices:
            left -= weight
            if left <= 0:
                return choice
        raise AssertionError("the draw lies within the sum of the weights")
