"""Comparisons on small traces: rows, plots and the page; and a trace recorded from reports."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest

from equipoise.channel.core.errors import CallerError
from equipoise.lab.comparing import OURS, Comparison, compare, settings_of
from equipoise.lab.page import write_page
from equipoise.lab.traces import Recording, Shape, Trace, generated
from equipoise.shedder.costs import IDLE_COST
from equipoise.shedder.snapshot import Snapshot, WeighedBroker, WeighedBundle
from tests.unit.cli.fabricated import run

SHAPE = Shape(brokers=3, bundles=24, load=1_000.0, duration_s=600.0)


def trace_of(kind: str, seed: int) -> Trace:
    return generated(kind, SHAPE, seed=seed)


@pytest.fixture(scope="module")
def comparisons() -> list[Comparison]:
    policies = {name: settings_of(name) for name in (OURS, "AvgShedder")}
    done: list[tuple[int, int]] = []
    traces = {kind: partial(trace_of, kind) for kind in ("steady", "broker-lost")}
    found = compare(
        traces, policies, seeds=(1, 2), note=lambda *numbers: done.append(numbers), processes=1
    )
    assert [(number, 16) for number in range(1, 17)] == done, (
        "three settings and a bound, two traces, two seeds"
    )
    return found


def test_a_row_has_the_ratios_to_the_more_even_reference(comparisons: list[Comparison]) -> None:
    rows = [row for comparison in comparisons for row in comparison.rows()]
    assert [
        ("steady", OURS),
        ("steady", "AvgShedder"),
        ("broker-lost", OURS),
        ("broker-lost", "AvgShedder"),
    ] == [(row["trace"], row["policy"]) for row in rows]
    for comparison in comparisons:
        ours, average = comparison.rows()
        for results, row in zip(comparison.outcomes.values(), (ours, average), strict=True):
            ratios = [
                result.metrics().unevenness / best.unevenness
                for result, best in zip(results, comparison.references, strict=True)
            ]
            assert pytest.approx(sum(ratios) / 2, abs=1e-4) == row["unevenness_ratio"]
        assert isinstance(ours["unevenness_ratio"], float)
        assert ours["unevenness_ratio"] < 1
        for row in (ours, average):
            assert isinstance(bound := row["bound"], float)
            assert isinstance(gap := row["gap"], float)
            assert gap >= 0
            assert pytest.approx(row["unevenness"], abs=2e-4) == bound + gap


def test_the_page_has_all_figures_and_plots_and_fetches_nothing(
    comparisons: list[Comparison], tmp_path: Path
) -> None:
    page = write_page(comparisons, tmp_path / "out", seeds=(1, 2))
    text = page.read_text()
    assert {"index.html", "overview.png", "steady.png", "broker-lost.png"} == {
        path.name for path in page.parent.iterdir()
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in page.parent.glob("*.png"))
    assert ["overview", "steady", "broker-lost"] == re.findall(r"<h2>(.*?)</h2>", text)
    assert 5 == text.count("<tr>")
    assert (
        "<p>Seeds: 1, 2. The defaults of BalancedShedder were chosen on the seeds 3, 4 of" in text
    )
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", text)


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(
        CallerError, match="there is no policy 'Best'; the policies are BalancedShedder"
    ):
        settings_of("Best")


def test_the_command_line_runs_compares_and_refuses(tmp_path: Path) -> None:
    small = ("--brokers", "2", "--bundles", "8", "--for", "2m")
    document = json.loads(run("lab", "run", "steady", *small, "--json").stdout)
    assert ("steady", OURS, 1) == (document["trace"], document["policy"], document["seed"])
    assert document["bound"] <= document["unevenness"]
    rows = json.loads(
        run(
            "lab",
            "compare",
            "steady",
            *small,
            "--policy",
            OURS,
            "--output",
            str(tmp_path / "out"),
            "--json",
        ).stdout
    )
    assert [OURS] == [row["policy"] for row in rows]
    assert (tmp_path / "out" / "index.html").exists()
    refused = run("lab", "run", "stedy")
    assert refused.exit_code != 0
    assert (
        "there is no trace 'stedy': name a file (.csv, .parquet), or one of steady, drifting"
        in refused.stderr
    )


def test_a_recorded_trace_has_the_costs_and_members_of_each_step() -> None:
    """Loads are thousandths of a core. Capacities are such that a broker is used as much as it
    reported. A broker that has gone leaves.
    """
    recording = Recording(step_s=10.0)
    with pytest.raises(CallerError, match="there is nothing to record"):
        recording.trace("empty")

    def broker(name: str, **costs: float) -> WeighedBroker:
        bundles = tuple(
            WeighedBundle(name=bundle, cost=IDLE_COST + cost / 1_000)
            for bundle, cost in costs.items()
        )
        return WeighedBroker(broker=name, capacity=100, bundles=bundles)

    both = {"a": 0.25, "b": 0.25}
    recording.note(Snapshot(brokers=(broker("a", x=30.0), broker("b", y=20.0))), both)
    recording.note(Snapshot(brokers=(broker("a", x=30.0, z=20.0),)), {"a": 0.25})
    trace = recording.trace("live")
    assert (("x", "y", "z"), [[30, 20, 0], [30, 0, 20]]) == (
        trace.bundles,
        trace.loads.round(9).tolist(),
    )
    assert [("a", 0.0, None), ("b", 0.0, 10.0)] == [
        (each.broker, each.joins_s, each.leaves_s) for each in trace.brokers
    ]
    assert [pytest.approx(400 / 3)] * 2 == [each.capacity for each in trace.brokers]
