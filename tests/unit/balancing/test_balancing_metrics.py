"""The metrics of balancing, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from equipoise.brokers.runtime.metrics import BalancingMetrics, Metrics
from equipoise.shedder.loads import Resources, Use
from tests.channels.folding import channel_with
from tests.decisions import idle, move, outcome, shed, with_plan

Labels = tuple[tuple[str, str], ...]
Happens = Callable[[BalancingMetrics], None]


def scraped(metrics: Metrics) -> dict[tuple[str, Labels], float]:
    """All samples by name and labels, of the broker `b`."""
    text = metrics.scrape(
        channel_with("b").view,
        incarnation=None,
        lease_left_ms=0,
        lag_records=0,
        log_is_available=True,
    ).decode()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def series(text: str) -> tuple[str, Labels]:
    """The series `NAME LABEL=VALUE ...` of the broker `b`."""
    name, *labels = text.split()
    pairs = (label.partition("=") for label in labels)
    return name, tuple(sorted([("broker", "b"), *((key, value) for key, _, value in pairs)]))


ROUNDS = "equipoise_balancing_rounds_total"
UNLOADED = "brk_lb_unload_broker_breakdown_total metric=bundleUnloading"
SPLIT = "brk_lb_bundles_split_breakdown_total metric=bundlesSplit"
SPREAD = "brk_lb_resource_usage_stats metric=bundleUnloading feature=max_ema stat="
SOURCES = (move(0), replace(move(1), source="c"), move(2))
USED = Resources(
    cpu=Use(used=50, limit=200),
    memory=Use(used=90, limit=100),
    bandwidth_in=Use(used=3, limit=10),
)
COUNTED = {("Success", "Topics"): 2, ("Failure", "Unknown"): 1}
CASES: dict[str, tuple[Sequence[Happens], Mapping[str, float | None]]] = {
    # A rate needs two points. A gauge that was never measured is missing.
    "counters start at 0": (
        [],
        {
            f"{UNLOADED} result=Success reason=Underloaded": 0,
            f"{UNLOADED} result=Skip reason=HitCount": 0,
            f"{UNLOADED} result=Failure reason=Unknown": 0,
            "brk_lb_cpu_usage metric=loadBalancing": None,
        },
    ),
    # A round with moves counts each as a success of its cause, and each source once. A round
    # without moves counts its result.
    "decisions are counted as Pulsar does": (
        [
            lambda of: of.decided(
                replace(with_plan(shed(), moves=SOURCES), counted={("Success", "Overloaded"): 3})
            ),
            *(lambda of: of.decided(idle(cause="CoolDown")),) * 2,
        ],
        {
            f"{UNLOADED} result=Success reason=Overloaded": 3,
            f"{UNLOADED} result=Skip reason=CoolDown": 2,
            "brk_lb_unload_broker_total metric=bundleUnloading": 2,
            "brk_lb_unload_bundle_total metric=bundleUnloading": 3,
            f"{ROUNDS} kind=shed result=Success reason=Overloaded": 1,
            f"{ROUNDS} kind=shed result=Skip reason=CoolDown": 2,
        },
    ),
    "splits are counted apart from moves": (
        [lambda of: of.decided(replace(shed(moves=0), kind="split", counted=COUNTED))],
        {
            "brk_lb_unload_bundle_total metric=bundleUnloading": 0,
            "brk_lb_bundles_split_total metric=bundlesSplit": 2,
            f"{SPLIT} result=Failure reason=Unknown": 1,
        },
    ),
    # They count as a round, and not among Pulsar's unloads.
    "policy violations are counted apart from unloads": (
        [lambda of: of.decided(replace(shed(moves=1), kind="misplaced"))],
        {
            f"{UNLOADED} result=Success reason=Overloaded": 0,
            f"{ROUNDS} kind=misplaced result=Success reason=Overloaded": 1,
        },
    ),
    "the load of a broker, in percent, and of its busiest resource": (
        [lambda of: of.load(USED, averaged=0.2)],
        {
            "brk_lb_cpu_usage metric=loadBalancing": 25,
            "brk_lb_memory_usage metric=loadBalancing": 90,
            "brk_lb_directMemory_usage metric=loadBalancing": 0,
            "brk_lb_resource_usage metric=loadBalancing feature=max_ema": 0.2,
            "brk_lb_resource_usage metric=loadBalancing feature=max": 0.3,
        },
    ),
    "the last mean and deviation": (
        [lambda of: of.spread(0.5, 0.1)],
        {f"{SPREAD}avg": 0.5, f"{SPREAD}std": 0.1},
    ),
    "until a round computes none": (
        [lambda of: of.spread(0.5, 0.1), lambda of: of.spread(None, None)],
        {f"{SPREAD}avg": None},
    ),
    "a refused report is counted with its reporter": (
        [lambda of: of.refused("liar")] * 2,
        {"equipoise_load_reports_refused_total reporter=liar": 2},
    ),
}


@pytest.mark.parametrize(("happens", "expected"), CASES.values(), ids=CASES.keys())
def test_what_a_scrape_tells(
    happens: Sequence[Happens], expected: Mapping[str, float | None]
) -> None:
    metrics = Metrics(broker="b")
    for each in happens:
        each(metrics.balancing)
    found = scraped(metrics)
    assert expected == {
        name: pytest.approx(found[series(name)]) if series(name) in found else None
        for name in expected
    }


def test_an_outcome_is_no_round() -> None:
    """Its moves were counted when they were planned."""
    metrics = Metrics(broker="b")
    before = [*metrics.balancing.collect()]
    metrics.balancing.decided(outcome())
    assert before == [*metrics.balancing.collect()]


def test_each_of_pulsars_series_has_a_counterpart() -> None:
    """Each series with a name of Pulsar's admin API is also there under its Prometheus name, with
    the cluster.
    """
    metrics = Metrics(broker="b")
    metrics.balancing.decided(shed())
    metrics.balancing.load(Resources(), averaged=0.1)
    metrics.balancing.spread(0.5, 0.1)
    samples = scraped(metrics)
    cluster = channel_with("b").view.cluster
    assert cluster
    counterparts = {
        (
            name.replace("brk_lb_", "pulsar_lb_"),
            tuple(sorted((*labels, ("cluster", cluster)))),
        ): count
        for (name, labels), count in samples.items()
        if name.startswith("brk_lb_")
    }
    assert counterparts == {
        key: count for key, count in samples.items() if key[0].startswith("pulsar_lb_")
    }
    assert 28 == len(counterparts)
