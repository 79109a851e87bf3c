"""A forecast shows what the moves do, against a slow model that carries out one move after the
other.
"""

from __future__ import annotations

import math
import random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing.forecast import Forecast, Standing, forecast_of
from equipoise.brokers.balancing.settings.balancing_settings import POLICIES
from equipoise.shedder.loads import Load
from equipoise.shedder.plan import Move, Plan
from equipoise.shedder.policy import Measure, Policy
from equipoise.shedder.snapshot import Snapshot
from tests.property.test_shedders import SEEDS, STRATEGIES, ruled, sound, spoiled
from tests.shedding import plan_of

BY_USE: Final = Measure(kind="use")


def predicted(snapshot: Snapshot, plan: Plan, chance: random.Random) -> Forecast:
    """The forecast of a plan by use. A move without a destination gets any live broker, or none."""
    placed = {
        move.bundle: chance.choice(snapshot.live)
        for move in plan.moves
        if move.destination is None and chance.random() < 0.9
    }
    return forecast_of(snapshot, plan, measure=BY_USE, placed=placed)


def carried_out(snapshot: Snapshot, forecast: Forecast) -> dict[str, list[float]]:
    """The slow model: use, throughput, messages and bundle count of each broker, after one move
    after the other.
    """
    told: dict[str, list[float]] = {}
    for broker in snapshot.live:
        load = snapshot.loads.get(broker)
        told[broker] = [0.0, 0.0, 0.0, 0] if load is None else figures(load)
    for each in forecast.plan.moves:
        source = snapshot.loads[each.source]
        [bundle] = [bundle for bundle in source.bundles if bundle.bundle == each.bundle][-1:]
        traffic = bundle.traffic
        use = (
            source.average_use
            * traffic.bytes_per_second
            / (source.traffic.bytes_per_second or math.inf)
        )
        for end, sign in ((each.source, -1), (each.destination, 1)):
            if end is not None:
                change = (use, traffic.bytes_per_second, traffic.messages_per_second, 1)
                told[end] = [
                    figure + sign * part for figure, part in zip(told[end], change, strict=True)
                ]
    return told


def figures(load: Load) -> list[float]:
    return [
        load.average_use,
        load.traffic.bytes_per_second,
        load.traffic.messages_per_second,
        load.bundle_count,
    ]


def shown(standing: Standing) -> list[float]:
    return [
        standing.used or 0.0,
        standing.bytes_per_second,
        standing.messages_per_second,
        standing.bundles,
    ]


@given(SEEDS, st.sampled_from(STRATEGIES))
def test_the_standings_after_are_those_before_with_all_moves_carried_out(
    seed: int, strategy: Policy
) -> None:
    chance = random.Random(seed)
    snapshot = ruled(sound(chance), chance)
    plan = plan_of(strategy, snapshot)
    forecast = predicted(snapshot, plan, chance)
    model = carried_out(snapshot, forecast)
    for broker in forecast.brokers:
        assert model[broker.broker] == pytest.approx(shown(broker.after), rel=1e-9, abs=1e-6)


@given(SEEDS, st.sampled_from(STRATEGIES))
def test_a_round_without_moves_changes_nothing(seed: int, strategy: Policy) -> None:
    """A round without moves changes nothing, and no report makes a figure infinite or NaN."""
    chance = random.Random(seed)
    snapshot = ruled(spoiled(sound(chance), chance), chance)
    plan = plan_of(strategy, snapshot)
    forecast = predicted(snapshot, plan, chance)
    for broker in forecast.brokers:
        assert all(
            math.isfinite(figure) and figure >= 0
            for figure in (*shown(broker.before), *shown(broker.after)[:3])
        )
        if not plan.moves:
            assert broker.before == broker.after
    assert math.isfinite(forecast.moved_bytes_per_second)
    assert 0 <= forecast.moved_share


@given(SEEDS)
def test_a_plan_as_if_due_is_the_one_that_comes(seed: int) -> None:
    """As if due, a strategy moves all that it moves in the first round in which it acts."""
    chance = random.Random(seed)
    snapshot = sound(chance)
    for group in ("transfer", "average"):
        policy = POLICIES[group]()
        memory: object = None
        last = Plan()
        for _ in range(20):
            last, memory = policy.plan(snapshot, memory)
            if last.moves:
                break
        announced = plan_of(policy, snapshot, policy.as_if_due(snapshot)).moves
        assert group == "average" or last.moves == announced
        # The other one acts on a large difference rounds before it acts on a smaller one; as if
        # due, on both.
        assert [move for move in announced if move in last.moves] == list(last.moves)


def test_the_moved_share_is_of_all_that_is_known() -> None:
    move = Move(bundle="t/n/1", source="a", destination="b", reason="because")
    plan = Plan(moves=(move,), stays=())
    snapshot = Snapshot(live=("a", "b"))
    assert 0.0 == forecast_of(snapshot, plan, measure=BY_USE).moved_share
