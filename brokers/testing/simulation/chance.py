"""Chance: every draw of a simulated run, from one seed.

May live here: the ways to draw. They use nothing of `random.Random` but its `random()`, whose sequence Python keeps from
version to version, and integers, so that a seed tells the same story everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from equipoise.brokers.testing.simulation.faults import Span

T = TypeVar("T")


class Chance:
    """One seeded source of draws."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed).random

    def happens(self, permille: int) -> bool:
        """Whether something happens that does so `permille` times in a thousand."""
        return permille > 0 and self._random() * 1_000 < permille

    def within(self, span: Span) -> int:
        """An integer of the span, all alike."""
        low, high = span
        return low + int(self._random() * (high - low + 1))

    def long_within(self, span: Span) -> int:
        """An integer of the span, each doubling of its low end alike: mostly short, now and then very long."""
        low, high = span
        lows = [max(low, 1)]
        while lows[-1] * 2 < high:
            lows.append(lows[-1] * 2)
        low = self.one_of(lows)
        return self.within((low, min(low * 2, high)))

    def microseconds(self, span_ms: Span) -> int:
        """A time of a span that is given in milliseconds, in microseconds."""
        return self.within((span_ms[0] * 1_000, span_ms[1] * 1_000))

    def about(self, mean: int) -> int:
        """A wait of this mean: from nothing to twice as much."""
        return self.within((0, 2 * mean))

    def one_of(self, choices: Sequence[T]) -> T:
        """One of the choices, which are not empty."""
        return choices[int(self._random() * len(choices))]

    def by_weight(self, choices: Sequence[tuple[T, int]]) -> T:
        """One of the choices, as often as its weight says; the weights do not add up to 0."""
        left = self.within((1, sum(weight for _, weight in choices)))
        for choice, weight in choices:
            left -= weight
            if left <= 0:
                return choice
        raise AssertionError("the draw lies within the sum of the weights")
