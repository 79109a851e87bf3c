"""Bound from below how even any policy can keep the load of a trace with the load that it moves.

The bound is that of a linear program's relaxation, so no run is below it. Each step from a run to
the program only lowers the result:

1. *Hindsight.* The program knows all loads, and moves at any moment, without delay. A bundle of a
   broker that has left is placed for nothing. The start is that of the run (`starting_owners`).
2. *Divisible bundles.* A part of a bundle may be at each broker. Owners are then a point `x` of a
   convex set, the load moved is linear in it, and the unevenness is convex: the mean over time of
   the norms of the deviations `D = use / mean use - 1`.
3. *Coarser time.* Rows of a trace form blocks, with the same brokers live and the first row alone.
   The mean of the norms in a block is at least the norm of the mean deviation (Jensen), and that
   is linear in the parts of each bundle's load in the block that its owners have. A move within
   the block changes these parts both from the block before and to the block after, by one bundle
   in sum. So each change costs the least load of the bundle in the two blocks, which is at most
   the load that moved.
4. *A price for load moved.* For each price `p >= 0`, at most `B` of load moved means: unevenness
   >= min over x of (unevenness + p * moved) - p * B.
5. *A plane for each norm.* A norm is at least `q . D` for each vector `q` of at most length 1. So
   the minimum is at least that of a linear function, which is a sum over bundles: for each, the
   cheapest path through brokers and blocks, which dynamic programming finds exactly.

Any `p` and `q` give a bound, a `Cut`. The best ones solve the program's dual. They come from a
search: Frank-Wolfe by groups of bundles (Lacoste-Julien et al., 2013) on a smoothed norm, whose
gradients are the `q`. How far it converges decides how high a bound is, not whether it is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from equipoise.lab.results import Owners, starting_owners
from equipoise.lab.traces import Loads, Trace

_BLOCKS: Final = 60
_GROUPS: Final = 10  # Of bundles. More converge faster for each pass, and each costs more.
_GROUP_MAX: Final = 4_000_000  # Blocks x brokers x bundles of a group: 32 MB.
_PASSES: Final = 25  # For each price,
_WORK_MAX: Final = 2_000_000_000  # but at most so many times blocks x brokers x bundles.
_SMOOTH: Final = 0.02  # Deviations that are smaller count as nearly none in the search.
# Of all load, moved once in the whole trace. At the first, nearly nothing moves. Each search begins
# where the one before it ended.
_PRICES: Final = (4.0, 3.0, 2.5, 2.0, 1.7, 1.4, 1.2, 1.0, 0.85, 0.7, 0.6, 0.5, 0.35, 0.25)
_HALVINGS: Final = 20  # Of the interval of a step length.


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A line that no run is below: its unevenness is at least `level - price * load_moved`, as in
    `lab.results.Metrics`.
    """

    level: float
    price: float


def bound_at(cuts: Sequence[Cut], load_moved: float) -> float:
    """Return the least unevenness of any run that moves at most `load_moved`."""
    return max([0.0, *(cut.level - cut.price * load_moved for cut in cuts)])


def cuts_of(trace: Trace, *, seed: int = 1) -> tuple[Cut, ...]:
    """Return lines that bound each run of `trace`. `seed` draws the owners at the start as
    `running.run` does.
    """
    program = _Program(trace)
    owners = starting_owners(trace, seed)
    size = program.means.size * len(program.capacity)
    number = min(len(owners), max(_GROUPS, -(-size // _GROUP_MAX)))
    passes = max(1, min(_PASSES, _WORK_MAX // (size * len(_PRICES))))
    by_load = np.argsort(-program.means.sum(axis=0), kind="stable")
    groups = [_Group(program, by_load[first::number], owners) for first in range(number)]
    hours = trace.duration_s / 3_600
    return tuple(_cut(program, groups, price=each * hours, passes=passes) for each in _PRICES)


class _Program:
    """The linear program of a trace, over blocks of rows.

    * `means`: the mean load of each bundle in each block, relative to the mean use of each row.
    * `changes`: what it costs to change the broker of a bundle after each block but the last, as
      load moved.
    * `even`: the deviation of each broker in each block, if it had no load, times -1.
    * `weights`: of the norm of each block in the mean over time.
    """

    def __init__(self, trace: Trace) -> None:
        rows, total = len(trace.loads), trace.loads.sum(axis=1)
        self.capacity = trace.capacity
        live = np.array([trace.live(row * trace.step_s) for row in range(rows)])
        changed = 1 + np.flatnonzero((live[1:] != live[:-1]).any(axis=1))
        evenly = np.linspace(1, rows, _BLOCKS).round().astype(int)
        starts = np.unique([0, *changed, *evenly[evenly < rows]])
        numbers = np.diff([*starts, rows])
        use = total / (live @ self.capacity)
        relative = np.divide(
            trace.loads, use[:, None], out=np.zeros_like(trace.loads), where=use[:, None] > 0
        )
        self.live = live[starts]
        self.means: Loads = np.add.reduceat(relative, starts) / numbers[:, None]
        least = np.minimum.reduceat(trace.loads, starts)
        hourly = 3_600 / trace.duration_s / (float(total.mean()) or 1.0)
        self.changes: Loads = np.minimum(least[:-1], least[1:]) * hourly
        loaded = np.add.reduceat((use > 0).astype(float), starts) / numbers
        self.even: Loads = loaded[:, None] * self.live
        self.brokers = self.live.sum(axis=1)
        self.weights: Loads = numbers / rows / np.sqrt(self.brokers)

    def deviations(self, loads: Loads) -> Loads:
        """Return the deviations of brokers with these loads, by block."""
        return loads / self.capacity - self.even

    def plane(self, loads: Loads) -> Loads:
        """Return the vectors `q` that touch the smoothed norms at these loads."""
        found = self.deviations(loads)
        lengths: Loads = np.sqrt((found**2).sum(axis=1) + _SMOOTH**2 * self.brokers)
        return found / lengths[:, None]

    def prices(self, plane: Loads) -> Loads:
        """Return what a unit of load costs at each broker in each block."""
        return self.weights[:, None] * plane / self.capacity

    def step(self, loads: Loads, change: Loads, slope: float) -> float:
        """Return the share of a `change` of loads that lowers the sum of the smoothed norms and of
        `slope` times the share most.
        """
        at, along = self.deviations(loads), change / self.capacity
        square, mixed = (along**2).sum(axis=1), (at * along).sum(axis=1)
        norm = (at**2).sum(axis=1) + _SMOOTH**2 * self.brokers

        def rises(share: float) -> bool:
            lengths = np.sqrt(norm + 2 * share * mixed + share**2 * square)
            return float((self.weights * (mixed + share * square) / lengths).sum()) + slope > 0

        least, most = 0.0, 1.0
        if not rises(most):
            return most
        for _ in range(_HALVINGS):
            middle = (least + most) / 2
            least, most = (least, middle) if rises(middle) else (middle, most)
        return least


def _cut(program: _Program, groups: Sequence[_Group], *, price: float, passes: int) -> Cut:
    """Search from where the groups are. Return the line of the last plane."""
    loads: Loads = np.sum([group.loads for group in groups], axis=0)
    for _ in range(passes):
        for group in groups:
            prices = program.prices(program.plane(loads))
            _, found, moved = group.cheapest(prices, price)
            change = found - group.loads
            share = program.step(loads, change, price * (moved - group.moved))
            loads = loads + share * change
            group.loads = group.loads + share * change
            group.moved += share * (moved - group.moved)
    plane = program.plane(loads)
    prices = program.prices(plane)
    cost = sum(group.cheapest(prices, price)[0] for group in groups)
    return Cut(
        level=cost - float((program.weights[:, None] * plane * program.even).sum()), price=price
    )


class _Group:
    """A group of bundles, and where the search has them: the `loads` of brokers by block, and the
    load `moved`. It begins without moves.
    """

    def __init__(self, program: _Program, bundles: NDArray[np.int64], owners: Owners) -> None:
        self._live, self._owners = program.live, owners[bundles]
        self._means = np.ascontiguousarray(program.means[:, bundles])
        self._changes = np.ascontiguousarray(program.changes[:, bundles])
        _, self.loads, self.moved = self.cheapest(np.zeros(program.live.shape), 1.0)

    def cheapest(self, prices: Loads, price: float) -> tuple[float, Loads, float]:
        """Return the cost of the cheapest path of each bundle, in sum, and the loads of brokers by
        block and the load moved on these paths.
        """
        costs = np.empty((*prices.shape, len(self._owners)))
        least, changes = np.empty(self._means.shape), price * self._changes
        later = np.zeros(costs.shape[1:])
        for block in range(len(costs) - 1, -1, -1):
            np.multiply(prices[block, :, None], self._means[block], out=costs[block])
            costs[block] += later
            costs[block, ~self._live[block]] = np.inf
            if block:
                costs[block].min(axis=0, out=least[block])
                np.minimum(costs[block], least[block] + changes[block - 1], out=later)
                later[~self._live[block]] = least[block]
        owners, every = self._owners.copy(), np.arange(len(self._owners))
        cost, moved = float(costs[0, owners, every].sum()), 0.0
        loads = np.zeros(prices.shape)
        loads[0] = np.bincount(owners, self._means[0], len(loads[0]))
        for block in range(1, len(costs)):
            dead = ~self._live[block, owners]
            leave = costs[block, owners, every] > least[block] + changes[block - 1]
            places = np.flatnonzero(leave)
            owners[places] = costs[block][:, places].argmin(axis=0)
            moved += float(self._changes[block - 1, leave & ~dead].sum())
            loads[block] = np.bincount(owners, self._means[block], len(loads[block]))
        return cost, loads, moved
