"""Export a worker's metrics, from its own registry: one process may hold several workers.

Names begin with `equipoise_` and end with their unit, except those of the process and of Pulsar. `docs/reference/metrics.md` explains them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from equipoise.brokers.balancing.moves import Move, MoveKind, MoveResult, Moves
from equipoise.brokers.runtime.channel_loss import ChannelLoss
from equipoise.brokers.runtime.metrics.balancing_metrics import BalancingMetrics
from equipoise.brokers.runtime.metrics.compaction_metrics import CompactionMetrics
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Reason, State
from equipoise.channel.core.view import View

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

# From one hop of the log (half a millisecond) to the deadline of an admin call.
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

_NANOSECONDS: Final = tuple(int(bound * 1e9) for bound in _SECONDS)

# All states but `owned`: bundles that a client may wait for.
_UNSETTLED: Final[tuple[State, ...]] = ("free", "assigning", "releasing", "splitting")


class LookupOutcome(StrEnum):
    """How a lookup ended: at once, after a wait, too late, or refused (unknown namespace, too many waiting)."""

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
        text = "Lookups, from the request to its answer."
        family = HistogramMetricFamily("equipoise_lookup_duration_seconds", text, labels=("broker", "outcome"))
        for outcome, counts in self._counts.items():
            bounds = (*map(floatToGoString, _SECONDS), "+Inf")
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric((self._broker, outcome.value), buckets, self._sum_ns[outcome] / 1e9)
        yield family


class _Lean(CollectorRegistry):
    """A registry without the `_created` gauges of prometheus-client, which only the whole process could switch off."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._whole = registry

    def collect(self) -> Iterator[Metric]:
        """Yield the registry's metrics without `_created`."""
        for metric in self._whole.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Metrics:
    """The metrics of one worker, for use on its loop; each call costs a microsecond or two.

    `moves` are the moves in progress in the whole cluster, for all users.
    """

    def __init__(self, *, broker: str, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """`broker` labels every metric; `now_ns` is a clock that only rises."""
        self._now_ns = now_ns
        self.moves = Moves()
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"equipoise_{name}", text, ("broker", *labels), registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"equipoise_{name}", text, ("broker", *labels), registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"equipoise_{name}", text, ("broker", *labels), registry=registry, buckets=_SECONDS)

        rejected = counter("records_rejected_total", "Records of the channel that the fold rejected, since the start.", "reason")
        text = "How long bundles were on the move, in the whole cluster, as this broker reads it."
        move = histogram("move_duration_seconds", text, "kind", "result")
        in_flight = gauge("bundles_in_flight", "Bundles of the whole cluster that are not simply owned.", "state")
        # Resolve labels once, so each series starts at 0: one that appears with its first event has no rate.
        self._accepted = counter("records_accepted_total", "Records of the channel that the fold accepted, since the start.").labels(broker)
        self._rejected = {reason: rejected.labels(broker, reason.value) for reason in Reason}
        self._lookups = _LookupDurations(broker)
        registry.register(self._lookups)
        # `process_cpu_seconds_total`, `process_resident_memory_bytes` and the like.
        ProcessCollector(registry=registry)
        self._move = {(kind, result): move.labels(broker, kind.value, result.value) for kind in MoveKind for result in MoveResult}
        self._in_flight = {state: in_flight.labels(broker, state) for state in _UNSETTLED}
        self._owned = gauge("bundles_owned", "Bundles that this broker owns.").labels(broker)
        self._lease_left = gauge("lease_left_seconds", "How long this broker may still serve without a renewal.").labels(broker)
        self._lag = gauge("reader_lag_records", "Records that stand on the log and are not folded here yet.").labels(broker)
        text = "How long the channel has been lost to this broker; 0 while it has it."
        self._channel_lost = gauge("channel_lost_seconds", text).labels(broker)
        text = "Bundles that outlast this broker's lease while the channel is lost, because their namespace says so."
        self._serving_on = gauge("bundles_serving_on", text, "namespace")
        self._log_available = gauge("log_available", "1 while the log can be read, 0 during an outage.").labels(broker)
        self._resyncs = counter("reader_resyncs_total", "How often truncation took what this broker had not read yet.").labels(broker)
        self._alarms = counter("alarms_total", "What an operator must look at, by name.", "alarm")
        self.compaction = CompactionMetrics(registry, broker=broker)
        self.balancing = BalancingMetrics(registry, broker=broker)
        self._broker = broker

    def observe(self, folded: Folded, *, live: bool = True) -> Sequence[Move]:
        """Count one folded record and return the moves it ends. Ignore history (`live` false)."""
        if not live:
            return ()
        reason = folded.verdict.reason
        if reason is not None:
            self._rejected[reason].inc()
            return ()
        self._accepted.inc()
        ended = self.moves.folded(folded, self._now_ns())
        for move in ended:
            self._move[move.kind, move.result].observe(move.duration_ns / 1e9)
        return ended

    def resynced(self, resync: Resync) -> None:
        """Count a resync: records were truncated before they were read."""
        self._resyncs.inc()
        self.moves.resynced(resync)

    def alarm(self, name: str) -> None:
        """Count an alarm. `name` is one of few fixed words."""
        self._alarms.labels(self._broker, name).inc()

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
    ) -> bytes:
        """Return all current metrics in Prometheus' text format (`CONTENT_TYPE`)."""
        self.balancing.cluster = view.cluster or ""
        states = Tally(bundle.state for bundle in view.unsettled())
        for state, gauge in self._in_flight.items():
            gauge.set(states[state])
        held = [] if incarnation is None else view.held_by(incarnation)
        self._owned.set(sum(1 for bundle in held if bundle.phase == "owned" and bundle.owner == incarnation))
        self._lease_left.set(lease_left_ms / 1_000)
        self._lag.set(lag_records)
        self._log_available.set(1 if log_is_available else 0)
        self._channel_lost.set(0 if channel_loss is None else channel_loss.lost_ms / 1_000)
        self._serving_on.clear()
        for namespace, bundles in ({} if channel_loss is None else channel_loss.serving_on).items():
            self._serving_on.labels(self._broker, namespace).set(bundles)
        return generate_latest(_Lean(self._registry))
