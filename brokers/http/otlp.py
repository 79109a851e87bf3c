"""Export the metrics of a broker by OTLP, where the variables of OpenTelemetry ask for that.

The SDK for Python takes no metrics that others have measured (it has no MetricProducer), and its
API cannot observe a histogram. So this gives an exporter of the SDK what `/metrics` serves. Without
the variables it imports nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Final

import psutil
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.system.failures import LoggedFailures, error_text

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, Metric, MetricExporter

_logger: Final = logging.getLogger(__name__)

# The defaults of the SDK.
_INTERVAL_MS: Final = 60_000
_PROTOCOL: Final = "grpc"
_EXPORTERS: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def exporter_of(environment: Mapping[str, str]) -> MetricExporter | None:
    """Return the exporter for OTLP that the variables of OpenTelemetry name, or None. Log what is
    missing for it.
    """
    if "otlp" not in environment.get("OTEL_METRICS_EXPORTER", "").split(","):
        return None
    protocol = environment.get(
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
        environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", _PROTOCOL),
    )
    for found in entry_points(
        group="opentelemetry_metrics_exporter", name=_EXPORTERS.get(protocol, protocol)
    ):
        exporter: MetricExporter = found.load()()
        return exporter
    _logger.error(
        "metrics not exported: OTEL_METRICS_EXPORTER=otlp, but no exporter for the protocol %s is"
        " installed; install opentelemetry-exporter-otlp-proto-http, and set"
        " OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
        protocol,
    )
    return None


async def export_metrics(worker: Worker, scrape: Callable[[], bytes]) -> None:
    """Export what `scrape` returns, a page of `/metrics`, at the interval of OpenTelemetry's
    variables, until cancelled. Return at once if they ask for nothing.
    """
    try:
        exporter = exporter_of(os.environ)
        interval_ms = int(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL", _INTERVAL_MS))
    except Exception as error:  # noqa: BLE001 - An exporter may object to any variable.
        _logger.error("metrics not exported: %s", error_text(error))  # noqa: TRY400
        return
    if exporter is None:
        return
    failures = LoggedFailures(
        _logger,
        broker=worker.broker_id,
        failed="metrics not exported",
        over="metrics are exported again",
    )
    try:
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            now, page = worker.clock.now(), scrape().decode()
            try:
                # It blocks while the collector does not answer, for 10 s by default.
                await asyncio.to_thread(_export, exporter, page, worker.broker_id, now.wall_ms)
            except Exception as error:  # noqa: BLE001 - An exporter may raise anything.
                failures.failed(error, now.boot_ms)
            else:
                failures.succeeded()
    finally:
        exporter.shutdown()


def _export(exporter: MetricExporter, page: str, broker: str, now_ms: int) -> None:
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    scope = ScopeMetrics(
        scope=InstrumentationScope("equipoise"),
        metrics=list(metrics_in(page, now_ns=now_ms * 1_000_000)),
        schema_url="",
    )
    resource = Resource.create({"service.instance.id": broker})
    exporter.export(
        MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])
    )


def metrics_in(page: str, *, now_ns: int) -> Iterator[Metric]:
    """Yield the metrics of a page of `/metrics` in OpenTelemetry's form, under the same names.
    `now_ns` is the time of the epoch at which they were read.
    """
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        Metric,
        NumberDataPoint,
        Sum,
    )

    # The counts of this process have begun at its start at the earliest.
    started_ns = int(psutil.Process().create_time() * 1e9)
    cumulative = AggregationTemporality.CUMULATIVE
    data: Sum | Gauge | Histogram
    for family in text_string_to_metric_families(page):
        if not family.samples:
            continue
        name = family.name
        if family.type == "histogram":
            points = list(_histogram_points(family, started_ns, now_ns))
            data = Histogram(points, aggregation_temporality=cumulative)
        else:
            numbers = [
                NumberDataPoint(
                    attributes=sample.labels,
                    start_time_unix_nano=started_ns,
                    time_unix_nano=now_ns,
                    value=sample.value,
                )
                for sample in family.samples
            ]
            data = Gauge(numbers)
            if family.type == "counter":
                name = f"{name}_total"
                data = Sum(numbers, aggregation_temporality=cumulative, is_monotonic=True)
        yield Metric(name=name, description=family.documentation, unit="", data=data)


def _histogram_points(family: Family, started_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    # The samples of a series are side by side: its buckets, which are cumulative up to infinity,
    # its count and its sum.
    for labels, series in groupby(family.samples, _labels):
        samples = list(series)
        buckets = [sample for sample in samples if "le" in sample.labels]
        counts = [int(bucket.value) for bucket in buckets]
        (total,) = (sample.value for sample in samples if sample.name.endswith("_sum"))
        yield HistogramDataPoint(
            attributes=labels,
            start_time_unix_nano=started_ns,
            time_unix_nano=now_ns,
            count=counts[-1],
            sum=total,
            bucket_counts=[after - before for before, after in pairwise([0, *counts])],
            explicit_bounds=[float(bucket.labels["le"]) for bucket in buckets[:-1]],
            min=None,  # type: ignore[arg-type]  # Prometheus has neither, and OTLP needs neither.
            max=None,  # type: ignore[arg-type]
        )


def _labels(sample: Sample) -> Mapping[str, str]:
    """Return the labels that all samples of one series of a histogram have."""
    return {name: value for name, value in sample.labels.items() if name != "le"}
