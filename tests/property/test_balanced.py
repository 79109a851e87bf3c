"""`BalancedShedder` on any cluster, against a slow model that tries every bundle on every
broker.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from math import ceil, floor

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from equipoise.brokers.balancing.decisions import ends_of, predicted_loads
from equipoise.shedder.balanced import BalancedMemory, BalancedShedder
from equipoise.shedder.costs import IDLE_COST
from equipoise.shedder.plan import Move
from equipoise.shedder.snapshot import Candidates, Snapshot, WeighedBroker, WeighedBundle
from tests.shedding import plan_of

Cluster = dict[str, WeighedBroker]
ROUNDS_MAX = 400


WEIGHTS = st.one_of(st.sampled_from([10.0, 20.0]), st.floats(10.0, 1e6), st.floats(10.0, 1e300))
BARS = st.sampled_from([None, None, None, "for a reason"])


@st.composite
def clusters(
    draw: st.DrawFn,
    *,
    names: str = "abcdef",
    weights: st.SearchStrategy[float] = WEIGHTS,
    capacities: Sequence[int] = (1, 100, 100, 300),
    barred: bool = True,
    rests: bool = False,
) -> Snapshot:
    """Brokers with up to a dozen bundles each, of similar or very different weight. Some of both
    are barred, and some bundles rest.
    """
    bars = BARS if barred else st.none()
    brokers = []
    for name in draw(st.lists(st.sampled_from(names), unique=True)):
        bundles = tuple(
            WeighedBundle(
                name=f"{name}{place}",
                cost=cost,
                barred=draw(bars),
                rests=rests and draw(st.booleans()),
            )
            for place, cost in enumerate(draw(st.lists(weights, max_size=2 * len(names))))
        )
        capacity = draw(st.sampled_from(capacities))
        brokers.append(
            WeighedBroker(
                broker=name,
                capacity=capacity,
                bundles=bundles,
                barred=None if rests else draw(bars),
            )
        )
    return Snapshot(brokers=tuple(brokers))


def fills_of(snapshot: Snapshot) -> dict[str, float]:
    return {
        b.broker: sum(bundle.cost for bundle in b.bundles) / b.capacity
        for b in snapshot.brokers
        if b.barred is None
    }


def counted(snapshot: Snapshot) -> Snapshot:
    """The cluster as the policy counts it: where bundles cost nearly the same, each costs the
    mean.
    """
    unit = unit_of(snapshot)
    if unit is None:
        return snapshot
    brokers = [
        replace(each, bundles=tuple(replace(bundle, cost=unit) for bundle in each.bundles))
        for each in snapshot.brokers
    ]
    return replace(snapshot, brokers=tuple(brokers))


def unit_of(snapshot: Snapshot) -> float | None:
    part = [broker for broker in snapshot.brokers if broker.barred is None]
    costs = [bundle.cost for broker in part for bundle in broker.bundles]
    if len(costs) < max(1, len(part)):
        return None
    mean = sum(costs) / len(costs)
    if not mean:
        return None
    spread = (sum((cost / mean - 1) ** 2 for cost in costs) / len(costs)) ** 0.5
    return mean if spread <= 0.15 else None


def unevenness(snapshot: Snapshot) -> float:
    """The sum of cost squared by capacity: least when all are equally full."""
    capacity = {broker.broker: broker.capacity for broker in snapshot.brokers}
    return sum(fill * fill * capacity[name] for name, fill in fills_of(snapshot).items())


def after(snapshot: Snapshot, *moves: Move) -> Snapshot:
    cluster: Cluster = {broker.broker: broker for broker in snapshot.brokers}
    for move in moves:
        assert move.destination is not None
        source, destination = cluster[move.source], cluster[move.destination]
        (bundle,) = (bundle for bundle in source.bundles if bundle.name == move.bundle)
        cluster[move.source] = replace(
            source, bundles=tuple(other for other in source.bundles if other is not bundle)
        )
        cluster[move.destination] = replace(destination, bundles=(*destination.bundles, bundle))
    return Snapshot(brokers=tuple(cluster.values()))


def first_move_of_the_model(
    snapshot: Snapshot, balanced_shedder: BalancedShedder
) -> tuple[str, str] | None:
    """Try all: the broker furthest outside its band first, the emptiest or fullest partner, the
    heaviest bundle that is not too heavy.
    """
    snapshot = counted(snapshot)
    part = {broker.broker: broker for broker in snapshot.brokers if broker.barred is None}
    fill = fills_of(snapshot)
    capacity = sum(broker.capacity for broker in part.values())
    mean = sum(total(broker) for broker in part.values()) / capacity if part else 0.0

    unit, least = unit_of(snapshot), min((each.capacity for each in part.values()), default=0)
    busy = {
        name: list(broker.bundles) if unit is not None else busy_of(broker, mean * least)
        for name, broker in part.items()
    }
    number = sum(map(len, busy.values()))

    def excess(name: str, ratio: float) -> float:
        broker = part[name]
        if unit is not None:
            share = Fraction(number * broker.capacity, capacity)
            return unit * max(floor(share) - len(busy[name]), len(busy[name]) - ceil(share))
        share_of_cost = mean * broker.capacity
        if fills(name):
            return (1 - balanced_shedder.settle_ratio) * share_of_cost - total(broker)
        return abs(total(broker) - share_of_cost) - ratio * share_of_cost

    def fills(name: str) -> bool:
        broker, share = part[name], Fraction(number * part[name].capacity, capacity)
        is_far = len(busy[name]) < share / 2 and total(broker) < mean * broker.capacity / 2
        return is_far and len(busy[name]) + 1 <= share

    if all(excess(name, balanced_shedder.start_ratio) <= 0 for name in part):
        return None
    ratio = balanced_shedder.settle_ratio
    for worst in sorted(part, key=lambda name: (-excess(name, ratio) / part[name].capacity, name)):
        if excess(worst, ratio) <= 0:
            break
        takers = sorted(
            (name for name in part if fill[name] < mean), key=lambda name: (fill[name], name)
        )
        givers = sorted(
            (name for name in part if fill[name] > mean), key=lambda name: (-fill[name], name)
        )
        for source, destination in (
            [(worst, taker) for taker in takers]
            if fill[worst] > mean
            else [(giver, worst) for giver in givers]
        ):
            giving, taking = part[source], part[destination]
            pull = total(giving) / giving.capacity * taking.capacity - total(taking)
            best = pull * giving.capacity / (giving.capacity + taking.capacity)
            need = min(max(excess(source, ratio), excess(destination, ratio), 0.02 * best), best)
            fit = [
                bundle
                for bundle in busy[source]
                if bundle.barred is None
                and (not bundle.rests or fills(destination))
                and may_go(snapshot, bundle.name, destination)
                and bundle.cost <= min(pull, 2 * best) / 1.5
            ]
            if fit:
                return best_of(fit, need).name, destination
    return None


def busy_of(broker: WeighedBroker, share: float) -> list[WeighedBundle]:
    """Return the bundles that are not idle."""
    by_cost = sorted(broker.bundles, key=lambda bundle: (bundle.cost, bundle.name))
    sums = accumulate(bundle.cost for bundle in by_cost)
    return [bundle for bundle, so_far in zip(by_cost, sums, strict=True) if so_far > 0.01 * share]


def best_of(fit: list[WeighedBundle], need: float) -> WeighedBundle:
    """The best of these bundles. Those that rest come after the others, unless the others are far
    too light.
    """
    awake, resting = (
        [bundle for bundle in fit if bundle.rests == rests] for rests in (False, True)
    )
    for pile in (awake, resting):
        light = sorted(
            (bundle for bundle in pile if 0.3 * need <= bundle.cost <= need),
            key=lambda bundle: (-bundle.cost, bundle.name),
        )
        heavy = sorted(
            (bundle for bundle in pile if bundle.cost > need),
            key=lambda bundle: bundle.name,
            reverse=True,
        )
        if light or heavy:
            return light[0] if light else min(heavy, key=lambda bundle: bundle.cost)
    return min(awake or resting, key=lambda bundle: (-bundle.cost, bundle.name))


def may_go(snapshot: Snapshot, bundle: str, destination: str) -> bool:
    return snapshot.rules is None or destination in snapshot.rules(bundle).allowed


def total(broker: WeighedBroker) -> float:
    return sum(bundle.cost for bundle in broker.bundles)


# Small whole numbers, so that the model rounds like the product. Ties are common.
SMALL = clusters(
    names="abcd", weights=st.integers(10, 200).map(float), capacities=(64, 128), rests=True
)


def forbidding(snapshot: Snapshot, chance: random.Random) -> Snapshot:
    """The cluster, mostly with rules that let each bundle go to some brokers."""
    names = sorted(broker.broker for broker in snapshot.brokers)
    if chance.random() < 0.2:
        return replace(snapshot, live=tuple(names))
    bundles = sorted(bundle.name for broker in snapshot.brokers for bundle in broker.bundles)
    allowed = {bundle: tuple(name for name in names if chance.random() < 0.6) for bundle in bundles}
    return replace(
        snapshot, live=tuple(names), rules=lambda bundle: Candidates(allowed=allowed[bundle])
    )


@given(SMALL, st.randoms(use_true_random=False))
def test_the_first_move_is_that_of_the_slow_model(
    snapshot: Snapshot, chance: random.Random
) -> None:
    """Bisection over sorted costs finds the move that trying everything finds, with and without
    rules.
    """
    balanced_shedder, ruled = BalancedShedder(), forbidding(snapshot, chance)
    found = [(move.bundle, move.destination) for move in plan_of(balanced_shedder, ruled).moves]
    expected = first_move_of_the_model(ruled, balanced_shedder)
    assert [] == found if expected is None else [expected] == found[:1]


@given(SMALL)
def test_predictions_are_what_the_moves_make_of_the_loads(snapshot: Snapshot) -> None:
    """Together they say where each broker starts and ends, as a share of the mean."""
    plan = plan_of(BalancedShedder(), snapshot)
    first, last = fills_of(counted(snapshot)), fills_of(after(counted(snapshot), *plan.moves))
    capacity = {broker.broker: broker.capacity for broker in snapshot.brokers}
    mean = sum(fill * capacity[name] for name, fill in first.items()) / (
        sum(capacity.values()) or 1
    )
    touched = {broker for move in plan.moves for broker in ends_of(move)}
    predicted = predicted_loads(plan.moves, done={move.bundle for move in plan.moves})
    assert touched == predicted.keys()
    for name, loads in predicted.items():
        assert (first[name] / mean, last[name] / mean) == pytest.approx(loads, abs=1e-9)


@given(clusters(), st.randoms(use_true_random=False))
def test_each_move_is_allowed_and_each_other_broker_has_a_reason(
    snapshot: Snapshot, chance: random.Random
) -> None:
    """Nobody barred takes part, nothing moves twice, and after each move the load is more even and
    no broker is fuller than the fullest was, where equal bundles count the same.
    """
    ruled = forbidding(snapshot, chance)
    plan = plan_of(BalancedShedder(), ruled)
    part = {broker.broker: broker for broker in snapshot.brokers if broker.barred is None}
    assert len({move.bundle for move in plan.moves}) == len(plan.moves) <= 64
    now = counted(snapshot)
    for move in plan.moves:
        assert move.source != move.destination
        assert move.destination in part
        assert may_go(ruled, move.bundle, move.destination)
        assert move.bundle in {
            bundle.name for bundle in part[move.source].bundles if bundle.barred is None
        }
        then = after(now, move)
        assert unevenness(then) <= unevenness(now)
        assert max(fills_of(then).values()) <= max(fills_of(now).values())
        now = then
    brokers = {broker.broker for broker in snapshot.brokers}
    assert sorted(brokers - {move.source for move in plan.moves}) == [
        stay.subject for stay in plan.stays if stay.subject in brokers
    ]


@given(clusters(weights=st.floats(1e-3, 1e6)), st.sampled_from([2, 64]))
def test_a_cluster_with_more_of_everything_has_the_same_plan(
    snapshot: Snapshot, factor: int
) -> None:
    """By powers of two, which round nothing."""
    grown = [
        replace(
            broker,
            capacity=broker.capacity * factor,
            bundles=tuple(replace(bundle, cost=bundle.cost * factor) for bundle in broker.bundles),
        )
        for broker in snapshot.brokers
    ]
    plan, other = (
        plan_of(BalancedShedder(), each) for each in (snapshot, Snapshot(brokers=tuple(grown)))
    )
    assert [(move.bundle, move.destination) for move in plan.moves] == [
        (move.bundle, move.destination) for move in other.moves
    ]


# With capacities of 100 and 300, rounding alone decides whether a broker gives its only bundle.
@given(clusters(weights=st.floats(0.1, 1e3), capacities=(1, 100, 100, 290)), st.data())
def test_bundles_without_load_never_move_and_let_nothing_else_move(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    """Until nothing moves. Then any number of idle bundles at any broker changes nothing."""
    for _ in range(ROUNDS_MAX):
        moves = plan_of(BalancedShedder(), snapshot).moves
        if not moves:
            break
        snapshot = after(snapshot, *moves)
    # Barred brokers take no part.
    capacities = {each.broker: each.capacity for each in snapshot.brokers if each.barred is None}
    cost = sum(
        bundle.cost
        for each in snapshot.brokers
        for bundle in each.bundles
        if each.broker in capacities
    )
    # Otherwise what is added is a part of the load.
    assume(
        cost and 20 * IDLE_COST < 0.01 * cost * min(capacities.values()) / sum(capacities.values())
    )
    brokers = [
        replace(
            broker,
            bundles=(
                *broker.bundles,
                *(
                    WeighedBundle(name=f"{broker.broker}-idle-{number}", cost=IDLE_COST)
                    for number in range(data.draw(st.integers(0, 20)))
                ),
            ),
        )
        for broker in snapshot.brokers
    ]
    assert () == plan_of(BalancedShedder(), Snapshot(brokers=tuple(brokers))).moves


@given(clusters(), st.randoms(use_true_random=False))
def test_order_of_the_input_does_not_matter(snapshot: Snapshot, chance: random.Random) -> None:
    shuffled = [
        replace(broker, bundles=tuple(chance.sample(broker.bundles, len(broker.bundles))))
        for broker in snapshot.brokers
    ]
    chance.shuffle(shuffled)
    assert plan_of(BalancedShedder(), snapshot) == plan_of(
        BalancedShedder(), Snapshot(brokers=tuple(shuffled))
    )


@given(clusters(barred=False))
def test_round_after_round_it_comes_to_rest(snapshot: Snapshot) -> None:
    for _ in range(ROUNDS_MAX):
        moves = plan_of(BalancedShedder(), snapshot).moves
        if not moves:
            return
        snapshot = after(snapshot, *moves)
    raise AssertionError(f"still moving after {ROUNDS_MAX} rounds: {snapshot}")


@given(clusters(barred=False), st.data())
def test_a_wobble_of_the_load_moves_nothing(snapshot: Snapshot, data: st.DataObject) -> None:
    """Brokers differ by at most 2 %, and each bundle by another 2 %. Equal bundles are
    counted instead.
    """
    fill = fills_of(snapshot)
    brokers = []
    for broker in snapshot.brokers:
        level = max(fill.values()) * broker.capacity * data.draw(st.floats(0.98, 1.0))
        filler = WeighedBundle(name=f"{broker.broker}-filler", cost=max(level - total(broker), 0.0))
        wobbled = [
            replace(bundle, cost=bundle.cost * data.draw(st.floats(0.98, 1.02)))
            for bundle in (*broker.bundles, filler)
        ]
        brokers.append(replace(broker, bundles=tuple(wobbled)))
    wobbling = Snapshot(brokers=tuple(brokers))
    assume(unit_of(wobbling) is None)
    assert () == plan_of(BalancedShedder(), wobbling).moves


TIMES = st.integers(0, 2**53)
MEMORIES = st.builds(
    BalancedMemory,
    churn=st.floats(0, 10),
    churn_ms=TIMES,
)


@given(clusters(), MEMORIES, TIMES, st.data())
def test_liars_and_clocks_that_jump_keep_a_plan_within_its_bounds(
    snapshot: Snapshot, memory: BalancedMemory, now_ms: int, data: st.DataObject
) -> None:
    """Whatever noise is reported and remembered, the moves keep to the budget and to the number
    that one broker takes.
    """
    noisy = tuple(
        replace(broker, noise=data.draw(st.none() | st.floats(0, 1e18)))
        for broker in snapshot.brokers
    )
    shedder = BalancedShedder(churn_max=0.5, moves_max=2)
    plan, later = shedder.plan(replace(snapshot, brokers=noisy, now_ms=now_ms), memory)
    taken = Counter(move.destination for move in plan.moves)
    assert all(number <= shedder.moves_max for number in taken.values())
    moved = {move.bundle for move in plan.moves}
    costs = [
        bundle.cost
        for broker in snapshot.brokers
        for bundle in broker.bundles
        if bundle.name in moved
    ]
    # What fills a broker is outside the budget.
    assert later.churn <= max(memory.churn, 0.5 * 1.000001)
    assert (
        not moved
        or plan.fills
        or sum(costs)
        <= 0.5
        * 1.000001
        * sum(total(broker) for broker in snapshot.brokers if broker.barred is None)
    )
    assert later.churn_ms == now_ms
