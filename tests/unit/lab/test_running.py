"""Runs of the laboratory on small traces."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from equipoise.brokers.balancing.settings.balancing_settings import (
    SHEDDERS,
    BalancingSettings,
    RoundSettings,
)
from equipoise.lab.results import Result, RunMove, starting_owners
from equipoise.lab.running import run
from equipoise.lab.traces import Shape, Trace, TraceBroker, generated

_SMALL = Shape(brokers=4, bundles=100, load=1_000.0, duration_s=900.0)


def _settings(shedder: str, interval_ms: int = 5_000) -> BalancingSettings:
    return BalancingSettings(balancing=RoundSettings(shedder=shedder, shed_interval_ms=interval_ms))


def test_a_run_is_repeatable_and_evens_out_a_steady_load() -> None:
    trace = generated("steady", _SMALL)
    first, again, other = run(trace), run(trace), run(trace, seed=2)
    assert first.moves == again.moves != other.moves
    metrics = first.metrics()
    assert first.unevenness[0] > 0.15, "the owners at the start are drawn"
    assert metrics.unevenness < 0.1
    assert (True, 0) == (0 < metrics.moves < 40, metrics.undone)
    assert metrics.excess_p50 < metrics.excess_p90 < metrics.excess_p99 <= first.excess.max()


@pytest.mark.parametrize("shedder", SHEDDERS)
def test_each_policy_runs_and_no_load_is_lost(shedder: str) -> None:
    trace = generated("heavy-tailed", replace(_SMALL, duration_s=300.0))
    result = run(trace, _settings(shedder))
    owners = {
        bundle: trace.brokers[owner].broker
        for bundle, owner in enumerate(starting_owners(trace, 1).tolist())
    }
    for move in result.moves:
        assert move.source == owners[move.bundle]
        owners[move.bundle] = move.destination


def test_a_broker_that_joins_is_filled_at_once() -> None:
    trace = generated("broker-added", _SMALL)
    joins_s = trace.brokers[-1].joins_s
    result = run(trace)
    filled = [move for move in result.moves if move.destination == trace.brokers[-1].broker]
    assert joins_s < min(move.at_s for move in filled) < joins_s + 2
    metrics = result.metrics()
    assert metrics.balanced_s is not None
    assert metrics.balanced_s <= 60


def test_bundles_of_a_lost_broker_are_placed_and_do_not_count_as_moves() -> None:
    trace = generated("broker-lost", _SMALL)
    result = run(trace, BalancingSettings(balancing=RoundSettings(enabled=False)))
    assert () == result.moves
    lost = math.ceil(trace.last_change_s / trace.step_s)
    assert result.excess[lost] < result.excess[lost - 1], "placement spread the bundles"


def test_moves_take_their_time_and_are_bounded() -> None:
    trace = generated("broker-added", _SMALL)
    settings = BalancingSettings(balancing=RoundSettings(moves_max=1))
    slow = run(trace, settings, move_ms=5_000)
    times = [move.at_s for move in slow.moves]
    assert len(times) > 2
    assert min(np.diff(times)) >= 5, "one at a time"


def test_counts_moves_that_went_back_within_ten_minutes() -> None:
    brokers = (TraceBroker(broker="a:1", capacity=9.0), TraceBroker(broker="b:1", capacity=9.0))
    trace = Trace(
        name="t", step_s=600.0, bundles=("x",), brokers=brokers, loads=np.full((6, 1), 3.0)
    )

    def moved(at_s: float, source: str, destination: str) -> RunMove:
        return RunMove(at_s=at_s, bundle=0, source=source, destination=destination, load=3.0)

    moves = (moved(0, "a:1", "b:1"), moved(600, "b:1", "a:1"), moved(1_300, "a:1", "b:1"))
    result = Result(
        trace=trace,
        unevenness=np.array([1, 1, 0.1, 1, 1, 1.0]),
        excess=np.full(6, 1.0),
        moves=moves,
    )
    metrics = result.metrics()
    assert (1, 3, 3.0, 1_200.0) == (
        metrics.undone,
        metrics.moves,
        metrics.load_moved,
        metrics.balanced_s,
    )
    assert [1, 1, 1, 0, 0, 0] == result.moved_by_step().tolist()
    assert {"undone": 1, "load_moved": 3.0}.items() <= metrics.document().items()
