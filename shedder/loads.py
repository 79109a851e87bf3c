"""Define the load of a bundle, as its service reports it, and the load of a broker, as Pulsar's
strategies weigh it (`BrokerLoadData`): resources, traffic, and two decaying averages.

A value may hold any reported figure, so that a strategy can report what is wrong with it (see
`fault_of`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_float
from dataclasses import dataclass, field, fields, replace
from heapq import nlargest
from typing import Final
from zlib import crc32

from equipoise.channel.core.errors import CallerError


@dataclass(frozen=True, slots=True, kw_only=True)
class Messaging:
    """The load of the topics of a bundle: rates per second over the last sample, and counts of open
    objects.

    Raises `CallerError` for a number that is negative or not finite.
    """

    messages_in_per_second: float = 0.0
    bytes_in_per_second: float = 0.0
    messages_out_per_second: float = 0.0
    bytes_out_per_second: float = 0.0
    producers: int = 0
    consumers: int = 0
    topics: int = 0

    def __post_init__(self) -> None:
        # Written out for speed: a broker makes thousands of these per sample. NaN fails each
        # comparison.
        if not (
            0 <= self.messages_in_per_second <= FIGURE_MAX
            and 0 <= self.bytes_in_per_second <= FIGURE_MAX
            and 0 <= self.messages_out_per_second <= FIGURE_MAX
            and 0 <= self.bytes_out_per_second <= FIGURE_MAX
            and 0 <= self.producers <= FIGURE_MAX
            and 0 <= self.consumers <= FIGURE_MAX
            and 0 <= self.topics <= FIGURE_MAX
        ):
            raise _refusal_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLoad:
    """The cost of a bundle for its broker: rates per second over the last sample, and the number of
    open sessions.

    * `bytes_per_second` counts both directions. A batch of messages is one call.
    * `cpu_seconds_per_second`: the CPU time that its calls used. `wall_seconds_per_second`: how
      long they lasted, all together, so the mean number of calls in progress.
    * `memory_bytes`: what it keeps in memory; 0: not known. No move brings a broker above
      `placement.memory_percent_max` of its memory.
    * `cost`: what it costs as its service knows it, in `unit`, such as `tokens/s` or `seats`. It
      replaces what the other figures cost. All bundles of a namespace have one unit. No move brings
      a broker above its `capacities` of the unit.
    * `messaging` holds the details of a bundle of topics.

    Raises `CallerError` for a number that is negative, not finite or above 10^18, for a cost
    without a unit, and for a unit that is not 1 to 32 printable characters.
    """

    calls_per_second: float = 0.0
    bytes_per_second: float = 0.0
    cpu_seconds_per_second: float = 0.0
    wall_seconds_per_second: float = 0.0
    sessions: int = 0
    memory_bytes: int = 0
    cost: float = 0.0
    unit: str = ""
    messaging: Messaging | None = None

    def __post_init__(self) -> None:
        # As in `Messaging`.
        if not (
            0 <= self.calls_per_second <= FIGURE_MAX
            and 0 <= self.bytes_per_second <= FIGURE_MAX
            and 0 <= self.cpu_seconds_per_second <= FIGURE_MAX
            and 0 <= self.wall_seconds_per_second <= FIGURE_MAX
            and 0 <= self.sessions <= FIGURE_MAX
            and 0 <= self.memory_bytes <= FIGURE_MAX
            and 0 <= self.cost <= FIGURE_MAX
        ):
            raise _refusal_of(self)
        if self.unit:
            check_unit(self.unit)
        elif self.cost:
            raise CallerError(
                f"the cost {self.cost!r} of a bundle has no unit: give BundleLoad unit=, such as"
                " unit='tokens/s'"
            )


def check_unit(unit: str) -> str:
    """Return the unit of a declared cost. Raise `CallerError` for what is none."""
    is_text: bool = isinstance(unit, str)
    if not (is_text and 0 < len(unit) <= UNIT_CHARACTERS_MAX and unit.isprintable()):
        raise CallerError(
            f"{unit!r:.60} is no unit of costs: use 1 to {UNIT_CHARACTERS_MAX} printable"
            " characters, such as tokens/s"
        )
    return unit


def _refusal_of(load: BundleLoad | Messaging) -> CallerError:
    figures = (
        (each.name, getattr(load, each.name))
        for each in fields(load)
        if each.name not in ("messaging", "unit")
    )
    name, value = next((name, value) for name, value in figures if not 0 <= value <= FIGURE_MAX)
    return impossible_figure("bundle", name, value)


def impossible_figure(subject: str, field: str, value: float) -> CallerError:
    """Return the error for a load of a `bundle` or `topic` that cannot be."""
    return CallerError(
        f"a {subject} cannot have {field}={value!r:.60}: the figure must be from 0 to 10^18"
    )


# How often a Pulsar broker measures its load. An average loses `1 - history` of its old value in
# this time.
STEP_MS: Final = 5_000

# Larger figures are not believed. This is a million times what the fastest network card carries in
# bytes, and squares of it can still be summed.
FIGURE_MAX: Final = 1e18

# A larger use, as a fraction, is not believed: 100,000 %. A card that carries 100 Gbit/s and is
# configured as 0.1 Gbit/s reaches 1,000. A larger use would hide all other brokers in the mean and
# the deviation.
USE_MAX: Final = 1_000.0

UNIT_CHARACTERS_MAX: Final = 32

DECLARED_MAX: Final = 8
"""The most namespaces with a cost of their own, and units with a capacity, of a broker: a report
has 6 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """The use and the limit of one resource, in one unit: CPU in percent of a core, memory in MiB,
    network in Kbit/s.
    """

    used: float = 0.0
    limit: float = 0.0

    @property
    def percent(self) -> float:
        """The use in percent, in single precision as in Pulsar; 0 without a limit."""
        limit = _single(self.limit)
        return _single(_single(_single(self.used) / limit) * 100) if limit > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """One sample of a broker's five resources."""

    cpu: Use = field(default_factory=Use)
    memory: Use = field(default_factory=Use)
    direct_memory: Use = field(default_factory=Use)
    bandwidth_in: Use = field(default_factory=Use)
    bandwidth_out: Use = field(default_factory=Use)

    @property
    def max_use(self) -> float:
        """The use of the busiest resource as a fraction, without memory. It decides whether a
        report is due.
        """
        return (
            max(
                self.cpu.percent,
                self.direct_memory.percent,
                self.bandwidth_in.percent,
                self.bandwidth_out.percent,
            )
            / 100
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """The weight of each resource: Pulsar's `loadBalancer...ResourceWeight`."""

    cpu: float = 1.0
    memory: float = 0.0
    direct_memory: float = 0.0
    bandwidth_in: float = 1.0
    bandwidth_out: float = 1.0

    def weighted_max(self, resources: Resources) -> float:
        """Return the largest weighted use as a fraction. It may exceed 1."""
        return max(
            resources.cpu.percent * self.cpu / 100,
            resources.memory.percent * self.memory / 100,
            resources.direct_memory.percent * self.direct_memory / 100,
            resources.bandwidth_in.percent * self.bandwidth_in / 100,
            resources.bandwidth_out.percent * self.bandwidth_out / 100,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The traffic of a broker or a bundle: bytes and messages per second."""

    bytes_in_per_second: float = 0.0
    bytes_out_per_second: float = 0.0
    messages_in_per_second: float = 0.0
    messages_out_per_second: float = 0.0

    @property
    def bytes_per_second(self) -> float:
        """The throughput both ways."""
        return self.bytes_in_per_second + self.bytes_out_per_second

    @property
    def messages_per_second(self) -> float:
        """The message rate both ways."""
        return self.messages_in_per_second + self.messages_out_per_second


RATES: Final = tuple(each.name for each in fields(Traffic))
"""The names of all figures of a `Traffic`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleTraffic:
    """The traffic and the open objects of one bundle.

    `cache_bytes` is what it keeps in memory; 0: not known. `cost` is its cost for its broker (see
    `shedder.costs`).
    """

    bundle: str
    traffic: Traffic = field(default_factory=Traffic)
    topics: int = 0
    consumers: int = 0
    producers: int = 0
    cache_bytes: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What the services of a broker declare of its bundles of one namespace: their cost in `unit`,
    all together, averaged over the minutes in which there was any.

    * `estimate`: what they would cost without that, a share of a core.
    * `rate`: the share of a core that one unit counts as, here.
    """

    unit: str
    amount: float = 0.0
    estimate: float = 0.0
    rate: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of one broker: as it has measured it, or with averages over all its reports, made by
    `averaged`.

    * `at_ms`: Unix time of the measurement by its own clock. `resources`: of the broker.
    * `average_use`: the weighted maximum of `resources`, as a fraction, by the configured weights.
      `average_bytes_per_second`: the throughput both ways.
    * `traffic`, `bundle_count`, `topics`, `cost`: of all open bundles.
    * `bundles`: its busiest, as reported, lightest first. The others are only counted.
      `column`: the costs of all but newcomers, see `shedder.loads`.
    * `noise`: the standard error of `cost`, see `brokers.load.sampling`; None: not known yet.
    * `other_work`: the share of the broker that neither its bundles nor the process itself take;
      None: not known. `cpu_sums`: what its CPU use shows, see `shedder.fit`. `cpu_problem`: why
      that has shown nothing lately.
    * `declared`: by namespace. `capacities`: how much of a unit it can take, by unit.
    * `problem`: why the load of its bundles is not known; None: it is.
    * `history`: the configured share of an average that remains after `STEP_MS`.
    """

    broker: str
    at_ms: int
    resources: Resources = field(default_factory=Resources)
    average_use: float = 0.0
    average_bytes_per_second: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)
    bundle_count: int = 0
    topics: int = 0
    cost: float = 0.0
    bundles: tuple[BundleTraffic, ...] = ()
    column: bytes = b""
    noise: float | None = 0.0
    other_work: float | None = None
    cpu_sums: tuple[float, ...] = ()
    cpu_problem: str | None = None
    declared: Mapping[str, Declared] = field(default_factory=dict)
    capacities: Mapping[str, float] = field(default_factory=dict)
    problem: str | None = None
    history: float = 0.9

    @property
    def costs(self) -> Mapping[str, float]:
        """The cost of each bundle that it names."""
        return {bundle.bundle: bundle.cost for bundle in self.bundles}


def kept_share(history: float, *, elapsed_ms: int) -> float:
    """Return the share of an average that remains after a sample `elapsed_ms` later.

    `history` is Pulsar's `loadBalancerHistoryResourcePercentage`, the share that remains after
    `STEP_MS`. Pulsar applies it at each call, so reading its metrics makes the averages run faster.
    """
    share: float = history ** (max(elapsed_ms, 0) / STEP_MS)
    return share


def blend(before: float, now: float, *, kept: float) -> float:
    """Return the average of `before`, with weight `kept`, and `now`."""
    return before * kept + (1 - kept) * now


def averaged(before: Load | None, load: Load) -> Load:
    """Return the load with averages over one more report.

    The traffic of bundles is averaged, their counts and costs are not: a cost is the broker's own
    average, so that the costs of its bundles add up to its total.

    If a report is older than the last one, because a clock was set back, it leaves the averages
    unchanged. Its other figures count.
    """
    throughput = load.traffic.bytes_per_second
    if before is None:
        return replace(load, average_bytes_per_second=throughput)
    kept = kept_share(load.history, elapsed_ms=load.at_ms - before.at_ms)
    known = {bundle.bundle: bundle for bundle in before.bundles}
    return replace(
        load,
        average_use=_average(before.average_use, load.average_use, kept, most=USE_MAX),
        average_bytes_per_second=_average(before.average_bytes_per_second, throughput, kept),
        bundles=tuple(
            blended(known.get(bundle.bundle), bundle, kept=kept) for bundle in load.bundles
        ),
    )


def blended(before: BundleTraffic | None, bundle: BundleTraffic, *, kept: float) -> BundleTraffic:
    """Return `bundle` with its traffic averaged with that of `before`, which has the weight
    `kept`.
    """
    if before is None:
        return bundle
    old, new = before.traffic, bundle.traffic
    # Written out for speed: a carrier does this for 20 bundles of each report.
    traffic = Traffic(
        bytes_in_per_second=_average(old.bytes_in_per_second, new.bytes_in_per_second, kept),
        bytes_out_per_second=_average(old.bytes_out_per_second, new.bytes_out_per_second, kept),
        messages_in_per_second=_average(
            old.messages_in_per_second, new.messages_in_per_second, kept
        ),
        messages_out_per_second=_average(
            old.messages_out_per_second, new.messages_out_per_second, kept
        ),
    )
    return BundleTraffic(
        bundle=bundle.bundle,
        traffic=traffic,
        topics=bundle.topics,
        consumers=bundle.consumers,
        producers=bundle.producers,
        cache_bytes=bundle.cache_bytes,
        cost=bundle.cost,
    )


def oldest_first(loads: Iterable[Load]) -> list[Load]:
    """Return loads in the order of their times, so that the newest report of a bundle counts."""
    return sorted(loads, key=lambda load: (load.at_ms, load.broker))


def fault_of(load: Load) -> str | None:
    """Return a message about the first impossible figure; None if there is none.

    A figure is impossible if it is NaN, negative, or above `FIGURE_MAX`. A use must not be above
    `USE_MAX`.
    """
    if not 0 <= load.average_use <= USE_MAX:
        return f"its average use is {load.average_use!r}"
    if not 0 <= load.average_bytes_per_second <= FIGURE_MAX:
        return f"its average throughput is {load.average_bytes_per_second!r}"
    for resource in fields(load.resources):
        use = getattr(load.resources, resource.name)
        is_figure = 0 <= use.used <= FIGURE_MAX and 0 <= use.limit <= FIGURE_MAX
        if not is_figure or 0 < use.limit * USE_MAX < use.used:
            return f"its {resource.name} is {use.used!r} of {use.limit!r}"
    fault = fault_among(load.traffic, RATES)
    if fault is not None:
        return f"its {fault}"
    for bundle in load.bundles:
        fault = fault_among(bundle.traffic, RATES)
        if fault is not None:
            return f"{bundle.bundle} has {fault}"
    if load.noise is not None and not 0 <= load.noise <= FIGURE_MAX:
        return f"the noise of its cost is {load.noise!r}"
    if load.other_work is not None and not 0 <= load.other_work <= USE_MAX:
        return f"its other work is {load.other_work!r}"
    costs = (("it", load.cost), *load.costs.items())
    fault = next(
        (f"{name} costs {cost!r}" for name, cost in costs if not 0 <= cost <= FIGURE_MAX), None
    )
    return fault or _fault_of_units(load)


def _fault_of_units(load: Load) -> str | None:
    for namespace, declared in load.declared.items():
        fault = fault_among(declared, ("amount", "estimate", "rate"))
        if fault is not None:
            return f"its declared cost of {namespace} has {fault}"
    capacities = load.capacities.items()
    return next(
        (
            f"its capacity is {most!r} {unit}"
            for unit, most in capacities
            if not 0 < most <= FIGURE_MAX
        ),
        None,
    )


def fault_among(figures: object, names: Sequence[str]) -> str | None:
    """Return the first impossible figure of those named, as name=value; None if there is none. See
    `fault_of`.
    """
    for name in names:
        value = getattr(figures, name)
        if not 0 <= value <= FIGURE_MAX:
            return f"{name}={value!r}"
    return None


def _average(before: float, now: float, kept: float, *, most: float = FIGURE_MAX) -> float:
    """Average one figure. An impossible old figure is forgotten; an impossible new one stays as
    reported.
    """
    return blend(before, now, kept=kept) if 0 <= before <= most and 0 <= now <= most else now


def _single(value: float) -> float:
    """Return the nearest single-precision number; infinity if it is too large."""
    return c_float(value).value


# --- the column of costs ---
#
# Four bytes for each bundle of a broker, so that a report can carry all costs beside the bundles
# that it names. An entry is a 24-bit tag of the bundle's name and a byte for its share of the
# broker's total cost. A share is a power of 2^(-1/16): at most 2.2 % wrong, down to a 62,000th of
# the total. Tags do not depend on other bundles, so a reader whose bundles differ from the
# reporter's still finds the others. Of 100,000 bundles, 1 in 170 shares its tag with another: both
# then count with the cost that was read last.

COSTS_MAX: Final = 512
"""How many bundles a column holds: the most costly. The others share the rest of the cost
equally."""

ENTRY_BYTES: Final = 4

_STEPS_PER_OCTAVE: Final = 16
_STEP_MAX: Final = 255
_SHARES: Final = tuple(2 ** (-step / _STEPS_PER_OCTAVE) for step in range(_STEP_MAX + 1))
_ENTRY: Final = struct.Struct(">I")


def tag_of(name: str) -> int:
    """Return the tag of a bundle's name."""
    return crc32(name.encode()) >> 8


def pack(costs: Mapping[str, float], *, total: float) -> bytes:
    """Return the column of these bundles, in their order; empty if `total`, the broker's cost, is 0
    or not finite.
    """
    if not 0 < total <= FIGURE_MAX:
        return b""
    names: Iterable[str] = costs
    if len(costs) > COSTS_MAX:
        most = set(nlargest(COSTS_MAX, costs, key=costs.__getitem__))
        names = (name for name in costs if name in most)
    entries = [tag_of(name) << 8 | _step(total, costs[name]) for name in names]
    return struct.pack(f">{len(entries)}I", *entries)


def unpack(column: bytes, total: float) -> dict[int, float]:
    """Return the cost of each bundle by its tag. `total` is the broker's cost. An incomplete entry
    at the end is ignored.
    """
    whole = len(column) // ENTRY_BYTES * ENTRY_BYTES
    return {
        entry >> 8: total * _SHARES[entry & _STEP_MAX]
        for (entry,) in _ENTRY.iter_unpack(column[:whole])
    }


def _step(total: float, cost: float) -> int:
    """Return the step of a share; the last one for a cost of 0 or an impossible cost."""
    if not 0 < cost <= total:
        return _STEP_MAX
    # Two logarithms, because the quotient of extreme figures overflows.
    return min(_STEP_MAX, round(_STEPS_PER_OCTAVE * (math.log2(total) - math.log2(cost))))
