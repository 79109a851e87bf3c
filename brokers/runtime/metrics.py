"""Export a broker's metrics to Prometheus: its own, and those of balancing under Pulsar's names."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from itertools import accumulate, product
from typing import Final, Literal, NamedTuple, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from equipoise.brokers.agent.effects import AlarmName
from equipoise.brokers.balancing.decisions import NOTHING, Decision, Kind
from equipoise.brokers.balancing.moves import MoveKind, MoveResult, Moves, ObservedMove
from equipoise.brokers.balancing.quarantine import quarantined_in
from equipoise.brokers.balancing.splitting.auto_split import FAILURE
from equipoise.brokers.balancing.splitting.split_points import Excess
from equipoise.brokers.runtime.router import ChannelLoss
from equipoise.brokers.security.identity import Fault, Surface
from equipoise.brokers.security.limits import Limit
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Reason, State
from equipoise.channel.core.view import View
from equipoise.shedder.costs import ASSUMED, Coefficients
from equipoise.shedder.loads import Resources

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

MetricT = TypeVar("MetricT", bound=MetricWrapperBase)

# From one hop of the log (half a millisecond) to the deadline of an admin call.
_SECONDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)

_NANOSECONDS: Final = tuple(int(bound * 1e9) for bound in _SECONDS)

# All states but `owned`: bundles that a client may wait for.
_UNSETTLED: Final[tuple[State, ...]] = ("free", "assigning", "releasing", "splitting")


class LookupOutcome(StrEnum):
    """How a lookup ended: at once, after a wait, too late, or refused (unknown namespace, too many
    waiting).
    """

    ANSWERED = "answered"
    HELD = "held"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"


class _LookupDurations(Collector):
    """A histogram of lookups in plain lists, for the worker's loop only.

    prometheus-client takes two locks per observation: a tenth of the whole answer.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._counts = {outcome: [0] * (len(_SECONDS) + 1) for outcome in LookupOutcome}
        self._sum_ns = dict.fromkeys(LookupOutcome, 0)

    def observe(self, outcome: LookupOutcome, duration_ns: int) -> None:
        """Count one lookup."""
        self._counts[outcome][bisect_left(_NANOSECONDS, duration_ns)] += 1
        self._sum_ns[outcome] += duration_ns

    def collect(self) -> Iterator[Metric]:
        """Yield the histogram in Prometheus' form: cumulative, up to infinity."""
        family = HistogramMetricFamily(
            "equipoise_lookup_duration_seconds",
            "Time of lookups, from the request to its answer.",
            labels=("broker", "outcome"),
        )
        for outcome, counts in self._counts.items():
            bounds = (*map(floatToGoString, _SECONDS), "+Inf")
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric((self._broker, outcome.value), buckets, self._sum_ns[outcome] / 1e9)
        yield family


class _Lean(CollectorRegistry):
    """A registry without the `_created` gauges of prometheus-client, which only the whole process
    could switch off.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._whole = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the registry's metrics without `_created`."""
        for metric in self._whole.collect():
            metric.samples = [
                sample for sample in metric.samples if not sample.name.endswith("_created")
            ]
            yield metric


class _Row(NamedTuple):
    """A metric. There is a series for each combination of the values of its `labels`, from the
    start: one that appears with its first event has no rate.
    """

    name: str
    text: str
    labels: Mapping[str, Iterable[str]] = {}


_COUNTERS: Final = (
    _Row(
        "records_accepted_total", "Records of the channel that the fold accepted, since the start."
    ),
    _Row(
        "records_rejected_total",
        "Records of the channel that the fold rejected, since the start.",
        {"reason": Reason},
    ),
    _Row(
        "reader_resyncs_total",
        "Resyncs of this broker: records were truncated before it read them.",
    ),
    _Row(
        "alarms_total",
        "Alarms, which an operator must check, by name.",
        {"alarm": AlarmName},
    ),
    _Row(
        "state_bytes_total",
        "Bytes of state of bundles that brokers streamed from one another, by direction: sent or"
        " received.",
        {"direction": ("sent", "received")},
    ),
    _Row(
        "authentications_refused_total",
        "Clients whose credentials were refused, by what was wrong, at HTTP and at the Pulsar"
        " port.",
        {"surface": Surface, "reason": Fault},
    ),
    _Row(
        "limits_exceeded_total",
        "Connections and requests of an identity that exceeded a limit, at HTTP and at the Pulsar"
        " port.",
        {"surface": Surface, "limit": Limit},
    ),
    _Row(
        "authorizations_refused_total",
        "Requests of clients whose role lacks a right, at HTTP and at the Pulsar port.",
        {"surface": Surface},
    ),
    _Row(
        "authentication_reload_failures_total",
        "Changed keys and users of authentication that could not be used.",
    ),
    _Row("compaction_failures_total", "Compactions by this broker that failed."),
)

_GAUGES: Final = (
    _Row(
        "bundles_in_flight",
        "Bundles of the whole cluster that are in a state other than owned.",
        {"state": _UNSETTLED},
    ),
    _Row("bundles_owned", "Bundles that this broker owns."),
    _Row("bundles_quarantined", "Bundles of the whole cluster in quarantine."),
    _Row(
        "bundles_unserved",
        "Free bundles of the whole cluster whose namespace no broker that is up serves.",
    ),
    _Row(
        "address_unreachable",
        "1 while nobody, or somebody else, answers this broker at the address that it advertises"
        " (own), or that the next broker by age advertises (next).",
        {"whose": ("own", "next")},
    ),
    _Row("lease_left_seconds", "Time that this broker may still serve without a renewal."),
    _Row(
        "lease_extended",
        "1 while this broker serves past its lease, by the assurances of all others.",
    ),
    _Row("reader_lag_records", "Records on the log that this broker has not folded yet."),
    _Row("log_available", "1 while the log can be read, 0 during an outage."),
    _Row(
        "channel_lost_seconds",
        "Time since this broker lost the channel; 0 while it has the channel.",
    ),
    _Row(
        "compaction_horizon_offset",
        "The offset up to which this broker has compacted the channel.",
    ),
    _Row("compaction_duration_seconds", "Duration of the last compaction by this broker."),
    _Row("compaction_age_seconds", "Time since the last compaction by this broker."),
    _Row(
        "uncompacted_records", "Records folded since this broker's last compaction, or its start."
    ),
    _Row(
        "archive_archived_offset",
        "The offset up to which every archive with a retention hold has read; 0 without archives.",
    ),
    _Row("archive_holds_lapsed", "Archives whose retention holds are too old to count."),
    _Row(
        "log_clock_ahead_offset",
        "The offset of the first record in the last compaction whose time is ahead of the clock; 0"
        " without one.",
    ),
    _Row(
        "cost_cpu_seconds",
        "CPU time that costs assume: of a call, of a byte, and per second of a session, of a"
        " bundle, and of the process itself.",
        {"of": [each.name for each in fields(Coefficients)]},
    ),
    _Row("balancing_moves_under_way", "Moves that this broker requested and that have not ended."),
    _Row(
        "balancing_budget_blocks",
        "1 if the budget of moved load (balanced.churn_max) kept bundles from moves in the"
        " leader's last round, else 0.",
    ),
)


class Metrics:
    """The metrics of one worker, for use on its loop; each call costs a microsecond or two.

    * `moves`: the moves in progress in the whole cluster, for all users.
    * `compacted_ns`: when this broker has compacted last, by the clock `now_ns`.
    """

    def __init__(self, *, broker: str, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """`broker` labels every metric; `now_ns` is a clock that only rises."""
        self._now_ns = now_ns
        self._broker = broker
        self.moves = Moves()
        self.compacted_ns: int | None = None
        self._registry = registry = CollectorRegistry()
        self._counters = dict(self._series(Counter, _COUNTERS))
        self._gauges = dict(self._series(Gauge, _GAUGES))
        self.assume(ASSUMED)
        self._lookups = _LookupDurations(broker)
        registry.register(self._lookups)
        # `process_cpu_seconds_total`, `process_resident_memory_bytes` and the like.
        ProcessCollector(registry=registry)
        move = Histogram(
            "equipoise_move_duration_seconds",
            "Time that moves took in the whole cluster, as this broker reads them.",
            ("broker", "kind", "result"),
            registry=registry,
            buckets=_SECONDS,
        )
        self._move = {
            (kind, result): move.labels(broker, kind, result)
            for kind in MoveKind
            for result in MoveResult
        }
        self._serving_on = Gauge(
            "equipoise_bundles_serving_on",
            "Bundles that this broker serves past its lease while the channel is lost, because"
            " their namespace allows it.",
            ("broker", "namespace"),
            registry=registry,
        )
        self.balancing = BalancingMetrics(registry, broker=broker)

    def _series(
        self, make: type[MetricT], rows: Sequence[_Row]
    ) -> Iterator[tuple[tuple[str, ...], MetricT]]:
        """Yield each series of metrics by its name and the values of its labels."""
        for row in rows:
            labels = ("broker", *row.labels)
            metric = make(f"equipoise_{row.name}", row.text, labels, registry=self._registry)
            for values in product(*row.labels.values()):
                yield (row.name, *values), metric.labels(self._broker, *values)

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter, which has these values of its labels."""
        self._counters[name, *labels].inc(by)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge, which has these values of its labels."""
        self._gauges[name, *labels].set(value)

    def assume(self, coefficients: Coefficients) -> None:
        """Export what costs are computed with."""
        for name, seconds in asdict(coefficients).items():
            self._gauges["cost_cpu_seconds", name].set(seconds)

    def observe(self, folded: Folded, *, live: bool = True) -> Sequence[ObservedMove]:
        """Count one folded record and return the moves it ends. Ignore history (`live` false)."""
        if not live:
            return ()
        reason = folded.verdict.reason
        if reason is not None:
            self.count("records_rejected_total", reason)
            return ()
        self.count("records_accepted_total")
        ended = self.moves.folded(folded, self._now_ns())
        for move in ended:
            self._move[move.kind, move.result].observe(move.duration_ns / 1e9)
        return ended

    def lookup(self, outcome: LookupOutcome, *, started_ns: int) -> None:
        """Count a lookup that began at `started_ns` of the monotonic clock."""
        self._lookups.observe(outcome, self._now_ns() - started_ns)

    def register(self, collector: Collector) -> None:
        """Export this collector, too."""
        self._registry.register(collector)

    def unregister(self, collector: Collector) -> None:
        """Stop exporting this collector."""
        self._registry.unregister(collector)

    def scrape(
        self,
        view: View,
        *,
        incarnation: int | None,
        lease_left_ms: int,
        lag_records: int,
        log_is_available: bool,
        channel_loss: ChannelLoss | None = None,
        lease_is_extended: bool = False,
    ) -> bytes:
        """Return all current metrics in Prometheus' text format (`CONTENT_TYPE`)."""
        self.balancing.cluster = view.cluster or ""
        states = Tally(bundle.state for bundle in view.unsettled())
        for state in _UNSETTLED:
            self._gauges["bundles_in_flight", state].set(states[state])
        free = Tally(bundle.namespace for bundle in view.unsettled() if bundle.phase == "free")
        held = [] if incarnation is None else view.held_by(incarnation)
        compacted_ns = self.compacted_ns
        for name, value in {
            "bundles_owned": sum(
                1 for bundle in held if bundle.phase == "owned" and bundle.owner == incarnation
            ),
            "bundles_quarantined": sum(1 for _ in quarantined_in(view)),
            "bundles_unserved": sum(free[each] for each in free if not view.takers(each)),
            "lease_left_seconds": lease_left_ms / 1_000,
            "lease_extended": lease_is_extended,
            "reader_lag_records": lag_records,
            "log_available": log_is_available,
            "channel_lost_seconds": 0 if channel_loss is None else channel_loss.lost_ms / 1_000,
            "compaction_age_seconds": (
                0 if compacted_ns is None else (self._now_ns() - compacted_ns) / 1e9
            ),
        }.items():
            self.set(name, value)
        self._serving_on.clear()
        for namespace, bundles in ({} if channel_loss is None else channel_loss.serving_on).items():
            self._serving_on.labels(self._broker, namespace).set(bundles)
        return generate_latest(_Lean(self._registry))


ResultAndCause = tuple[str, str]
Values = Mapping[tuple[str, ...], float]

# Pulsar's counters are 0 from the start: a series that appears with its first event has no rate.
_UNLOADS: Final[tuple[ResultAndCause, ...]] = (
    *(("Success", cause) for cause in ("Overloaded", "Underloaded")),
    *(
        ("Skip", cause)
        for cause in (
            "HitCount",
            "NoBundles",
            "CoolDown",
            "OutDatedData",
            "NoLoadData",
            "NoBrokers",
            "Unknown",
        )
    ),
    FAILURE,
)
_SPLITS: Final[tuple[ResultAndCause, ...]] = (
    *(("Success", cause) for cause in ("Topics", "Sessions", "MsgRate", "Bandwidth", "Admin")),
    FAILURE,
)
# The outcomes of our own rounds.
_ROUNDS: Final[Mapping[Kind, tuple[ResultAndCause, ...]]] = {
    "shed": _UNLOADS,
    "misplaced": (("Success", "Overloaded"),),
    "split": (*(("Success", excess.value) for excess in Excess), FAILURE, NOTHING),
    "merge": (("Success", "Underloaded"), FAILURE, NOTHING),
}

_LOADING: Final = "loadBalancing"
_UNLOADING: Final = "bundleUnloading"
_SPLITTING: Final = "bundlesSplit"

# Pulsar's names of resources, where they differ from ours.
_RESOURCES: Final = {"direct_memory": "directMemory"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Series:
    """One of Pulsar's metrics now: its values by labels, besides `metric`, which names the Pulsar
    source.
    """

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
        self._rounds: Tally[tuple[str, ...]] = Tally(
            {(kind, *outcome): 0 for kind, outcomes in _ROUNDS.items() for outcome in outcomes}
        )
        self._unloads: Tally[tuple[str, ...]] = Tally(dict.fromkeys(_UNLOADS, 0))
        self._splits: Tally[tuple[str, ...]] = Tally(dict.fromkeys(_SPLITS, 0))
        self._unloaded_brokers = 0
        self._refused: Tally[str] = Tally()
        self._used_percent: Mapping[str, float] = {}
        self._used: Values = {}
        self._spread: Values = {}
        registry.register(self)

    def decided(self, decision: Decision) -> None:
        """Count a decision. `equipoise_move_duration_seconds` covers the results of its moves. An
        outcome belongs to a counted round.
        """
        if decision.kind == "outcome":
            return
        self._rounds[decision.kind, *decision.outcome] += 1
        if decision.kind == "shed":
            self._unloads.update(decision.counted)
            self._unloaded_brokers += len({move.source for move in decision.plan.moves})
            self.spread(decision.plan.mean, decision.plan.deviation)
        elif decision.kind == "split":
            self._splits.update(decision.counted)

    def load(self, resources: Resources, *, averaged: float) -> None:
        """Set this broker's last sample and the average of its weighted maximum, a fraction."""
        self._used_percent = {
            resource.name: getattr(resources, resource.name).percent
            for resource in fields(resources)
        }
        self._used = {("max_ema",): averaged, ("max",): resources.max_use}

    def spread(self, mean: float | None, deviation: float | None) -> None:
        """Set mean and deviation (fractions) of the brokers' averages in the last round, if
        computed.
        """
        self._spread = (
            {}
            if mean is None or deviation is None
            else {("max_ema", "avg"): mean, ("max_ema", "std"): deviation}
        )

    def refused(self, reporter: str) -> None:
        """Count a load report that a round left out as impossible."""
        self._refused[reporter] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield our metrics, then Pulsar's under both of its names."""
        yield self._ours(
            "balancing_rounds",
            "Rounds of balancing that this broker decided.",
            ("kind", "result", "reason"),
            self._rounds,
        )
        yield self._ours(
            "load_reports_refused",
            "Load reports with impossible figures that a round of this broker left out, by"
            " reporting broker.",
            ("reporter",),
            {(reporter,): count for reporter, count in self._refused.items()},
        )
        for series in self._pulsars():
            yield _family(f"brk_{series.name}", series, {"broker": self._broker})
            yield _family(
                f"pulsar_{series.name}", series, {"cluster": self.cluster, "broker": self._broker}
            )

    def _ours(
        self, name: str, text: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], int]
    ) -> Metric:
        family = CounterMetricFamily(f"equipoise_{name}", text, labels=("broker", *labels))
        for values in sorted(counts):
            family.add_metric((self._broker, *values), counts[values])
        return family

    def _pulsars(self) -> Iterator[_Series]:
        yield from self._of_load()
        breakdown = ("result", "reason")
        yield from (
            _Series(
                name="lb_unload_broker",
                text="Brokers from which rounds have moved bundles.",
                metric=_UNLOADING,
                values={(): self._unloaded_brokers},
            ),
            _Series(
                name="lb_unload_bundle",
                text="Bundles that rounds have moved.",
                metric=_UNLOADING,
                values={(): _successes(self._unloads)},
            ),
            _Series(
                name="lb_unload_broker_breakdown",
                text="Decisions of rounds, by result and reason.",
                metric=_UNLOADING,
                labels=breakdown,
                values=self._unloads,
            ),
            _Series(
                name="lb_bundles_split",
                text="Bundles that were split because of their load.",
                metric=_SPLITTING,
                values={(): _successes(self._splits)},
            ),
            _Series(
                name="lb_bundles_split_breakdown",
                text="Decisions to split, by result and reason.",
                metric=_SPLITTING,
                labels=breakdown,
                values=self._splits,
            ),
        )

    def _of_load(self) -> Iterator[_Series]:
        for resource in fields(Resources):
            yield _Series(
                name=f"lb_{_RESOURCES.get(resource.name, resource.name)}_usage",
                text=f"This broker's use of its {resource.name}, in percent.",
                metric=_LOADING,
                kind="gauge",
                values={(): self._used_percent[resource.name]} if self._used_percent else {},
            )
        yield _Series(
            name="lb_resource_usage",
            text=(
                "The use of this broker's busiest resource, a fraction: now (max), and weighted and"
                " averaged (max_ema)."
            ),
            metric=_LOADING,
            kind="gauge",
            labels=("feature",),
            values=self._used,
        )
        yield _Series(
            name="lb_resource_usage_stats",
            text="Mean and deviation of all brokers' max_ema in the leader's last round.",
            metric=_UNLOADING,
            kind="gauge",
            labels=("feature", "stat"),
            values=self._spread,
        )


def _successes(counts: Mapping[tuple[str, ...], int]) -> int:
    return sum(count for (result, _), count in counts.items() if result == "Success")


def _family(name: str, series: _Series, whose: Mapping[str, str]) -> Metric:
    make = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    family = make(name, series.text, labels=(*whose, "metric", *series.labels))
    for values in sorted(series.values):
        family.add_metric((*whose.values(), series.metric, *values), series.values[values])
    return family
