"""What brokers say of their load, as Pulsar's strategies weigh it: resources, traffic, and two decaying averages.

May live here: the values of such a report, and the arithmetic that makes one number of many resources (Pulsar's
`BrokerLoadData`). A value holds whatever a broker reported, so that a strategy can name what is wrong with it: see
`fault_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float
from dataclasses import dataclass, field, fields
from typing import Final

# How often a broker looks at its own load in Pulsar, and in this arithmetic the time in which an average loses
# `1 - history` of what it was.
STEP_MS: Final = 5_000

# Above this no figure is believed: a million times what the fastest network card carries in bytes, and squares of it still
# add up.
FIGURE_MAX: Final = 1e18

# Above this no use is believed, a fraction: 100,000 %. A card that carries 100 Gbit/s and was told to be one of 0.1 comes to
# 1,000; and what lies beyond would hide what all others use, in the mean and in the deviation.
USE_MAX: Final = 1_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How much of one resource is used, and of how much, in one unit: CPU in percent of a core, memory in MiB, network in Kbit/s."""

    used: float = 0.0
    limit: float = 0.0

    @property
    def percent(self) -> float:
        """The use in percent, computed in single precision as Pulsar does; 0 where there is no limit."""
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
        """The use of the busiest resource as a fraction, memory left out: what decides whether a report is due."""
        return max(self.cpu.percent, self.direct_memory.percent, self.bandwidth_in.percent, self.bandwidth_out.percent) / 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What the use of each resource counts for; Pulsar's `loadBalancer...ResourceWeight`."""

    cpu: float = 1.0
    memory: float = 0.0
    direct_memory: float = 0.0
    bandwidth_in: float = 1.0
    bandwidth_out: float = 1.0

    def weighted_max(self, resources: Resources) -> float:
        """The use of the busiest resource as a fraction, each weighed; it may exceed 1."""
        return max(
            resources.cpu.percent * self.cpu / 100,
            resources.memory.percent * self.memory / 100,
            resources.direct_memory.percent * self.direct_memory / 100,
            resources.bandwidth_in.percent * self.bandwidth_in / 100,
            resources.bandwidth_out.percent * self.bandwidth_out / 100,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What goes into a broker or a bundle and out of it, bytes and messages, each per second."""

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
    """What one bundle carries, and what is open in it; `cache_bytes` is what its topics keep in memory."""

    bundle: str
    traffic: Traffic = field(default_factory=Traffic)
    topics: int = 0
    consumers: int = 0
    producers: int = 0
    cache_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Averages:
    """A broker's decaying averages: `weighted_max` a fraction, `bytes_per_second` the throughput both ways."""

    weighted_max: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLoad:
    """What one broker says of itself. `taken_ms` is Unix time by its own clock, of the sample.

    `bundles` are its busiest, in the order in which it reported them, the lightest of them first; the others are only
    counted. None: it says nothing of them.
    """

    taken_ms: int
    resources: Resources = field(default_factory=Resources)
    traffic: Traffic = field(default_factory=Traffic)
    averages: Averages
    bundle_count: int = 0
    topics: int = 0
    bundles: tuple[BundleTraffic, ...] | None = None


def kept_share(history: float, *, elapsed_ms: int, pulsar_exact: bool = False) -> float:
    """What share of an average stays after a sample that was taken `elapsed_ms` after the one before.

    `history` is Pulsar's `loadBalancerHistoryResourcePercentage`, the share that stays after `STEP_MS`. Pulsar itself keeps
    it at each call, whenever that is, so that whoever reads its metrics makes the averages run faster.
    """
    return history if pulsar_exact else history ** (max(elapsed_ms, 0) / STEP_MS)


def averaged(before: Averages | None, resources: Resources, traffic: Traffic, *, weights: Weights, kept: float) -> Averages:
    """The averages after one more sample, when `kept` of those `before` stays; the first sample is its own average."""
    if before is None:
        return Averages(weighted_max=weights.weighted_max(resources), bytes_per_second=traffic.bytes_per_second)
    return Averages(
        weighted_max=blend(before.weighted_max, weights.weighted_max(resources), kept=kept),
        bytes_per_second=blend(before.bytes_per_second, traffic.bytes_per_second, kept=kept),
    )


def blend(before: float, now: float, *, kept: float) -> float:
    """An average of which the share `kept` stays, and the rest is what is new."""
    return before * kept + (1 - kept) * now


def fault_of(load: BrokerLoad) -> str | None:
    """The first figure that no broker can have, told for people; None if there is none.

    Such is what is not a number, negative, or above `FIGURE_MAX`; of averages and resources also a use above `USE_MAX`.
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
    """The first of the named figures that nobody can have, told as name=value; None if there is none. See `fault_of`."""
    for name in names:
        value = getattr(figures, name)
        if not 0 <= value <= FIGURE_MAX:
            return f"{name}={value!r}"
    return None


def _single(value: float) -> float:
    """The nearest number of single precision; what is too large for it is infinite."""
    return c_float(value).value
