"""Measure a run: how even the load was, what moved, and how little could have moved."""

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

    * `unevenness`: the standard deviation of the brokers' use over their mean use, averaged over
      time.
    * `load_moved`: the share of all load that moves per hour.
    * `moves`, `undone`: finished moves, and those of them that went back within `UNDONE_S`.
    * `worst_mean`, `worst_max`: the largest use over the mean use: averaged over time, and at the
      worst moment.
    * `balanced_s`: from the last change of members until the load is `BALANCED`, in seconds; None
      if it never is.
    """

    unevenness: float
    load_moved: float
    moves: int
    worst_mean: float
    worst_max: float
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
    """The outcome of a run. `unevenness` and `worst` have a row per step of the trace; they are as
    in `Metrics`.
    """

    trace: Trace
    unevenness: Loads
    worst: Loads
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
            worst_mean=float(self.worst.mean()),
            worst_max=float(self.worst.max()),
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
    """Return the unevenness and the largest use over the mean use of one row of loads, over the
    brokers that are live at `at_s` seconds.
    """
    live = [place for place, broker in enumerate(trace.brokers) if broker.is_live(at_s)]
    capacity = trace.capacity
    owned = owners >= 0
    use = (np.bincount(owners[owned], row[owned], len(capacity)) / capacity)[live]
    mean = float(use.mean()) or 1.0
    return float(use.std()) / mean, float(use.max()) / mean


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
