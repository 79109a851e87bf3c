"""Define load traces, generate the kinds that policies are compared on, and record what a running
cluster reports.

Loads are in cost units, the same for bundles and the capacities of brokers. The noise of a load is
part of its trace.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from equipoise.channel.core.errors import CallerError
from equipoise.shedder.costs import IDLE_COST
from equipoise.shedder.snapshot import Snapshot

Loads = NDArray[np.float64]

Traces = Callable[[int], "Trace"]
"""Returns the trace of a seed. A trace from a file is the same for each seed; only the owners at
its start differ."""

STEP_S_MIN: Final = 0.25
"""The shortest step of a trace: how often a leader looks for a due round."""

LOADS_MAX: Final = 50_000_000
"""Steps times bundles: 400 MB."""

_USE: Final = 0.5  # The mean use of the brokers of a generated trace.
_SIGMA: Final = 1.2  # The standard deviation of the logarithm of the weights of bundles.
_DRIFT: Final = 0.7  # The standard deviation of the logarithm of a drifting load after an hour.
_CROWDED: Final = 0.05  # The share of bundles that a flash crowd reaches.
_NOISE: Final = 0.75  # The standard deviation of the logarithm of a noisy load in each step.
_BURST: Final = 5.0  # A bundle that bursts has so many times its load,
_BURST_S: Final = 300.0  # for so long,
_BURSTS_PER_S: Final = 0.000_2  # and begins so often.
_DAY_S: Final = 1_440.0  # A day at a second a minute.
_KEYS: Final = 0.302  # The number of keys with day and night, relative to the bundles of others.


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBroker:
    """A broker of a trace: its `capacity` in cost units, and when it joins and leaves, in seconds
    since the start. None: never.
    """

    broker: str
    capacity: float
    joins_s: float = 0.0
    leaves_s: float | None = None

    def is_live(self, at_s: float) -> bool:
        """Return whether the broker is a member at `at_s` seconds."""
        return self.joins_s <= at_s and (self.leaves_s is None or at_s < self.leaves_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """The load of each bundle over time: `loads` has a row per step of `step_s` seconds and a
    column per bundle, in cost units.

    Raises `CallerError` for impossible loads, capacities and steps, for a wrong number of columns,
    and without a broker at the start.
    """

    name: str
    step_s: float
    bundles: tuple[str, ...]
    brokers: tuple[TraceBroker, ...]
    loads: Loads

    def __post_init__(self) -> None:
        if not self.loads.size or self.loads.shape != (len(self.loads), len(self.bundles)):
            raise CallerError(
                f"trace {self.name}: its loads have the shape {self.loads.shape}, not steps x"
                f" {len(self.bundles)} bundles"
            )
        if not (np.isfinite(self.loads).all() and (self.loads >= 0).all()):
            step, place = np.argwhere(~(np.isfinite(self.loads) & (self.loads >= 0)))[0]
            raise CallerError(
                f"trace {self.name}: step {step} has the load {self.loads[step, place]} of"
                f" {self.bundles[place]}"
            )
        if not STEP_S_MIN <= self.step_s < math.inf:
            raise CallerError(
                f"trace {self.name}: its step is {self.step_s} s; it must be at least"
                f" {STEP_S_MIN} s"
            )
        for broker in self.brokers:
            if not 0 < broker.capacity < math.inf:
                raise CallerError(
                    f"trace {self.name}: {broker.broker} has the capacity {broker.capacity}; it"
                    " must be positive"
                )
        for kind, names in (
            ("broker", [broker.broker for broker in self.brokers]),
            ("bundle", self.bundles),
        ):
            twice = next((name for name, number in Counter(names).items() if number > 1), None)
            if twice is not None:
                raise CallerError(f"trace {self.name}: it has the {kind} {twice} twice")
        if not self.live(0.0).any():
            raise CallerError(
                f"trace {self.name}: no broker is live at its start; let one join at 0 s"
            )

    @property
    def duration_s(self) -> float:
        """The length of the trace, in seconds."""
        return len(self.loads) * self.step_s

    @property
    def capacity(self) -> Loads:
        """The capacities of the brokers, in their order, in cost units."""
        return np.array([broker.capacity for broker in self.brokers])

    def live(self, at_s: float) -> NDArray[np.bool_]:
        """Return which brokers are members at `at_s` seconds. A change counts from the begin of the
        quarter of a second in which it happens.
        """
        end_s = at_s + STEP_S_MIN - 0.001
        return np.array([broker.is_live(end_s) for broker in self.brokers])

    @property
    def changes_s(self) -> tuple[float, ...]:
        """When brokers join or leave, in seconds from 0 to `duration_s`, in order."""
        times = {each.joins_s for each in self.brokers} | {
            each.leaves_s for each in self.brokers if each.leaves_s is not None
        }
        return tuple(sorted({max(0.0, at_s) for at_s in times if at_s < self.duration_s}))

    @property
    def last_change_s(self) -> float:
        """When the last broker joins or leaves."""
        return self.changes_s[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of a generated trace: numbers of brokers and bundles, the mean load of a bundle in
    cost units, and seconds.

    By default, 20 brokers can do 1,000 calls a second each.
    """

    brokers: int = 20
    bundles: int = 1_000
    load: float = 10.0
    duration_s: float = 7_200.0
    step_s: float = 10.0

    @property
    def times_s(self) -> Loads:
        """The times of the steps, in seconds, as one column."""
        steps = max(1, round(self.duration_s / self.step_s))
        return np.array([step * self.step_s for step in range(steps)])[:, None]


def _calm(shape: Shape, rng: Generator, weights: Loads | None = None) -> Loads:
    """Return loads that differ between bundles and hardly over time. Their mean is 1."""
    if weights is None:
        weights = rng.lognormal(0.0, _SIGMA, shape.bundles)
    steps = len(shape.times_s)
    noise = 1 + 0.05 * rng.standard_normal((steps, shape.bundles))
    loads: Loads = np.maximum(weights / weights.mean() * noise, 0.0)
    return loads


def _drifting(shape: Shape, rng: Generator) -> Loads:
    calm = _calm(shape, rng)
    return calm * np.exp(
        np.cumsum(
            rng.standard_normal(calm.shape) * _DRIFT * math.sqrt(shape.step_s / 3_600), axis=0
        )
    )


def _diurnal(shape: Shape, rng: Generator) -> Loads:
    phases = rng.random(shape.bundles)
    return _calm(shape, rng) * (1 + 0.5 * np.sin(2 * np.pi * (shape.times_s / 7_200 + phases)))


def _flash_crowd(shape: Shape, rng: Generator) -> Loads:
    crowded = rng.random(shape.bundles) < _CROWDED
    is_on = (shape.times_s >= shape.duration_s / 4) & (shape.times_s < shape.duration_s / 2)
    return _calm(shape, rng) * np.where(is_on & crowded, 4.0, 1.0)


def _hot_key(shape: Shape, rng: Generator) -> Loads:
    loads, hot = _calm(shape, rng), rng.integers(shape.bundles)
    loads[shape.times_s[:, 0] >= shape.duration_s / 6, hot] += 0.5 * shape.bundles / shape.brokers
    return loads


def _noisy(shape: Shape, rng: Generator) -> Loads:
    calm = _calm(shape, rng)
    return calm * np.exp(_NOISE * rng.standard_normal(calm.shape) - _NOISE**2 / 2)


def _bursts(shape: Shape, rng: Generator) -> Loads:
    calm = _calm(shape, rng)
    starts = rng.random(calm.shape) < _BURSTS_PER_S * shape.step_s
    is_on, length = starts.copy(), max(1, round(_BURST_S / shape.step_s))
    for later in range(1, length):
        is_on[later:] |= starts[:-later]
    return calm * np.where(is_on, _BURST, 1.0)


def _heavy_tailed(shape: Shape, rng: Generator) -> Loads:
    weights = rng.pareto(1.2, shape.bundles) + 0.1
    return _calm(shape, rng, np.minimum(weights, 0.8 * weights.sum() / shape.brokers))


def _day_and_night(shape: Shape, rng: Generator) -> Loads:
    """Return the loads of a few keys with nearly no load at night, and hours of their own."""
    keys = replace(shape, bundles=max(1, round(_KEYS * shape.bundles)))
    hours = shape.times_s / _DAY_S + rng.normal(0.5, 0.08, keys.bundles)
    day: Loads = np.pi * np.maximum(np.cos(2 * np.pi * hours), 0.02)
    return _calm(keys, rng) * day


_LOADS: Final[Mapping[str, Callable[[Shape, Generator], Loads]]] = {
    "steady": _calm,
    "drifting": _drifting,
    "diurnal": _diurnal,
    "flash-crowd": _flash_crowd,
    "hot-key": _hot_key,
    "broker-added": _calm,
    "broker-lost": _calm,
    "mixed-hardware": _calm,
    "noisy": _noisy,
    "bursts": _bursts,
    "heavy-tailed": _heavy_tailed,
    "day-and-night": _day_and_night,
}

KINDS: Final = tuple(_LOADS)
"""The kinds of generated traces."""

SCALE: Final = 20
"""The second scale: `KIND@SCALE` is a kind with all loads and capacities times `SCALE`."""

COMPARED: Final = (*KINDS, *(f"{kind}@{SCALE}" for kind in KINDS))
"""What policies are compared on: each kind at both scales."""


def generated(kind: str, shape: Shape | None = None, *, seed: int = 1) -> Trace:
    """Return a generated trace of one of `KINDS`; equal arguments give equal traces.

    Raises `CallerError` for another kind, and for a shape without two brokers and a bundle.
    """
    if kind not in _LOADS:
        raise CallerError(f"there is no kind of trace {kind!r}; the kinds are {', '.join(KINDS)}")
    shape = shape or Shape()
    if shape.brokers < 2 or shape.bundles < 1:  # noqa: PLR2004 - one broker has nothing to balance
        raise CallerError(
            f"a trace needs at least two brokers and a bundle, not {shape.brokers} and"
            f" {shape.bundles}"
        )
    if len(shape.times_s) * shape.bundles > LOADS_MAX:
        raise CallerError(
            f"{len(shape.times_s)} steps of {shape.bundles} bundles are more than {LOADS_MAX:,}"
            " loads; make it shorter"
        )
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    # Of few keys, each has more load.
    total = shape.bundles * shape.load
    loads = _LOADS[kind](shape, rng)
    loads *= total / loads.shape[1]
    sizes = (
        rng.choice([1.0, 2.0, 4.0], shape.brokers)
        if kind == "mixed-hardware"
        else np.ones(shape.brokers)
    )
    brokers = _half_used(sizes, total)
    change_s = shape.duration_s / 4
    if kind == "broker-added":
        brokers = (*brokers[:-1], replace(brokers[-1], joins_s=change_s))
    elif kind == "broker-lost":
        brokers = (*brokers[:-1], replace(brokers[-1], leaves_s=change_s))
    return Trace(
        name=kind,
        step_s=shape.step_s,
        bundles=tuple(map(_bundle_name, range(loads.shape[1]))),
        brokers=brokers,
        loads=loads,
    )


def equal_brokers(loads: Loads, number: int) -> tuple[TraceBroker, ...]:
    """Return `number` brokers of equal capacity. The mean of these loads uses half of it."""
    return _half_used(np.ones(number), float(loads.sum(axis=1).mean()))


def _half_used(sizes: Loads, load: float) -> tuple[TraceBroker, ...]:
    """Return brokers with capacities in the proportion of `sizes`. `load` uses half of the
    capacity.
    """
    unit = (load or 1.0) / float(sizes.sum()) / _USE
    return tuple(
        TraceBroker(broker=f"broker-{number:04d}:8080", capacity=unit * size)
        for number, size in enumerate(sizes.tolist())
    )


def _bundle_name(number: int) -> str:
    return f"bundle-{number:06d}"


_UNREPORTED: Final = 0.5  # The assumed mean use of brokers that report none.
_UNITS_PER_CORE: Final = 1_000  # Of a recorded load, which is so precise when it is written.


@dataclass(slots=True)
class Recording:
    """The steps recorded so far, `step_s` seconds each. Add each step with `note`, then make the
    `trace`.

    Loads are thousandths of a core. They are long averages of the brokers' reports, so short noise
    is missing from the trace. See `shedder.snapshot` for the cost of a bundle that no report names.
    """

    step_s: float
    _loads: list[dict[str, float]] = field(default_factory=list)
    _members: dict[str, list[int]] = field(default_factory=dict)
    _capacities: dict[str, int] = field(default_factory=dict)
    _used: float = 0.0
    _cost: float = 0.0

    @property
    def steps(self) -> int:
        """The number of steps recorded so far."""
        return len(self._loads)

    def note(self, snapshot: Snapshot, used: Mapping[str, float]) -> None:
        """Add a step. `used` is the reported use of brokers (1.0 = 100 %).

        Brokers whose report does not count weigh their bundles by the reports of others.
        """
        step, loads = len(self._loads), dict[str, float]()
        for broker in snapshot.brokers:
            self._members.setdefault(broker.broker, []).append(step)
            self._capacities[broker.broker] = broker.capacity
            costs = {
                bundle.name: max(0.0, bundle.cost - IDLE_COST) * _UNITS_PER_CORE
                for bundle in broker.bundles
            }
            loads.update(costs)
            if broker.barred is None and broker.broker in used:
                self._cost += sum(costs.values())
                self._used += used[broker.broker] * broker.capacity
        self._loads.append(loads)

    def trace(self, name: str) -> Trace:
        """Return the trace. A bundle that does not exist in a step has no load there.

        The capacity of brokers is chosen so that they are used in the trace as much as they
        reported. Raises `CallerError` if there is nothing to record.
        """
        bundles = sorted({bundle for loads in self._loads for bundle in loads})
        if not bundles or not self._members:
            raise CallerError(
                "there is nothing to record: no broker owns a bundle; start brokers, and create a"
                " namespace"
            )
        loads = np.array([[each.get(bundle, 0.0) for bundle in bundles] for each in self._loads])
        declared = sum(self._capacities.values())
        mean = float(loads.sum(axis=1).mean()) or 1.0
        unit = (
            self._cost / self._used if self._used and self._cost else mean / declared / _UNREPORTED
        )
        last = len(self._loads) - 1
        brokers = tuple(
            TraceBroker(
                broker=broker,
                capacity=self._capacities[broker] * unit,
                joins_s=steps[0] * self.step_s,
                leaves_s=None if steps[-1] == last else (steps[-1] + 1) * self.step_s,
            )
            for broker, steps in sorted(self._members.items())
        )
        return Trace(
            name=name, step_s=self.step_s, bundles=tuple(bundles), brokers=brokers, loads=loads
        )
