"""The metrics of balancing, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from equipoise.brokers.runtime.metrics import Metrics
from equipoise.shedder.loads import Resources, Use
from equipoise.shedder.plan import Budget, Move
from tests.channels.folding import channel_with
from tests.decisions import idle, move, outcome, shed, with_plan

Labels = tuple[tuple[str, str], ...]


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


def value(metrics: Metrics, name: str, /, **labels: str) -> float | None:
    """The value of one series; None if there is none."""
    return scraped(metrics).get((name, tuple(sorted({"broker": "b", **labels}.items()))))


def unloads(metrics: Metrics) -> Mapping[tuple[str, str], float]:
    """Pulsar's breakdown of decisions, without zeros."""
    found = {}
    for (name, labels), count in scraped(metrics).items():
        if name == "brk_lb_unload_broker_breakdown_total" and count:
            found[dict(labels)["result"], dict(labels)["reason"]] = count
    return found


def test_decisions_are_counted_as_pulsar_does() -> None:
    """A round with moves counts each as a success of its cause, and each source once. A round
    without moves counts its result.
    """
    metrics = Metrics(broker="b")
    sources = (move(0), replace(move(1), source="c"), move(2))
    metrics.balancing.decided(
        replace(with_plan(shed(), moves=sources), counted={("Success", "Overloaded"): 3})
    )
    metrics.balancing.decided(idle(cause="CoolDown"))
    metrics.balancing.decided(idle(cause="CoolDown"))
    assert {("Success", "Overloaded"): 3, ("Skip", "CoolDown"): 2} == unloads(metrics)
    assert 2 == value(metrics, "brk_lb_unload_broker_total", metric="bundleUnloading")
    assert 3 == value(metrics, "brk_lb_unload_bundle_total", metric="bundleUnloading")
    assert 1 == value(
        metrics,
        "equipoise_balancing_rounds_total",
        kind="shed",
        result="Success",
        reason="Overloaded",
    )
    assert 2 == value(
        metrics, "equipoise_balancing_rounds_total", kind="shed", result="Skip", reason="CoolDown"
    )


def test_an_outcome_is_no_round() -> None:
    """Its moves were counted when they were planned."""
    metrics = Metrics(broker="b")
    before = [*metrics.balancing.collect()]
    metrics.balancing.decided(outcome())
    assert before == [*metrics.balancing.collect()]


def test_splits_are_counted_apart_from_moves() -> None:
    metrics = Metrics(broker="b")
    counted = {("Success", "Topics"): 2, ("Failure", "Unknown"): 1}
    metrics.balancing.decided(replace(shed(moves=0), kind="split", counted=counted))
    assert {} == unloads(metrics)
    assert 2 == value(metrics, "brk_lb_bundles_split_total", metric="bundlesSplit")
    split = {"metric": "bundlesSplit", "result": "Failure", "reason": "Unknown"}
    assert 1 == value(metrics, "brk_lb_bundles_split_breakdown_total", **split)


def test_policy_violations_are_counted_apart_from_unloads() -> None:
    """It counts as a round, and not among Pulsar's unloads."""
    metrics = Metrics(broker="b")
    moves = (
        Move(
            bundle="t/n/0",
            source="a",
            destination=None,
            reason="policy isolation/x keeps it from a",
        ),
    )
    metrics.balancing.decided(
        replace(
            with_plan(shed(), moves=moves), kind="misplaced", counted={("Success", "Overloaded"): 1}
        )
    )
    assert {} == unloads(metrics)
    assert 1 == value(
        metrics,
        "equipoise_balancing_rounds_total",
        kind="misplaced",
        result="Success",
        reason="Overloaded",
    )


def test_counters_start_at_0() -> None:
    """A rate needs two points. A gauge that was never measured is missing."""
    metrics = Metrics(broker="b")
    for result, reason in (
        ("Success", "Underloaded"),
        ("Skip", "HitCount"),
        ("Failure", "Unknown"),
    ):
        labels = {"metric": "bundleUnloading", "result": result, "reason": reason}
        assert 0 == value(metrics, "brk_lb_unload_broker_breakdown_total", **labels)
    assert 0 == value(metrics, "equipoise_balancing_moves_under_way")
    assert value(metrics, "brk_lb_cpu_usage", metric="loadBalancing") is None


def test_the_load_of_a_broker_is_exported() -> None:
    """Resources in percent, the busiest as a fraction, and its average."""
    metrics = Metrics(broker="b")
    resources = Resources(
        cpu=Use(used=50, limit=200),
        memory=Use(used=90, limit=100),
        bandwidth_in=Use(used=3, limit=10),
    )
    metrics.balancing.load(resources, averaged=0.2)
    told = [
        value(metrics, f"brk_lb_{name}_usage", metric="loadBalancing")
        for name in ("cpu", "memory", "directMemory")
    ]
    assert [25, 90, 0] == told
    assert [0.2, 0.3] == [
        round(value(metrics, "brk_lb_resource_usage", metric="loadBalancing", feature=each) or 0, 6)
        for each in ("max_ema", "max")
    ]


def test_the_leader_exports_the_spread() -> None:
    """The last mean and deviation, until a round computes none."""
    metrics = Metrics(broker="b")
    spread = {"metric": "bundleUnloading", "feature": "max_ema"}
    metrics.balancing.spread(0.5, 0.1)
    assert [0.5, 0.1] == [
        value(metrics, "brk_lb_resource_usage_stats", stat=stat, **spread)
        for stat in ("avg", "std")
    ]
    metrics.balancing.spread(None, None)
    assert value(metrics, "brk_lb_resource_usage_stats", stat="avg", **spread) is None


def test_a_refused_report_is_counted_with_its_reporter() -> None:
    metrics = Metrics(broker="b")
    for _ in range(2):
        metrics.balancing.refused("liar")
    assert 2 == value(metrics, "equipoise_load_reports_refused_total", reporter="liar")


def test_moves_under_way_have_their_last_value() -> None:
    metrics = Metrics(broker="b")
    for moves in (3, 1):
        metrics.balancing.under_way(moves)
    assert 1 == value(metrics, "equipoise_balancing_moves_under_way")


@pytest.mark.parametrize(
    ("budget", "blocks"),
    [(Budget(most=1, used=1, blocks=True), 1), (Budget(most=1, used=1), 0), (None, 0)],
)
def test_the_leader_exports_whether_the_budget_blocks_moves(
    budget: Budget | None, blocks: int
) -> None:
    metrics = Metrics(broker="b")
    metrics.balancing.budget(Budget(most=1, used=1, blocks=not blocks))
    metrics.balancing.budget(budget)
    assert blocks == value(metrics, "equipoise_balancing_budget_blocks")


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
