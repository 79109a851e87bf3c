"""Runs of the laboratory on small traces."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from equipoise.lab.traces import Loads, Shape, Trace, TraceBroker, generated

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


_CALL_MS = np.random.default_rng(7).permutation(
    [0.1 * 500 ** ((place / 63) ** 4) for place in range(64)]
)
"""What a call costs by shard: from 0.1 to 50 ms."""


def _calls(call_ms: Loads, seconds: int, *, seed: int) -> Loads:
    """Steps of 2.5 s in which chance makes about 200 calls/s. A core does 1,000 ms a second."""
    calls = np.random.default_rng(seed).poisson(200 * 2.5 / 64, (round(seconds / 2.5), 64))
    loads: Loads = calls * (call_ms + 0.6) / 2.5
    return loads


def _programs(*phases: Loads, joins_s: Sequence[float]) -> Trace:
    """One core each. Those that join get shards by number, because nobody calls for 20 s."""
    brokers = tuple(
        TraceBroker(broker=f"{name}:1", capacity=1_000.0, joins_s=at_s)
        for name, at_s in zip("abcd", joins_s, strict=False)
    )
    idle = np.full((8, 64), 0.005)
    shards = tuple(f"t/n/{number}" for number in range(64))
    loads = np.concatenate((idle, *phases))
    return Trace(name="live", step_s=2.5, bundles=shards, brokers=brokers, loads=loads)


def _furthest(result: Result, call_ms: Loads, *, at_s: float) -> float:
    """How far the expected load of a broker is from the mean, relative to the mean."""
    owners = starting_owners(result.trace, 1)
    for move in result.moves:
        if move.at_s <= at_s:
            owners[move.bundle] = [each.broker for each in result.trace.brokers].index(
                move.destination or ""
            )
    used = np.bincount(owners, call_ms + 0.6, len(result.trace.brokers))
    return float(np.abs(used / used.mean() - 1).max())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_calls_that_begin_at_shards_spread_by_number_are_evened_out_by_cost(seed: int) -> None:
    """Though all shards have moved lately. Then one of them costs 100 times as much."""
    dearer = _CALL_MS.copy()
    dearer[np.abs(dearer - 1).argmin()] *= 100
    phases = _calls(_CALL_MS, 60, seed=seed), _calls(dearer, 60, seed=seed + 9)
    result = run(_programs(*phases, joins_s=(0.0, 5.0, 12.5)))
    assert _furthest(result, _CALL_MS, at_s=20) > 0.3
    assert _furthest(result, _CALL_MS, at_s=50) < 0.25
    assert _furthest(result, dearer, at_s=80) > 0.4
    assert _furthest(result, dearer, at_s=110) < 0.15


@pytest.mark.parametrize("joins_s", [22.0, 26.0, 40.0])
def test_a_program_that_joins_soon_after_calls_begin_has_its_share(joins_s: float) -> None:
    """Though at first nobody knows what a shard costs, and all shards have moved lately."""
    calls = _calls(_CALL_MS, 60, seed=1)
    result = run(_programs(calls, joins_s=(0.0, 5.0, 12.5, joins_s)))
    assert _furthest(result, _CALL_MS, at_s=joins_s + 10) < 0.35
    assert _furthest(result, _CALL_MS, at_s=joins_s + 20) < 0.3


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
