"""The bound of the laboratory: no policy and no plan is below it."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.brokers.balancing.settings.balancing_settings import SHEDDERS
from equipoise.lab.bound import Cut, bound_at, cuts_of
from equipoise.lab.comparing import settings_of
from equipoise.lab.results import Owners, evenness, starting_owners
from equipoise.lab.running import run
from equipoise.lab.traces import Shape, Trace, TraceBroker, generated

SHAPE = Shape(brokers=4, bundles=40, load=1_000.0, duration_s=600.0)


@cache
def cuts(kind: str) -> tuple[Cut, ...]:
    return cuts_of(generated(kind, SHAPE))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["steady", "heavy-tailed", "broker-lost"])
def test_no_policy_is_below_the_bound_at_what_it_moves(kind: str) -> None:
    trace = generated(kind, SHAPE)
    for shedder in SHEDDERS:
        metrics = run(trace, settings_of(shedder)).metrics()
        assert bound_at(cuts(kind), metrics.load_moved) <= metrics.unevenness


def test_the_bound_is_near_what_is_reached_without_moves_and_falls_with_them() -> None:
    trace = generated("steady", SHAPE)
    owners = starting_owners(trace, 1)
    unmoved = np.mean([evenness(trace, row, owners, at_s=0.0)[0] for row in trace.loads])
    assert 0.9 * unmoved < bound_at(cuts("steady"), 0.0) <= unmoved
    bounds = [bound_at(cuts("steady"), moved) for moved in (0.0, 0.1, 0.3, 1.0)]
    assert sorted(bounds, reverse=True) == bounds


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Small traces: brokers of unlike size that may join and leave, loads that change fast."""
    steps, bundles = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    load = st.sampled_from([0.0, 1.0, 2.0, 5.0, 20.0])
    when = st.sampled_from([0.0, 10.0, 15.1, 20.0, 29.9])
    brokers = [
        TraceBroker(
            broker=name,
            capacity=draw(st.sampled_from([1.0, 3.0])),
            joins_s=draw(when) if name == "b" else 0.0,
            leaves_s=draw(when) if name == "c" else None,
        )
        for name in "abc"
    ]
    loads = np.array([[draw(load) for _ in range(bundles)] for _ in range(steps)])
    return Trace(
        name="small",
        step_s=10.0,
        bundles=tuple(map(str, range(bundles))),
        brokers=tuple(brokers),
        loads=loads,
    )


def moved_and_unevenness(trace: Trace, plan: list[Owners]) -> tuple[float, float]:
    """Return load moved and unevenness of a plan: owners for each step. A move is made at the load
    of the step before.
    """
    moved, unevenness = 0.0, list[float]()
    for step, owners in enumerate(plan):
        at_s = step * trace.step_s
        unevenness.append(evenness(trace, trace.loads[step], owners, at_s=at_s)[0])
        if step:
            is_move = (owners != plan[step - 1]) & trace.live(at_s)[plan[step - 1]]
            moved += float(trace.loads[step - 1, is_move].sum())
    total = float(trace.loads.sum(axis=1).mean()) or 1.0
    return moved / total * 3_600 / trace.duration_s, float(np.mean(unevenness))


@given(trace=traces(), seed=st.integers(0, 3), data=st.data())
@settings(max_examples=60)
def test_no_plan_with_hindsight_is_below_the_bound(
    trace: Trace, seed: int, data: st.DataObject
) -> None:
    """All plans of one bundle's owners, beside chance plans of the others'."""
    found = cuts_of(trace, seed=seed)
    start = starting_owners(trace, seed)
    live = [np.flatnonzero(trace.live(step * trace.step_s)) for step in range(len(trace.loads))]
    plan = [start]
    for places in live[1:]:
        chosen = [data.draw(st.sampled_from(places.tolist())) for _ in start]
        plan.append(np.array(chosen))
    for path in product(*(places.tolist() for places in live[1:])):
        for owners, owner in zip(plan[1:], path, strict=True):
            owners[0] = owner
        moved, unevenness = moved_and_unevenness(trace, plan)
        assert bound_at(found, moved) <= unevenness + 1e-9
