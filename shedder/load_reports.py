"""Load reports: the samples that brokers give, the summaries that are made of them, and the port that carries both.

May live here: the values, the arithmetic from one to the other, and `LoadBus`. Taking samples is the worker's business;
carrying them, and keeping summaries, that of the adapters in `brokers.load.bus`, which all call `summarized`.

A sample is light: whatever a broker has open, it names its busiest bundles only, and counts the others. Averages are kept
by who carries the samples, so that they outlive the broker that reads them: on Kafka in the tables of load workers, else
beside the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from equipoise.shedder.loads import (
    FIGURE_MAX,
    USE_MAX,
    Averages,
    BrokerLoad,
    BundleTraffic,
    Resources,
    Traffic,
    blend,
    fault_of,
    kept_share,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledBundle:
    """What one bundle carries, and what it costs its broker: see `shedder.snapshot.costs_of`.

    The cost is the broker's own short average, and stays that: so the costs of a broker's bundles add up to what it says of all.
    """

    traffic: BundleTraffic
    cost: float

    def blended(self, before: SampledBundle | None, *, kept: float) -> SampledBundle:
        """Its average traffic, when the share `kept` of that `before` stays; what is open is counted, not averaged."""
        if before is None:
            return self
        old, new = before.traffic.traffic, self.traffic.traffic
        traffic = Traffic(
            bytes_in_per_second=_average(old.bytes_in_per_second, new.bytes_in_per_second, kept),
            bytes_out_per_second=_average(old.bytes_out_per_second, new.bytes_out_per_second, kept),
            messages_in_per_second=_average(old.messages_in_per_second, new.messages_in_per_second, kept),
            messages_out_per_second=_average(old.messages_out_per_second, new.messages_out_per_second, kept),
        )
        return SampledBundle(traffic=replace(self.traffic, traffic=traffic), cost=self.cost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What one broker says of itself at one moment.

    * `at_ms`: Unix time by its own clock.
    * `resources`, and `used`, which is their weighted maximum as a fraction, by the weights that the broker was told.
    * `traffic`, `bundle_count`, `topics` and `cost`: of all bundles that it has open.
    * `bundles`: its busiest, the lightest of them first.
    * `history`: the share of an average that stays after `shedder.loads.STEP_MS`, as the broker was told.
    """

    broker: str
    at_ms: int
    resources: Resources = field(default_factory=Resources)
    used: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)
    bundle_count: int = 0
    topics: int = 0
    cost: float = 0.0
    bundles: tuple[SampledBundle, ...] = ()
    history: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is known of one broker's load: its last sample, with averages of that and of those before it."""

    broker: str
    load: BrokerLoad
    cost: float
    costs: Mapping[str, float] = field(default_factory=dict)
    """What the bundles that `load` names cost, by name; `cost` is of all."""


def summarized(before: Summary | None, sample: Sample, bundles_before: Mapping[str, SampledBundle] | None = None) -> Summary:
    """The summary after one more sample. `bundles_before` are averages of bundles that are known from elsewhere, by name.

    A sample that is older than the one before it changes nothing of the averages, but counts for all else: a clock was set back.
    """
    elapsed_ms = 0 if before is None else sample.at_ms - before.load.taken_ms
    kept = kept_share(sample.history, elapsed_ms=elapsed_ms)
    known = dict(bundles_before or {})
    if before is not None:
        known = {**{bundle.traffic.bundle: bundle for bundle in sampled_in(before)}, **known}
    bundles = tuple(bundle.blended(known.get(bundle.traffic.bundle), kept=kept) for bundle in sample.bundles)
    throughput = sample.traffic.bytes_per_second
    averages = Averages(weighted_max=sample.used, bytes_per_second=throughput)
    if before is not None:
        averages = Averages(
            weighted_max=_average(before.load.averages.weighted_max, sample.used, kept, most=USE_MAX),
            bytes_per_second=_average(before.load.averages.bytes_per_second, throughput, kept),
        )
    load = BrokerLoad(
        taken_ms=sample.at_ms,
        resources=sample.resources,
        traffic=sample.traffic,
        averages=averages,
        bundle_count=sample.bundle_count,
        topics=sample.topics,
        bundles=tuple(bundle.traffic for bundle in bundles),
    )
    costs = {bundle.traffic.bundle: bundle.cost for bundle in bundles}
    return Summary(broker=sample.broker, load=load, cost=sample.cost, costs=costs)


def fault_of_summary(summary: Summary) -> str | None:
    """The first figure that no broker can have, told for people; None if there is none. See `shedder.loads.fault_of`."""
    fault = fault_of(summary.load)
    if fault is not None:
        return fault
    costs = (("it", summary.cost), *summary.costs.items())
    return next((f"{name} costs {cost!r}" for name, cost in costs if not 0 <= cost <= FIGURE_MAX), None)


def sampled_in(summary: Summary) -> tuple[SampledBundle, ...]:
    """The bundles that a summary names, with their averages."""
    return tuple(SampledBundle(traffic=bundle, cost=summary.costs[bundle.bundle]) for bundle in summary.load.bundles or ())


def _average(before: float, now: float, kept: float, *, most: float = FIGURE_MAX) -> float:
    """One figure. What no broker can have is in no average: of a while ago it is forgotten, and of now it stands as it was said."""
    return blend(before, now, kept=kept) if 0 <= before <= most and 0 <= now <= most else now


class LoadBus(Protocol):
    """Carries samples from brokers to whoever keeps summaries, and summaries to brokers: the latest of each, and lossy.

    What holds for every adapter, and is tested by one suite for all of them:

    * `latest` gives at most one summary of each broker, ordered by its id: one that was written as a whole, and the newest,
      or nearly.
    * A sample may be lost, late, or outlive its broker; nothing about safety rides on it. Who reads looks at its age.
    * Averages are those of `summarized`, over the samples that came through, whichever handle gave them.
    * All calls may block for as long as a small file takes: a host in an event loop makes them in a thread.
    * Several handles on one bus, in one process or in many, are independent. A handle may be used by one thread at a time.
    """

    def publish(self, sample: Sample) -> None:
        """Give a sample. Raises `LoadBusUnavailable`; the next one may succeed."""
        ...

    def withdraw(self, broker: str) -> None:
        """Take back what is known of a broker, which leaves. Raises `LoadBusUnavailable`."""
        ...

    def latest(self) -> Sequence[Summary]:
        """The latest summary of each broker; one that cannot be read is left out. Raises `LoadBusUnavailable`."""
        ...
