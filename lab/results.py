"""Measure a run: how even the load was, and what moved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from equipoise.lab.traces import Loads, Trace

UNDONE_S: Final = 600.0
"""A move back to the previous owner within this time counts as undone."""

BALANCED: Final = 0.10
"""The load is balanced when its unevenness is at most this."""

Owners = NDArray[np.int64]
"""The broker of each bundle of a trace: a place in `Trace.brokers`; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMove:
    """A finished move: its end in seconds, and its load then in cost units. `bundle` is the column
    of the trace.
    """

    at_s: float
    bundle: int
    source: str
    destination: str
    load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The figures of a run.

    * `unevenness`: the standard deviation of the brokers' use from the use of all of them together,
      relative to it, averaged over time.
    * `load_moved`: the share of all load that moves per hour.
    * `moves`, `undone`: finished moves, and those of them that went back within `UNDONE_S`.
    * `excess_p50`, `excess_p90`, `excess_p99`: (largest use - mean use) / mean use, as quantiles
      over time.
    * `balanced_s`: from the last change of members until the load is `BALANCED`, in seconds; None
      if it never is.
    """

    unevenness: float
    load_moved: float
    moves: int
    excess_p50: float
    excess_p90: float
    excess_p99: float
    balanced_s: float | None
    undone: int

    def document(self) -> dict[str, float | None]:
        """Return the figures by name, rounded for output."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {
            name: round(value, 4) if isinstance(value, float) else value for name, value in values
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """The outcome of a run. `unevenness` and `excess` have a row per step of the trace; they are as
    in `Metrics`.
    """

    trace: Trace
    unevenness: Loads
    excess: Loads
    moves: tuple[RunMove, ...]

    def metrics(self) -> Metrics:
        """Return the figures of the run."""
        step_s, last_change_s = self.trace.step_s, self.trace.last_change_s
        later = self.unevenness[int(last_change_s // step_s) :]
        balanced = np.flatnonzero(later <= BALANCED)
        return Metrics(
            unevenness=float(self.unevenness.mean()),
            load_moved=float(self.moved_by_step().sum()) * 3_600 / self.trace.duration_s,
            moves=len(self.moves),
            excess_p50=float(np.quantile(self.excess, 0.5)),
            excess_p90=float(np.quantile(self.excess, 0.9)),
            excess_p99=float(np.quantile(self.excess, 0.99)),
            balanced_s=float(balanced[0]) * step_s if len(balanced) else None,
            undone=_undone(self.moves),
        )

    def moved_by_step(self) -> Loads:
        """Return the share of the mean total load that moved in each step."""
        steps = len(self.trace.loads)
        places = [min(steps - 1, int(move.at_s // self.trace.step_s)) for move in self.moves]
        moved = np.bincount(
            np.array(places, np.int64), np.array([move.load for move in self.moves]), steps
        )
        return moved / (float(self.trace.loads.sum(axis=1).mean()) or 1.0)


def evenness(trace: Trace, row: Loads, owners: Owners, *, at_s: float) -> tuple[float, float]:
    """Return the unevenness and the excess of one row of loads, over the brokers that are live at
    `at_s` seconds.
    """
    live, owned = trace.live(at_s), owners >= 0
    loads = np.bincount(owners[owned], row[owned], len(live))[live]
    capacity = trace.capacity[live]
    mean = float(loads.sum() / capacity.sum())
    if not mean:
        return 0.0, 0.0
    deviations = loads / capacity / mean - 1
    return float(np.sqrt((deviations**2).mean())), float(deviations.max())


class Reached(Protocol):
    """What a plan or settings reached: unevenness and load moved, as in `Metrics`."""

    @property
    def unevenness(self) -> float:
        """As in `Metrics`."""

    @property
    def load_moved(self) -> float:
        """As in `Metrics`."""


Point = TypeVar("Point", bound=Reached)


def pareto_front(points: Iterable[Point]) -> tuple[Point, ...]:
    """Return the points that no other point beats in both figures, the evenest first. Of equal
    points, return the first.
    """
    best: list[Point] = []
    for point in sorted(points, key=lambda each: (each.unevenness, each.load_moved)):
        if not best or point.load_moved < best[-1].load_moved:
            best.append(point)
    return tuple(best)


def _undone(moves: Sequence[RunMove]) -> int:
    last: dict[int, RunMove] = {}
    undone = 0
    for move in moves:
        before = last.get(move.bundle)
        undone += (
            before is not None
            and before.source == move.destination
            and move.at_s - before.at_s <= UNDONE_S
        )
        last[move.bundle] = move
    return undone


def starting_owners(trace: Trace, seed: int) -> Owners:
    """Return a live broker for each bundle, drawn by `seed`."""
    live = np.flatnonzero(trace.live(0.0))
    owners: Owners = np.random.default_rng(seed).choice(live, len(trace.bundles))
    return owners
