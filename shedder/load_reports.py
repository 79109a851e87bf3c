"""Define load reports: the samples of brokers, and the summaries made from them.

A sample is small: it names a broker's busiest bundles and counts the others. The carrier of the
samples keeps the averages, so they survive a broker that reads them: on Kafka in the tables of load
workers, otherwise beside the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
class Sample:
    """The load that a broker reports at one moment.

    * `at_ms`: Unix time by its own clock.
    * `resources`: its resources. `used`: their weighted maximum as a fraction, by the configured
      weights.
    * `traffic`, `bundle_count`, `topics`, `cost`: of all open bundles.
    * `bundles`: its busiest, lightest first. `column`: the costs of all but newcomers, see
      `shedder.cost_column`.
    * `noise`: the standard error of `cost`, see `shedder.cost_windows`; None: not known yet.
    * `cpu_use`: the CPU use in the time that `cost` is of, a fraction of the limit; None: not known
      yet.
    * `cpu_cost`: the cost of the bundles that it had in this time. Some may have left since.
    * `history`: the configured share of an average that remains after `shedder.loads.STEP_MS`.
    """

    broker: str
    at_ms: int
    resources: Resources = field(default_factory=Resources)
    used: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)
    bundle_count: int = 0
    topics: int = 0
    cost: float = 0.0
    bundles: tuple[BundleTraffic, ...] = ()
    column: bytes = b""
    noise: float | None = 0.0
    cpu_use: float | None = None
    cpu_cost: float = 0.0
    history: float = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The known load of one broker: its last sample, and averages of all samples. `cost` is the
    total of all its bundles.

    `column`, `noise`, `cpu_use` and `cpu_cost` are as in `Sample`.
    """

    broker: str
    load: BrokerLoad
    cost: float
    column: bytes = b""
    noise: float | None = 0.0
    cpu_use: float | None = None
    cpu_cost: float = 0.0

    @property
    def costs(self) -> Mapping[str, float]:
        """The cost of each bundle that `load` names."""
        return {bundle.bundle: bundle.cost for bundle in self.load.bundles or ()}


def summarized(before: Summary | None, sample: Sample) -> Summary:
    """Return the summary after one more sample.

    The traffic of bundles is averaged, their counts and costs are not: a cost is the broker's own
    average, so that the costs of its bundles add up to its total.

    If a sample is older than the last one, because a clock was set back, it leaves the averages
    unchanged. Its other figures count.
    """
    elapsed_ms = 0 if before is None else sample.at_ms - before.load.taken_ms
    kept = kept_share(sample.history, elapsed_ms=elapsed_ms)
    known = (
        {} if before is None else {bundle.bundle: bundle for bundle in before.load.bundles or ()}
    )
    bundles = tuple(
        blended(known.get(bundle.bundle), bundle, kept=kept) for bundle in sample.bundles
    )
    throughput = sample.traffic.bytes_per_second
    averages = Averages(weighted_max=sample.used, bytes_per_second=throughput)
    if before is not None:
        averages = Averages(
            weighted_max=_average(
                before.load.averages.weighted_max, sample.used, kept, most=USE_MAX
            ),
            bytes_per_second=_average(before.load.averages.bytes_per_second, throughput, kept),
        )
    load = BrokerLoad(
        taken_ms=sample.at_ms,
        resources=sample.resources,
        traffic=sample.traffic,
        averages=averages,
        bundle_count=sample.bundle_count,
        topics=sample.topics,
        bundles=bundles,
    )
    return Summary(
        broker=sample.broker,
        load=load,
        cost=sample.cost,
        column=sample.column,
        noise=sample.noise,
        cpu_use=sample.cpu_use,
        cpu_cost=sample.cpu_cost,
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


def fault_of_summary(summary: Summary) -> str | None:
    """Return a message about the first impossible figure; None if there is none. See
    `shedder.loads.fault_of`.
    """
    fault = fault_of(summary.load)
    if fault is not None:
        return fault
    if summary.noise is not None and not 0 <= summary.noise <= FIGURE_MAX:
        return f"the noise of its cost is {summary.noise!r}"
    if summary.cpu_use is not None and not 0 <= summary.cpu_use <= USE_MAX:
        return f"its CPU use is {summary.cpu_use!r}"
    costs = (("it", summary.cost), ("what it had", summary.cpu_cost), *summary.costs.items())
    return next(
        (f"{name} costs {cost!r}" for name, cost in costs if not 0 <= cost <= FIGURE_MAX), None
    )


def _average(before: float, now: float, kept: float, *, most: float = FIGURE_MAX) -> float:
    """Average one figure. An impossible old figure is forgotten; an impossible new one stays as
    reported.
    """
    return blend(before, now, kept=kept) if 0 <= before <= most and 0 <= now <= most else now
