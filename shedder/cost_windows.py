"""Find what each bundle costs and how certain that is, from its loads in the last minutes.

Theory of operation:

* The time is cut into parts, `_PARTS` in a window. The load of a bundle in a part is the mean of
  its samples.
* The cost of a bundle is the mean of the middle of these loads: the highest and the lowest `_CUT`
  of them do not count. So a burst that lasts less than a third of the window does not count, and a
  load that has changed for good counts in full after two thirds of the window. A decaying average
  would do neither.
* If the loads in the window hardly differ, and the mean of the newest is near that cost, this mean
  is the cost. It is certain enough, and follows a slow change. A burst changes a cost by at most
  `_NEAR`.
* The certainty comes from the spread of the loads that count, because a difference that is chance
  must not move a bundle either. While there are few loads, a burst may have filled them all, and
  their spread says nothing. So the standard error has a least value at first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from operator import mul
from typing import Final, NamedTuple

_PARTS: Final = 24
_CUT: Final = 0.35
_NEWEST: Final = 9
# The loads of a bundle hardly differ if their standard deviation is below this share of their mean.
_STEADY: Final = 0.4
# The newest loads count alone if their mean is at most so far from the middle loads, as a share of
# it.
_NEAR: Final = 0.2
_ENOUGH: Final = _NEWEST / _PARTS  # A share of the window that no burst fills.
# The least standard error at first, as a share of the cost. It falls to 0 while loads fill
# `_ENOUGH`.
_DOUBT: Final = 0.2
_ROUNDING: Final = 1e-12


class _Cost(NamedTuple):
    """The cost of one bundle, the variance of that cost, and the number of loads behind it."""

    cost: float
    variance: float
    loads: int


class CostWindows:
    """The loads of the bundles of one broker, part by part. Costs are in calls per second (see
    `shedder.snapshot`).
    """

    def __init__(self, *, known: float = 0.0) -> None:
        """`known`: the share of the window that loads must fill, on average, until the standard
        error is known.
        """
        self._known = known
        # In the part that has not ended, by bundle: load times milliseconds.
        self._sums: dict[str, float] = {}
        self._sampled_ms: dict[str, int] = {}
        self._part_ms = 0
        self._parts: deque[int] = deque()  # The milliseconds of each ended part of the window.
        self._loads: dict[str, list[float]] = {}  # By bundle: its load in each part since it came.
        self._costs: dict[str, _Cost] = {}

    def update(
        self,
        names: Sequence[str],
        loads: Sequence[float],
        *,
        newcomers: Collection[str],
        elapsed_ms: int,
        window_ms: int,
    ) -> tuple[Sequence[float], float | None]:
        """Return the cost of each bundle of `names`, and the standard error of their sum; None if
        it is not known yet.

        `loads` are their costs in the last `elapsed_ms` milliseconds. Those of `newcomers` do not
        cover this time: they only count until the next update. A bundle that is not in `names` is
        forgotten.
        """
        now = dict(zip(names, loads, strict=True))
        for name in newcomers:  # One that has left and come back starts anew.
            for known in (self._sums, self._sampled_ms, self._loads, self._costs):
                known.pop(name, None)
        sums, sampled_ms = self._sums, self._sampled_ms
        self._sums = {
            name: sums.get(name, 0.0) + load * elapsed_ms
            for name, load in now.items()
            if name not in newcomers
        }
        self._sampled_ms = {name: sampled_ms.get(name, 0) + elapsed_ms for name in self._sums}
        self._part_ms += elapsed_ms
        if self._part_ms >= window_ms / _PARTS:
            self._end_part(window_ms)
        costs = [self._cost(name, load) for name, load in now.items()]
        return costs, self._noise(names, costs, window_ms)

    def _cost(self, name: str, load: float) -> float:
        """Return the cost of a bundle. Before its first part has ended, that is the mean of its
        samples; without one it is `load`.
        """
        known = self._costs.get(name)
        if known is not None:
            return known.cost
        return self._sums[name] / self._sampled_ms[name] if name in self._sums else load

    def _end_part(self, window_ms: int) -> None:
        self._parts.append(self._part_ms)
        while len(self._parts) > _PARTS or sum(self._parts) - self._parts[0] >= window_ms:
            self._parts.popleft()
        kept, before = len(self._parts), self._loads
        self._loads = {
            name: [*before.get(name, ()), total / self._sampled_ms[name]][-kept:]
            for name, total in self._sums.items()
        }
        self._costs = {name: _cost_of(loads) for name, loads in self._loads.items()}
        self._sums, self._sampled_ms, self._part_ms = {}, {}, 0

    def _noise(self, names: Sequence[str], costs: Sequence[float], window_ms: int) -> float | None:
        """Return the standard error of the sum of `costs`; None while their loads fill too little
        on average, weighted by cost.
        """
        found = [self._costs.get(name) for name in names]
        counted = sum(
            cost * each.loads for cost, each in zip(costs, found, strict=True) if each is not None
        )
        total = sum(costs)
        if counted < total:
            return None
        filled = counted / total * sum(self._parts) / len(self._parts) / window_ms if total else 1.0
        if filled + _ROUNDING < self._known:
            return None
        doubt = _DOUBT * total * (1 - filled / _ENOUGH)
        return max(doubt, math.sqrt(sum(each.variance for each in found if each is not None)))


def _cost_of(loads: list[float]) -> _Cost:
    number, mean = len(loads), sum(loads) / len(loads)
    variance = _variance(loads, mean)
    cut = min(int(_CUT * number), (number - 1) // 2)
    middle = sorted(loads)[cut : number - cut]
    cost, newest = sum(middle) / len(middle), loads[-_NEWEST:]
    latest = sum(newest) / len(newest)
    if number > _NEWEST and variance < (_STEADY * mean) ** 2 and abs(latest - cost) <= _NEAR * cost:
        return _Cost(cost=latest, variance=_variance(newest, latest) / _NEWEST, loads=number)
    return _Cost(cost=cost, variance=variance / number, loads=number)


def _variance(loads: list[float], mean: float) -> float:
    """Return the variance of loads with this mean; 0 of one load."""
    number, total = len(loads), mean * len(loads)
    # Not the sum of squared differences, which takes several times as long. What rounding leaves of
    # equal loads is nothing.
    squares = sum(map(mul, loads, loads)) - total * total / number
    return squares / (number - 1) if squares > _ROUNDING * total * total else 0.0
