"""Averages in columns, against a slow model that keeps those of each bundle separately."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.load.sampling import (
    HALF_LIFE_MS,
    BundleAverages,
    Carried,
    CostForecasts,
    sampled,
)
from equipoise.shedder.costs import BYTES_PER_CALL, costs_of
from equipoise.shedder.loads import (
    BundleLoad,
    BundleTraffic,
    Load,
    Messaging,
    Resources,
    Traffic,
    Use,
    averaged,
    fault_of,
)
from tests.vectors.top_k_bundles import top_bundles

COST_WINDOW_MS = 24_000
RATES = st.floats(0, 1e6)
COUNTS = st.integers(0, 1_000)
MESSAGINGS = st.builds(
    Messaging,
    messages_in_per_second=RATES,
    bytes_in_per_second=RATES,
    messages_out_per_second=RATES,
    bytes_out_per_second=RATES,
    producers=COUNTS,
    consumers=COUNTS,
    topics=COUNTS,
)
LOADS = st.builds(
    BundleLoad,
    calls_per_second=RATES,
    bytes_per_second=st.just(0.0) | RATES,
    sessions=COUNTS,
    messaging=st.none() | MESSAGINGS,
)
NAMES = st.sampled_from([f"t/n/{letter}" for letter in "abcd"])
TURNS = st.lists(
    st.tuples(
        st.lists(NAMES, unique=True), st.dictionaries(NAMES, LOADS), st.integers(-10, 50_000)
    ),
    min_size=1,
    max_size=4,
)


def plain(load: BundleLoad) -> list[float]:
    told = load.messaging
    if told is None:
        return [
            load.bytes_per_second or load.calls_per_second * BYTES_PER_CALL,
            0.0,
            load.calls_per_second,
            0.0,
            costs_of([load])[0],
        ]
    return [
        told.bytes_in_per_second,
        told.bytes_out_per_second,
        told.messages_in_per_second,
        told.messages_out_per_second,
        costs_of([load])[0],
    ]


def close(expected: Mapping[str, list[float]], carried: Carried) -> bool:
    columns = (
        carried.bytes_in,
        carried.bytes_out,
        carried.messages_in,
        carried.messages_out,
        carried.costs,
    )
    found = {
        name: [column[place] for column in columns] for place, name in enumerate(carried.names)
    }
    return expected.keys() == found.keys() and all(
        math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
        for name in expected
        for one, other in zip(expected[name], found[name], strict=True)
    )


@given(TURNS)
def test_columns_agree_with_averages_of_single_bundles(
    turns: list[tuple[list[str], dict[str, BundleLoad], int]],
) -> None:
    """A sample has their sums, and the busiest of them."""
    averages, model, times = BundleAverages(), dict[str, list[float]](), dict[str, int]()
    for names, loads, elapsed_ms in turns:
        carried = averages.update(
            names, loads, elapsed_ms=elapsed_ms, cost_window_ms=COST_WINDOW_MS
        )
        kept = 0.5 ** (max(elapsed_ms, 0) / HALF_LIFE_MS)
        now = {name: plain(loads.get(name, BundleLoad())) for name in names}
        times = {name: times.get(name, 0) + 1 for name in names}
        before = {
            name: model[name] if times[name] > 2 else figures for name, figures in now.items()
        }
        model = {
            name: [
                old * kept + new * (1 - kept)
                for old, new in zip(before[name], figures, strict=True)
            ]
            for name, figures in now.items()
        }
        for name, cost in zip(carried.names, carried.costs, strict=True):
            model[name][-1] = cost  # See below.
        assert close(model, carried)
        sample = sampled(
            carried, broker="a", at_ms=0, resources=Resources(), settings=BalancingSettings()
        )
        settled = [bundle for bundle in carried.bundles() if times[bundle.bundle] > 1]
        assert top_bundles(settled, at_most=20) == list(sample.bundles)
        known = [figures[-1] for name, figures in model.items() if times[name] > 1]
        # A newcomer counts as the mean of the others.
        total = (
            sum(known) * len(model) / len(known)
            if known
            else sum(figures[-1] for figures in model.values())
        )
        assert math.isclose(total, sample.cost, rel_tol=1e-9)
        assert math.isclose(
            sum(figures[0] for figures in model.values()),
            sample.traffic.bytes_in_per_second,
            rel_tol=1e-9,
            abs_tol=1e-6,
        )


# The squares of smaller loads are rounded to 0.

FLOATS = st.just(0.0) | st.floats(1e-9, 1e6)
ROWS = st.lists(
    st.tuples(st.lists(FLOATS, min_size=3, max_size=3), st.integers(1, 20_000)),
    min_size=1,
    max_size=40,
)
Rows = list[tuple[list[float], int]]
ROUNDING = 1e-4  # Of loads up to a million.


def forecasts_of(rows: Rows, *, factor: float = 1.0, idle: int = 0) -> tuple[list[float], float]:
    """The costs of bundles that had these loads times `factor`, beside others that are idle, and
    the noise.
    """
    forecasts = CostForecasts()
    costs: Sequence[float] = ()
    noise: float | None = None
    for loads, elapsed_ms in rows:
        row = [*(load * factor for load in loads), *(0.0,) * idle]
        costs, noise = forecasts.update(
            [str(place) for place in range(len(row))],
            row,
            newcomers=(),
            elapsed_ms=elapsed_ms,
            window_ms=COST_WINDOW_MS,
        )
    assert noise is not None
    return list(costs)[:3], noise


@given(ROWS)
def test_a_cost_is_never_beyond_the_loads(rows: Rows) -> None:
    costs, noise = forecasts_of(rows)
    for place, cost in enumerate(costs):
        loads = [row[place] for row, _ in rows]
        assert max(min(loads) - ROUNDING, 0.0) <= cost <= max(loads) + ROUNDING
    assert 0 <= noise < math.inf


@given(ROWS, st.sampled_from([1e-6, 0.5, 20.0, 1e6]))
def test_costs_and_noise_grow_with_all_loads(rows: Rows, factor: float) -> None:
    costs, noise = forecasts_of(rows)
    grown, grown_noise = forecasts_of(rows, factor=factor)
    near = partial(pytest.approx, rel=1e-6, abs=ROUNDING * factor)
    assert [cost * factor for cost in costs] == near(grown)
    assert noise * factor == near(grown_noise)


@given(ROWS, st.integers(1, 5))
def test_idle_bundles_change_no_cost(rows: Rows, idle: int) -> None:
    costs, noise = forecasts_of(rows)
    others, other_noise = forecasts_of(rows, idle=idle)
    assert costs == pytest.approx(others, abs=ROUNDING)
    assert noise == pytest.approx(other_noise, abs=ROUNDING)


FIGURES = st.floats() | st.sampled_from([math.nan, math.inf, -1.0, 1e300])
TRAFFIC = st.builds(Traffic, bytes_in_per_second=FIGURES, messages_out_per_second=FIGURES)
SAMPLES = st.builds(
    Load,
    broker=st.just("a"),
    at_ms=st.integers(0, 10**15),
    average_use=FIGURES,
    resources=st.builds(Resources, cpu=st.builds(Use, used=FIGURES, limit=FIGURES)),
    traffic=TRAFFIC,
    bundles=st.lists(st.builds(BundleTraffic, bundle=NAMES, traffic=TRAFFIC, cost=FIGURES)).map(
        tuple
    ),
    history=st.floats(0, 1),
)
SOUND = Load(
    broker="a",
    at_ms=5_000,
    average_use=0.5,
    traffic=Traffic(bytes_in_per_second=7.0),
    bundles=(BundleTraffic(bundle="t/n/a", traffic=Traffic(bytes_in_per_second=7.0), cost=11.0),),
)


def after(*samples: Load) -> Load | None:
    found = None
    for sample in samples:
        found = averaged(found, sample)
    return found


@given(st.lists(SAMPLES, max_size=3), st.integers(0, 10**15))
def test_no_sample_affects_the_averages_forever(samples: list[Load], at_ms: int) -> None:
    """After any samples and any jumps of the clock, two sound samples make a load without a
    fault.
    """
    load = after(*samples, SOUND, replace(SOUND, at_ms=at_ms))
    assert load is not None
    assert None is fault_of(load)


@given(st.floats(0, 1), st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(1, 60_000))
def test_averages_stay_between_the_samples(
    history: float, used: list[float], every_ms: int
) -> None:
    load = after(
        *(
            replace(SOUND, average_use=use, at_ms=turn * every_ms, history=history)
            for turn, use in enumerate(used)
        )
    )
    assert load is not None
    assert min(used) - 1e-9 <= load.average_use <= max(used) + 1e-9
