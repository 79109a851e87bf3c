"""Export a broker's balancing metrics: its own load and its decisions.

* The leader decides moves: others export zeros, and a new leader starts at zero. The splitting broker counts splits.
* Pulsar's metrics keep Pulsar's names, for its dashboards: `brk_lb_...` as in its admin API, `pulsar_lb_...` with the label `cluster` as in
  its exposition.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Final, Literal

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from equipoise.brokers.balancing.decisions import Decision
from equipoise.shedder.loads import Resources

Outcome = tuple[str, str]
Values = Mapping[tuple[str, ...], float]

# Pulsar's counters are 0 from the start: a series that appears with its first event has no rate.
_UNLOADS: Final[tuple[Outcome, ...]] = (
    *(("Success", cause) for cause in ("Overloaded", "Underloaded")),
    *(("Skip", cause) for cause in ("HitCount", "NoBundles", "CoolDown", "OutDatedData", "NoLoadData", "NoBrokers", "Unknown")),
    ("Failure", "Unknown"),
)
_SPLITS: Final[tuple[Outcome, ...]] = (
    *(("Success", cause) for cause in ("Topics", "Sessions", "MsgRate", "Bandwidth", "Admin")),
    ("Failure", "Unknown"),
)

_LOADING: Final = "loadBalancing"
_UNLOADING: Final = "bundleUnloading"
_SPLITTING: Final = "bundlesSplit"

# Pulsar's names of resources, where they differ from ours.
_RESOURCES: Final = {"direct_memory": "directMemory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """One of Pulsar's metrics now: its values by labels, besides `metric`, which names the Pulsar source."""

    name: str
    text: str
    metric: str
    values: Values
    labels: tuple[str, ...] = ()
    kind: Literal["counter", "gauge"] = "counter"


class BalancingMetrics(Collector):
    """Filled on the worker's loop only. `cluster` is known once the channel is read."""

    def __init__(self, registry: CollectorRegistry, *, broker: str) -> None:
        self.cluster = ""
        self._broker = broker
        self._rounds: Tally[tuple[str, ...]] = Tally()
        self._unloads: Tally[Outcome] = Tally(dict.fromkeys(_UNLOADS, 0))
        self._splits: Tally[Outcome] = Tally(dict.fromkeys(_SPLITS, 0))
        self._unloaded_brokers = 0
        self._refused: Tally[str] = Tally()
        self._under_way = 0
        self._used_percent: Mapping[str, float] = {}
        self._used: Values = {}
        self._spread: Values = {}
        registry.register(self)

    def decided(self, decision: Decision) -> None:
        """Count a decision. `equipoise_move_duration_seconds` covers the results of its moves."""
        self._rounds[decision.kind, *decision.outcome] += 1
        if decision.kind == "shed":
            self._unloads.update(decision.counted)
            self._unloaded_brokers += len({move.source for move in decision.moves})
            self.spread(decision.mean, decision.deviation)
        elif decision.kind == "split":
            self._splits.update(decision.counted)

    def load(self, resources: Resources, *, averaged: float) -> None:
        """Set this broker's last sample and the average of its weighted maximum, a fraction."""
        self._used_percent = {resource.name: getattr(resources, resource.name).percent for resource in fields(resources)}
        self._used = {("max_ema",): averaged, ("max",): resources.max_use}

    def spread(self, mean: float | None, deviation: float | None) -> None:
        """Set mean and deviation (fractions) of the brokers' averages in the last round, if computed."""
        known = mean is not None and deviation is not None
        self._spread = {("max_ema", "avg"): mean, ("max_ema", "std"): deviation} if known else {}  # type: ignore[dict-item] # both known

    def under_way(self, moves: int) -> None:
        """Set the number of unfinished moves that this broker requested."""
        self._under_way = moves

    def refused(self, reporter: str) -> None:
        """Count a load report that a round left out as impossible."""
        self._refused[reporter] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield our metrics, then Pulsar's under both of its names."""
        yield self._ours("balancing_rounds", "Rounds of balancing that this broker decided.", ("kind", "result", "reason"), self._rounds)
        text = "Reports of load that a round of this broker left out, since they hold what cannot be, by who gave them."
        yield self._ours("load_reports_refused", text, ("reporter",), {(reporter,): count for reporter, count in self._refused.items()})
        gauge = GaugeMetricFamily(
            "equipoise_balancing_moves_under_way", "Moves that this broker asked for and waits for.", labels=("broker",)
        )
        gauge.add_metric((self._broker,), self._under_way)
        yield gauge
        for series in self._pulsars():
            yield _family(f"brk_{series.name}", series, {"broker": self._broker})
            yield _family(f"pulsar_{series.name}", series, {"cluster": self.cluster, "broker": self._broker})

    def _ours(self, name: str, text: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], int]) -> Metric:
        family = CounterMetricFamily(f"equipoise_{name}", text, labels=("broker", *labels))
        for values in sorted(counts):
            family.add_metric((self._broker, *values), counts[values])
        return family

    def _pulsars(self) -> Iterator[_Series]:
        for resource in fields(Resources):
            name, text = _RESOURCES.get(resource.name, resource.name), f"This broker's use of its {resource.name}, in percent."
            values: Values = {(): self._used_percent[resource.name]} if self._used_percent else {}
            yield _Series(name=f"lb_{name}_usage", text=text, metric=_LOADING, kind="gauge", values=values)
        text = "The use of this broker's busiest resource, a fraction: as it is (max), and weighed and averaged (max_ema)."
        yield _Series(name="lb_resource_usage", text=text, metric=_LOADING, kind="gauge", labels=("feature",), values=self._used)
        text = "Mean and deviation of all brokers' max_ema, as the leader's last round found them."
        labels = ("feature", "stat")
        yield _Series(name="lb_resource_usage_stats", text=text, metric=_UNLOADING, kind="gauge", labels=labels, values=self._spread)
        text = "Brokers from which rounds have moved bundles."
        yield _Series(name="lb_unload_broker", text=text, metric=_UNLOADING, values={(): self._unloaded_brokers})
        text = "Bundles that rounds have moved."
        yield _Series(name="lb_unload_bundle", text=text, metric=_UNLOADING, values={(): _successes(self._unloads)})
        text, labels = "Decisions of rounds, by what they were and why.", ("result", "reason")
        yield _Series(name="lb_unload_broker_breakdown", text=text, metric=_UNLOADING, labels=labels, values=_by_outcome(self._unloads))
        text = "Bundles that were split because they carried too much."
        yield _Series(name="lb_bundles_split", text=text, metric=_SPLITTING, values={(): _successes(self._splits)})
        text = "Decisions to split, by what came of them and why."
        yield _Series(name="lb_bundles_split_breakdown", text=text, metric=_SPLITTING, labels=labels, values=_by_outcome(self._splits))


def _successes(counts: Mapping[Outcome, int]) -> int:
    return sum(count for (result, _), count in counts.items() if result == "Success")


def _by_outcome(counts: Mapping[Outcome, int]) -> Values:
    return {outcome: count for outcome, count in counts.items()}  # noqa: C416 - a dict of pairs is none of tuples.


def _family(name: str, series: _Series, whose: Mapping[str, str]) -> Metric:
    make = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    family = make(name, series.text, labels=(*whose, "metric", *series.labels))
    for values in sorted(series.values):
        family.add_metric((*whose.values(), series.metric, *values), series.values[values])
    return family
