"""Define the load of a broker as Pulsar's strategies weigh it (`BrokerLoadData`): resources,
traffic, and two decaying averages.

A value may hold any reported figure, so that a strategy can report what is wrong with it (see
`fault_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float
from dataclasses import dataclass, field, fields
from typing import Final

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

    `cache_bytes` is what its topics keep in memory. `cost` is its cost for its broker (see
    `shedder.snapshot.costs_of`).
    """

    bundle: str
    traffic: Traffic = field(default_factory=Traffic)
    topics: int = 0
    consumers: int = 0
    producers: int = 0
    cache_bytes: int = 0
    cost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Averages:
    """A broker's decaying averages: `weighted_max` is a fraction, `bytes_per_second` the throughput
    both ways.
    """

    weighted_max: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """The load that one broker reports. `taken_ms` is the Unix time of the sample by its own clock.

    `bundles` are its busiest, as reported, lightest first. The others are only counted. None: no
    bundles were reported.
    """

    taken_ms: int
    resources: Resources = field(default_factory=Resources)
    traffic: Traffic = field(default_factory=Traffic)
    averages: Averages
    bundle_count: int = 0
    topics: int = 0
    bundles: tuple[BundleTraffic, ...] | None = None


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


def fault_of(load: BrokerLoad) -> str | None:
    """Return a message about the first impossible figure; None if there is none.

    A figure is impossible if it is NaN, negative, or above `FIGURE_MAX`. A use must not be above
    `USE_MAX`.
    """
    if not 0 <= load.averages.weighted_max <= USE_MAX:
        return f"its average use is {load.averages.weighted_max!r}"
    if not 0 <= load.averages.bytes_per_second <= FIGURE_MAX:
        return f"its average throughput is {load.averages.bytes_per_second!r}"
    for resource in fields(load.resources):
        use = getattr(load.resources, resource.name)
        is_figure = 0 <= use.used <= FIGURE_MAX and 0 <= use.limit <= FIGURE_MAX
        if not is_figure or 0 < use.limit * USE_MAX < use.used:
            return f"its {resource.name} is {use.used!r} of {use.limit!r}"
    fault = fault_among(load.traffic, RATES)
    if fault is not None:
        return f"its {fault}"
    for bundle in load.bundles or ():
        fault = fault_among(bundle.traffic, RATES)
        if fault is not None:
            return f"{bundle.bundle} has {fault}"
    return None


def fault_among(figures: object, names: Sequence[str]) -> str | None:
    """Return the first impossible figure of those named, as name=value; None if there is none. See
    `fault_of`.
    """
    for name in names:
        value = getattr(figures, name)
        if not 0 <= value <= FIGURE_MAX:
            return f"{name}={value!r}"
    return None


def _single(value: float) -> float:
    """Return the nearest single-precision number; infinity if it is too large."""
    return c_float(value).value
