"""A forecast shows what the moves do, against a slow model that carries out one move after the
other.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from equipoise.brokers.balancing.forecast import Forecast, Level, Standing, forecast_of
from equipoise.brokers.balancing.settings.balancing_settings import POLICIES
from equipoise.shedder.balanced import BalancedShedder
from equipoise.shedder.loads import BrokerLoad
from equipoise.shedder.plan import Move, Plan
from equipoise.shedder.policy import Measure, Policy
from equipoise.shedder.snapshot import Snapshot
from tests.property.test_balanced import clusters
from tests.property.test_shedders import SEEDS, STRATEGIES, ruled, sound, spoiled
from tests.shedding import plan_of

BY_USE: Final = Measure(kind="use")


def foreseen(snapshot: Snapshot, plan: Plan, chance: random.Random) -> Forecast:
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
        [bundle] = [bundle for bundle in source.bundles or () if bundle.bundle == each.bundle][-1:]
        traffic = bundle.traffic
        use = (
            source.averages.weighted_max
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


def figures(load: BrokerLoad) -> list[float]:
    return [
        load.averages.weighted_max,
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
    forecast = foreseen(snapshot, plan, chance)
    model = carried_out(snapshot, forecast)
    for broker in forecast.brokers:
        assert model[broker.broker] == pytest.approx(shown(broker.after), rel=1e-9, abs=1e-6)


@given(SEEDS, st.sampled_from(STRATEGIES))
def test_a_round_without_moves_changes_nothing(seed: int, strategy: Policy) -> None:
    """A round without moves changes nothing, and no report makes a figure infinite or NaN."""
    chance = random.Random(seed)
    snapshot = ruled(spoiled(sound(chance), chance), chance)
    plan = plan_of(strategy, snapshot)
    forecast = foreseen(snapshot, plan, chance)
    for broker in forecast.brokers:
        assert all(
            math.isfinite(figure) and figure >= 0
            for figure in (*shown(broker.before), *shown(broker.after)[:3])
        )
        if not plan.moves:
            assert broker.before == broker.after
    assert math.isfinite(forecast.moved_bytes_per_second)
    assert 0 <= forecast.moved_share


@given(clusters())
def test_costs_move_with_their_bundles(snapshot: Snapshot) -> None:
    snapshot = replace(snapshot, live=tuple(sorted(broker.broker for broker in snapshot.brokers)))
    forecast = forecast_of(
        snapshot, plan_of(BalancedShedder(), snapshot), measure=Measure(kind="cost")
    )
    piles = {
        broker.broker: {bundle.name: bundle.cost for bundle in broker.bundles}
        for broker in snapshot.brokers
    }
    for each in forecast.plan.moves:
        assert each.destination is not None
        piles[each.destination][each.bundle] = piles[each.source].pop(each.bundle)
    for broker in forecast.brokers:
        assert len(piles[broker.broker]) == broker.after.bundles
        assert math.fsum(piles[broker.broker].values()) == pytest.approx(
            broker.after.cost, rel=1e-6, abs=1e-6 * broker.before.cost
        )
    fills = {
        name: math.fsum(pile.values()) / capacity_of(snapshot, name) for name, pile in piles.items()
    }
    taking = [broker.broker for broker in forecast.brokers if broker.apart is None]
    assume(taking and any(fills.values()))
    assert_level(forecast, [fills[name] for name in taking], mean_fill(snapshot, taking))


def capacity_of(snapshot: Snapshot, name: str) -> int:
    return next(broker.capacity for broker in snapshot.brokers if broker.broker == name)


def mean_fill(snapshot: Snapshot, taking: list[str]) -> float:
    brokers = [broker for broker in snapshot.brokers if broker.broker in taking]
    return math.fsum(bundle.cost for broker in brokers for bundle in broker.bundles) / sum(
        broker.capacity for broker in brokers
    )


def assert_level(forecast: Forecast, fills: list[float], whole: float) -> None:
    if whole == 0:
        assert Level(mean=0.0, deviation=0.0) == forecast.after
        return
    mean = sum(fill / whole for fill in fills) / len(fills)
    deviation = (sum((fill / whole - mean) ** 2 for fill in fills) / len(fills)) ** 0.5
    assert forecast.after is not None
    assert (mean, deviation) == pytest.approx(
        (forecast.after.mean, forecast.after.deviation), rel=1e-6, abs=1e-6
    )


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
