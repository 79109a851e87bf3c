"""What `/metrics` serves goes to a collector of OpenTelemetry, if its variables ask for that."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import (
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    Sum,
)
from prometheus_client.parser import text_string_to_metric_families

from equipoise.brokers.http import otlp
from equipoise.brokers.http.health import Health
from equipoise.brokers.http.otlp import exporter_of, metrics_in
from tests.unit.http.cluster import cluster
from tests.waiting import until

Series = dict[tuple[str, frozenset[tuple[str, object]]], float]
VARIABLES = {
    "OTEL_METRICS_EXPORTER": "otlp",
    "OTEL_METRIC_EXPORT_INTERVAL": "10",
    "OTEL_SERVICE_NAME": "shop",
}


class Collector(MetricExporter):
    """An exporter that keeps what it is given, and fails if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[MetricsData] = []
        self.fails = self.is_shut = False

    def export(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,
        **kwargs: Any,  # noqa: ANN401
    ) -> MetricExportResult:
        if self.fails:
            raise ConnectionError("no collector there")
        self.got.append(metrics_data)
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:  # noqa: ANN401
        self.is_shut = True


class Entry:
    """What finds a class among the installed packages."""

    def __init__(self, load: Callable[[], object]) -> None:
        self.load = lambda: load


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Collector:
    """The exporter that the variables of OpenTelemetry name."""
    collector = Collector()
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(otlp, "entry_points", lambda **_: [Entry(lambda: collector)])
    return collector


def exported(metrics: Sequence[Metric]) -> Series:
    """Return metrics as the samples of Prometheus, by name and labels."""
    found: Series = {}
    for metric in metrics:
        for point in metric.data.data_points:
            labels = frozenset[tuple[str, object]]((point.attributes or {}).items())
            if isinstance(point, NumberDataPoint):
                found[metric.name, labels] = point.value
                continue
            assert isinstance(point, HistogramDataPoint)
            bounds = [*point.explicit_bounds, math.inf]
            for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
                found[f"{metric.name}_bucket", labels | {("le", bound)}] = count
            found[f"{metric.name}_count", labels] = point.count
            found[f"{metric.name}_sum", labels] = point.sum
    return found


def served(page: str) -> Series:
    """Return the samples of a page by name and labels, a bound of a bucket as a number."""
    return {
        (
            sample.name,
            frozenset(
                (name, float(value) if name == "le" else value)
                for name, value in sample.labels.items()
            ),
        ): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def test_every_sample_of_the_page_is_exported(tmp_path: Path) -> None:
    async with cluster(tmp_path) as made:
        (broker,) = made.brokers
        assert (await broker.get("/lookup/v2/topic/persistent/acme/shop/orders")).status
        page = Health(broker.worker).scrape().decode()
    metrics = list(metrics_in(page, now_ns=1_000))
    assert served(page) == exported(metrics)
    by_name = {metric.name: metric.data for metric in metrics}
    counter = by_name["equipoise_records_accepted_total"]
    assert isinstance(counter, Sum)
    assert counter.is_monotonic
    assert {1_000} == {point.time_unix_nano for point in counter.data_points}
    assert isinstance(by_name["equipoise_lookup_duration_seconds"], Histogram)


async def test_metrics_are_exported_until_the_broker_ends(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure is logged, and ends nothing."""
    async with cluster(tmp_path) as made:
        (broker,) = made.brokers
        collector.fails = True
        exporting = asyncio.create_task(Health(broker.worker).export_metrics())
        failed = "metrics not exported: ConnectionError: no collector there"
        await until(lambda: failed in caplog.messages, "the failure is logged")
        collector.fails = False
        await until(lambda: len(collector.got) > 1, "two exports")
        exporting.cancel()
        await asyncio.gather(exporting, return_exceptions=True)
    assert collector.is_shut
    (resource,) = collector.got[-1].resource_metrics
    about = resource.resource.attributes
    assert ("shop", broker.id) == (about["service.name"], about["service.instance.id"])
    (scope,) = resource.scope_metrics
    assert "equipoise_bundles_owned" in {metric.name for metric in scope.metrics}


@pytest.mark.parametrize("name", ["", "none", "prometheus,console"])
def test_nothing_is_exported_unless_the_variables_ask_for_it(name: str) -> None:
    assert exporter_of({"OTEL_METRICS_EXPORTER": name}) is None


async def test_what_is_missing_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon")
    async with cluster(tmp_path) as made:
        health = Health(made.brokers[0].worker)
        await health.export_metrics()
        assert "no exporter for the protocol pigeon is installed" in caplog.text
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "often")
        await health.export_metrics()
        assert "metrics not exported: ValueError: " in caplog.text
