"""The traces that the laboratory generates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from equipoise.channel.core.errors import CallerError
from equipoise.lab.trace_files import traces_named
from equipoise.lab.traces import KINDS, SCALE, Shape, Trace, TraceBroker, generated
from tests.load.flights import flights

_SMALL = Shape(brokers=4, bundles=40, duration_s=1_200.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_and_a_seed_give_one_trace(kind: str) -> None:
    first, again, other = (
        generated(kind, _SMALL),
        generated(kind, _SMALL),
        generated(kind, _SMALL, seed=2),
    )
    assert (first.brokers, True) == (again.brokers, np.array_equal(first.loads, again.loads))
    assert not np.array_equal(first.loads, other.loads)
    bundles = 12 if kind == "day-and-night" else 40
    assert ((120, bundles), 1_200.0) == (first.loads.shape, first.duration_s)
    if kind != "mixed-hardware":
        assert [200.0] * 4 == first.capacity.tolist(), "a load of 10 a bundle uses half"


def test_brokers_join_and_leave_where_the_kind_says_so() -> None:
    changes = {kind: generated(kind, _SMALL).changes_s for kind in KINDS}
    assert {"broker-added", "broker-lost"} == {
        kind for kind, times in changes.items() if times != (0.0,)
    }
    assert (0.0, 300.0) == changes["broker-added"] == changes["broker-lost"]
    lost = generated("broker-lost", _SMALL).brokers[-1]
    assert (True, False) == (lost.is_live(299.0), lost.is_live(300.0))


def test_the_load_of_each_kind_has_its_shape() -> None:
    traces = {kind: generated(kind, _SMALL).loads for kind in KINDS}
    steady = np.std(traces["steady"] / traces["steady"].mean(axis=0))
    assert 0.05 == pytest.approx(steady, rel=0.1)
    assert np.std(traces["noisy"] / traces["noisy"].mean(axis=0)) > 10 * steady
    hot = traces["hot-key"]
    assert 50 == pytest.approx((hot[60:].mean(axis=0) - hot[:10].mean(axis=0)).max(), rel=0.2)
    crowd = traces["flash-crowd"].sum(axis=1)
    assert crowd[40:55].mean() > 1.02 * crowd[:20].mean()
    heaviest = {kind: loads.mean(axis=0).max() for kind, loads in traces.items()}
    assert heaviest["heavy-tailed"] > heaviest["steady"]
    bursts = traces["bursts"]
    is_on = (bursts > 2.5 * np.median(bursts, axis=0)).mean()
    assert 0.02 < is_on < 0.12


def test_a_kind_at_the_second_scale_has_all_loads_and_capacities_so_many_times() -> None:
    made = traces_named(["drifting", f"drifting@{SCALE}"], _SMALL)
    one, many = (each(1) for each in made.values())
    assert np.allclose(SCALE * one.loads, many.loads)
    assert np.allclose(SCALE * one.capacity, many.capacity)


def test_the_flights_have_the_seats_in_the_air_on_each_route() -> None:
    trace = flights()
    assert ((1_008, 302), 20) == (trace.loads.shape, len(trace.brokers))
    by_hour = trace.loads.sum(axis=1).reshape(7, 24, 6).mean(axis=(0, 2))
    assert by_hour[4] < 0.1 * by_hour[17], "night and afternoon"


BROKER = TraceBroker(broker="a:1", capacity=1.0)


def made(loads: list[list[float]], *brokers: TraceBroker) -> Trace:
    return Trace(name="t", step_s=10.0, bundles=("x", "y"), brokers=brokers, loads=np.array(loads))


EVEN = [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: made([[1.0, np.nan]], BROKER), "step 0 has the load nan of y"),
        (lambda: made([[1.0, 1.0], [-1.0, 1.0]], BROKER), r"step 1 has the load -1\.0 of x"),
        (lambda: made([[1.0, 1.0, 1.0]] * 2, BROKER), "shape"),
        (lambda: made(EVEN, replace(BROKER, joins_s=10.0)), "no broker is live"),
        (lambda: made(EVEN, replace(BROKER, capacity=0.0)), "capacity"),
        (lambda: made(EVEN, BROKER, BROKER), "twice"),
        (lambda: generated("unknown"), "the kinds are steady"),
        (lambda: generated("steady", Shape(brokers=1)), "at least two brokers"),
    ],
)
def test_an_impossible_trace_is_refused(make: Callable[[], Trace], problem: str) -> None:
    assert 20.0 == made(EVEN, BROKER).duration_s
    with pytest.raises(CallerError, match=problem):
        make()
