"""Grids of runs, and the front of their results."""

from __future__ import annotations

import pytest

from equipoise.brokers.errors import InvalidSetting
from equipoise.channel.core.errors import CallerError
from equipoise.lab.results import Metrics
from equipoise.lab.search import (
    RUNS_MAX,
    FinishedRun,
    FrontPoint,
    PlannedRun,
    fronts,
    grid_values,
    planned_runs,
)

OURS, AVERAGE = "BalancedShedder", "AvgShedder"


def test_values_of_a_repeated_name_are_joined_and_equal_values_are_one() -> None:
    given = [
        ("balanced.start_ratio", "0.1, 0.20"),
        ("transfer.transfer", "true"),
        ("balanced.start_ratio", "0.2,0.3"),
    ]
    assert {
        "balanced.start_ratio": ("0.1", "0.2", "0.3"),
        "transfer.transfer": ("true",),
    } == grid_values(given)
    with pytest.raises(InvalidSetting, match=r"balanced\.start_ratio"):
        grid_values([("balanced.start_ratio", "0.1,much")])


def test_a_grid_has_each_combination_but_no_settings_of_another_policy() -> None:
    values = {
        "balanced.start_ratio": ("0.1", "0.2"),
        "average.low_percent": ("10",),
        "reports.cost_window_ms": ("30000", "60000"),
    }
    runs = planned_runs(["steady", "noisy", "steady"], [OURS, AVERAGE, OURS], values, seeds=2)
    windows = ("reports.cost_window_ms=30000", "reports.cost_window_ms=60000")
    expected = [
        *(
            (OURS, (f"balanced.start_ratio={ratio}", window))
            for ratio in ("0.1", "0.2")
            for window in windows
        ),
        *((AVERAGE, ("average.low_percent=10", window)) for window in windows),
    ]
    assert [
        PlannedRun(trace=trace, policy=policy, settings=settings, seed=seed)
        for trace in ("steady", "noisy")
        for policy, settings in expected
        for seed in (1, 2)
    ] == runs


def test_a_grid_that_is_too_large_is_refused_before_it_is_made() -> None:
    values = {
        f"balanced.{name}": tuple(map(str, range(1_000)))
        for name in ("churn_max", "moves_max", "rest_ms")
    }
    with pytest.raises(
        CallerError,
        match="this grid has 1,000,000,000 runs; at most 20,000 are possible: name fewer values",
    ):
        planned_runs(["steady"], [OURS], values, seeds=1)
    assert RUNS_MAX == len(planned_runs(["steady"], [OURS], {}, seeds=RUNS_MAX))


def finished(
    trace: str, policy: str, seed: int, *figures: float, settings: tuple[str, ...] = ()
) -> FinishedRun:
    """Return a run that reached this unevenness and load moved, or that failed."""
    run = PlannedRun(trace=trace, policy=policy, settings=settings, seed=seed)
    if not figures:
        return FinishedRun(run=run, error="it failed")
    unevenness, load_moved = figures
    metrics = Metrics(
        unevenness=unevenness,
        load_moved=load_moved,
        moves=1,
        excess_p50=0.1,
        excess_p90=0.2,
        excess_p99=0.3,
        balanced_s=None,
        undone=0,
    )
    return FinishedRun(run=run, metrics=metrics)


def test_a_front_is_of_one_trace_and_half_of_the_seeds_without_settings_that_failed() -> None:
    """The figures are from the other half. One seed alone is both."""
    even, calm = ("balanced.start_ratio=0.1",), ("balanced.start_ratio=0.5",)
    runs = [
        finished("noisy", OURS, 1, 0.125, 0.5, settings=even),
        finished("noisy", OURS, 2, 0.375, 0.75, settings=even),
        finished("noisy", OURS, 1, 0.01, 0.01, settings=calm),
        finished("noisy", OURS, 2, settings=calm),
        finished("noisy", AVERAGE, 1, 0.25, 0.1),
        finished("noisy", AVERAGE, 2, 0.5, 0.1),
        finished("noisy", "TransferShedder", 1, 0.3, 0.625),
        finished("noisy", "TransferShedder", 2, 0.3, 0.625),
        finished("steady", OURS, 1, settings=even),
        finished("drifting", OURS, 1, 0.9, 0.9),
    ]
    assert [
        FrontPoint(trace="noisy", policy=OURS, settings=even, unevenness=0.375, load_moved=0.75),
        FrontPoint(trace="noisy", policy=AVERAGE, settings=(), unevenness=0.5, load_moved=0.1),
        FrontPoint(trace="drifting", policy=OURS, settings=(), unevenness=0.9, load_moved=0.9),
    ] == fronts(runs)
