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


# --- the floor ---
#
# An oracle estimates how even the load could be kept by somebody who knows what comes. It moves
# bundles at each full minute, without delay and cost. It knows the true mean load of every bundle
# over the coming minute. In each of these rounds it moves bundles from the fullest to the emptiest
# broker, until all brokers are within a band around the mean. A narrow band gives more evenness for
# more moved load, so the oracle tries several bands, and the floor is a point on the front between
# them.
#
# It is a greedy and no proof: a plan that looks further ahead may do a little better. Its figures
# include the noise within each minute.

_ROUND_S: Final = 60.0
_BANDS: Final = (0.0, 0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.14, 0.2, 0.28, 0.4, 0.6, 1.0, 9.0)
# In one round. A greedy that needs more than a move per bundle gains nothing.
_MOVES_MAX: Final = 1_000
_GAIN_MIN: Final = 0.02  # A bundle that helps less than this share of the best possible help stays.
_LIGHT: Final = 0.3  # A bundle with less of the needed load than this would need many companions.


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """A point that the oracle reached: unevenness, and the share of all load moved per hour, as in
    `lab.results.Metrics`.
    """

    unevenness: float
    load_moved: float


def front(trace: Trace, *, seed: int = 1) -> tuple[Floor, ...]:
    """Return the points of the oracle's bands that no other point beats in both figures, the
    evenest first.

    `seed` draws the owners at the start as `running.run` does.
    """
    return pareto_front(_floor_of(trace, band, seed) for band in _BANDS)


def floor_at(points: Sequence[Floor], load_moved: float) -> float:
    """Return the unevenness that the front `points` reach with at most `load_moved`, interpolated
    between two of them.
    """
    moved = [point.load_moved for point in points]
    return float(np.interp(load_moved, moved[::-1], [point.unevenness for point in points][::-1]))


def starting_owners(trace: Trace, seed: int) -> Owners:
    """Return a live broker for each bundle, drawn by `seed`."""
    live = [place for place, broker in enumerate(trace.brokers) if broker.is_live(0.0)]
    owners: Owners = np.random.default_rng(seed).choice(live, len(trace.bundles))
    return owners


def _floor_of(trace: Trace, band: float, seed: int) -> Floor:
    owners, steps = starting_owners(trace, seed), max(1, round(_ROUND_S / trace.step_s))
    moved, unevenness = 0.0, list[float]()
    for start in range(0, len(trace.loads), steps):
        rows = trace.loads[start : start + steps]
        coming = rows.mean(axis=0)
        moved += _even_out(trace, coming, owners, at_s=start * trace.step_s, band=band)
        unevenness += [
            evenness(trace, row, owners, at_s=(start + place) * trace.step_s)[0]
            for place, row in enumerate(rows)
        ]
    total = float(trace.loads.sum(axis=1).mean()) or 1.0
    return Floor(
        unevenness=float(np.mean(unevenness)), load_moved=moved / total * 3_600 / trace.duration_s
    )


def _even_out(trace: Trace, loads: Loads, owners: Owners, *, at_s: float, band: float) -> float:
    """Move bundles, in `owners`, until all live brokers are within `band` of the mean use. Return
    the load moved between live brokers.
    """
    capacity, moved = trace.capacity, 0.0
    live = np.array([broker.is_live(at_s) for broker in trace.brokers])
    sums = np.bincount(owners, loads, len(capacity))
    # Placed, not moved: the owner is dead.
    for bundle in sorted(np.flatnonzero(~live[owners]), key=lambda place: -loads[place]):
        owners[bundle] = int(np.argmin(np.where(live, (sums + loads[bundle]) / capacity, np.inf)))
        sums[owners[bundle]] += loads[bundle]
    mean = sums[live].sum() / capacity[live].sum()
    for _ in range(_MOVES_MAX):
        use = sums / capacity
        source, destination = (
            int(np.argmax(np.where(live, use, -np.inf))),
            int(np.argmin(np.where(live, use, np.inf))),
        )
        excess = max(
            (use[source] - mean * (1 + band)) * capacity[source],
            (mean * (1 - band) - use[destination]) * capacity[destination],
        )
        if excess <= 0:
            break
        own = np.flatnonzero(owners == source)
        # With `best`, both have the same use. With more than twice as much, they would be less even
        # than before.
        best = (use[source] - use[destination]) / (1 / capacity[source] + 1 / capacity[destination])
        helps = own[(loads[own] > _GAIN_MIN * best) & (loads[own] <= 1.5 * best)]
        if not len(helps):
            break
        need = min(max(excess, _GAIN_MIN * best), best)
        # Others can fill the gap. A heavier one moves too much.
        light = helps[(loads[helps] >= _LIGHT * need) & (loads[helps] <= need)]
        bundle = (
            light[np.argmax(loads[light])]
            if len(light)
            else helps[np.argmin(np.abs(loads[helps] - need))]
        )
        owners[bundle] = destination
        sums[source] -= loads[bundle]
        sums[destination] += loads[bundle]
        moved += float(loads[bundle])
    return moved
