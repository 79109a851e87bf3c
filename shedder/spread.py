"""Compute the mean and deviation of broker loads while moves are planned (Pulsar's `LoadStats`)."""

from __future__ import annotations

import math
from collections.abc import Iterable


class Spread:
    """Mean and population deviation of loads, which are fractions.

    With `pulsar_exact` it keeps a sum of squares, as Pulsar does. Similar loads then lose all
    digits, and a negative variance makes the deviation NaN.
    """

    def __init__(self, loads: Iterable[float], *, pulsar_exact: bool) -> None:
        self._loads = list(loads)
        self._pulsar_exact = pulsar_exact
        total = self._squares = 0.0
        for load in self._loads:
            total += load
            self._squares += load * load
        self.mean = total / len(self._loads)
        self.deviation = self._by_squares() if pulsar_exact else self._measured()

    def move(self, most: float, least: float, shed: float) -> None:
        """Move `shed` from a broker of load `most` to one of load `least`. No load becomes
        negative.
        """
        given, got = max(most - shed, 0.0), least + shed
        if self._pulsar_exact:
            self._squares -= most * most + least * least
            self._squares += given * given + got * got
            self.deviation = math.sqrt(abs(self._variance_by_squares()))
            return
        self._loads[self._loads.index(most)] = given
        self._loads[self._loads.index(least)] = got
        self.deviation = self._measured()

    def _measured(self) -> float:
        return math.sqrt(
            math.fsum((load - self.mean) * (load - self.mean) for load in self._loads)
            / len(self._loads)
        )

    def _by_squares(self) -> float:
        variance = self._variance_by_squares()
        return math.sqrt(variance) if variance >= 0 else math.nan

    def _variance_by_squares(self) -> float:
        return self._squares / len(self._loads) - self.mean * self.mean
