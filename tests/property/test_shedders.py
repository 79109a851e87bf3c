"""Plans of Pulsar's strategies are sane for any reports and any clock."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.shedder.average import AvgShedder
from equipoise.shedder.loads import Load, Resources, Use, fault_of
from equipoise.shedder.plan import Plan
from equipoise.shedder.policy import Policy
from equipoise.shedder.snapshot import Candidates, EndedMove, Rules, Since, Snapshot
from equipoise.shedder.threshold import OverloadShedder, ThresholdShedder
from equipoise.shedder.transfer import TransferShedder
from equipoise.shedder.uniform import UniformLoadShedder
from tests.shedding import bundle, plan_of, traffic_of

BROKERS: Final = "abcdef"
NOW_MS: Final = 10_000_000

EAGER: Final = TransferShedder(hit_count_threshold=0, target_deviation=0.05)
STRATEGIES: Final[tuple[Policy, ...]] = (
    EAGER,
    replace(EAGER, transfer=False, sources_max=9),
    replace(EAGER, with_policies=True, excluded_namespaces=frozenset({"tenant/two"})),
    TransferShedder(),
    ThresholdShedder(bytes_min=0),
    ThresholdShedder(bytes_min=0, lower_boundary=True),
    OverloadShedder(overloaded_percent=50),
    UniformLoadShedder(messages_min=0, bytes_min=0),
    UniformLoadShedder(rate_difference_percent=0, bytes_min=0, bundles_max=2),
    AvgShedder(low_hits=1, messages_min=0, bytes_min=0),
)
EXACT: Final[tuple[Policy, ...]] = (
    replace(EAGER, pulsar_exact=True),
    replace(EAGER, pulsar_exact=True, pulsar_debug=True, sources_max=9),
    ThresholdShedder(bytes_min=0, lower_boundary=True, pulsar_exact=True),
    OverloadShedder(pulsar_exact=True),
    UniformLoadShedder(pulsar_exact=True),
    AvgShedder(pulsar_exact=True),
)

ABSURD: Final = (math.nan, math.inf, -math.inf, -1.0, 1e300, -1e300, 1e18, 5e-324)
SEEDS: Final = st.integers(0, 2**32)


def sound(chance: random.Random) -> Snapshot:
    """A cluster of correct reports: a few bundles each, the lightest first, and any use."""
    live = tuple(BROKERS[: chance.randint(1, 6)])
    said = {}
    for broker in live:
        scale = chance.choice([0, 1, 100, 10_000])
        weights = sorted(
            scale * chance.choice([0, 1, 1, 5, 20, 300]) * 1_000.0
            for _ in range(chance.randint(0, 7))
        )
        bundles = tuple(
            bundle(f"tenant/{chance.choice(['one', 'two'])}/{broker}{number}", weight)
            for number, weight in enumerate(weights)
        )
        use = chance.choice([0.0, 0.02, 0.1, 0.4, 0.5, 0.9, 1.0, 3.0]) + chance.random() / 100
        traffic = traffic_of(sum(weights))
        said[broker] = Load(
            broker=broker,
            at_ms=NOW_MS - chance.choice([0, 1_000]),
            resources=Resources(cpu=Use(used=100 * use, limit=100)),
            traffic=traffic,
            average_use=use,
            average_bytes_per_second=traffic.bytes_per_second,
            bundle_count=len(bundles) + chance.choice([0, 0, 3]),
            bundles=bundles,
        )
    owners = {each.bundle: broker for broker, load in said.items() for each in load.bundles}
    return Snapshot(now_ms=NOW_MS, live=live, loads=said, owners=owners)


def ruled(snapshot: Snapshot, chance: random.Random) -> Snapshot:
    """The cluster with some things forbidden."""
    bundles = tuple(snapshot.owners)
    allowed = {
        name: tuple(sorted(chance.sample(BROKERS, chance.randint(0, 6))))
        for name in bundles
        if chance.random() < 0.3
    }
    return replace(
        snapshot,
        apart=dict.fromkeys(chance.choice([snapshot.live[:1], (), (), ()]), "it drains"),
        resting={name: "it has moved lately" for name in bundles if chance.random() < 0.1},
        policies=chance.choice([{}, {}, {"tenant/one": "isolation"}]),
        rules=chance.choice([None, rules_of(allowed, snapshot.live)]),
    )


def rules_of(allowed: Mapping[str, tuple[str, ...]], live: tuple[str, ...]) -> Rules:
    """Rules that allow every broker for bundles that they do not name."""
    return lambda name: Candidates(
        allowed=tuple(broker for broker in live if broker in allowed.get(name, live))
    )


def spoiled(snapshot: Snapshot, chance: random.Random) -> Snapshot:
    """The cluster with one thing wrong."""
    broker = chance.choice(snapshot.live)
    load = snapshot.loads.get(broker)
    if load is None:
        return snapshot
    loads = dict(snapshot.loads)
    kind = chance.randrange(9)
    if kind == 0:  # It says nothing, or nothing of its bundles.
        loads.pop(broker)
    elif kind == 1:
        loads[broker] = replace(
            load, at_ms=chance.choice([0, -(10**15), NOW_MS + 5_000, 10**15, NOW_MS - 1_800_001])
        )
    elif kind in (2, 3):
        loads[broker] = absurd(load, chance)
    elif kind == 4:  # It names what is not its own, or something twice.
        named = tuple(
            bundle(name, 1_000.0)
            for name in chance.choices([*snapshot.owners, "tenant/one/unknown"], k=3)
        )
        loads[broker] = replace(load, bundles=(*named, *load.bundles))
    elif kind == 5:
        loads[broker] = replace(load, bundles=(), bundle_count=chance.choice([0, 7]))
    elif kind == 6:  # It is dead.
        return replace(
            snapshot,
            live=tuple(other for other in snapshot.live if other != broker) or snapshot.live,
        )
    elif kind == 7:
        at_ms = chance.choice([NOW_MS, NOW_MS - 10**6, 10**15, -(10**15)])
        ends = chance.sample([broker, "gone"], 2)
        ended = EndedMove(source=ends[0], destination=ends[1], at_ms=at_ms, duration_ms=9)
        return replace(snapshot, since=Since(ended=(ended,)))
    else:  # It lies high.
        loads[broker] = replace(
            load,
            average_use=1e9,
            average_bytes_per_second=1e15,
            traffic=traffic_of(1e15),
        )
    return replace(snapshot, loads=loads)


def absurd(load: Load, chance: random.Random) -> Load:
    """The report with one impossible figure."""
    figure, kind = chance.choice(ABSURD), chance.randrange(5)
    if kind == 0:
        return replace(load, average_use=figure, average_bytes_per_second=0)
    if kind == 1:
        return replace(load, average_bytes_per_second=figure)
    if kind == 2:
        return replace(load, traffic=replace(load.traffic, messages_in_per_second=figure))
    if kind == 3:
        return replace(
            load,
            resources=replace(
                load.resources, bandwidth_in=Use(used=chance.choice([0, figure]), limit=figure)
            ),
        )
    return replace(load, bundles=tuple(bundle(each.bundle, figure) for each in load.bundles))


def cluster_of(seed: int, *, faults_max: int) -> Snapshot:
    chance = random.Random(seed)
    snapshot = ruled(sound(chance), chance)
    for _ in range(chance.randint(0, faults_max)):
        snapshot = spoiled(snapshot, chance)
    return snapshot


def check_moves(snapshot: Snapshot, plan: Plan) -> None:
    """No bundle moves twice. Source, bundle and destination may take part, and the rules allow the
    move.
    """
    moved = [move.bundle for move in plan.moves]
    assert len(set(moved)) == len(moved) <= len(snapshot.owners)
    for move in plan.moves:
        load = snapshot.loads[move.source]
        assert move.source == snapshot.owners[move.bundle]
        assert move.source in snapshot.live
        assert move.source not in snapshot.apart
        assert fault_of(load) is None
        assert move.bundle in {each.bundle for each in load.bundles}
        assert move.bundle not in snapshot.resting
        allowed = snapshot.candidates(move.bundle).allowed
        others = [broker for broker in allowed if broker != move.source]
        assert others if move.destination is None else move.destination in others
        if move.destination is not None:
            assert move.destination in snapshot.live
            assert move.destination not in snapshot.apart
            assert fault_of(snapshot.loads[move.destination]) is None


def check_stays(snapshot: Snapshot, plan: Plan) -> None:
    """Each live broker gives a bundle or has a reason. No moving bundle stays. An idle round has a
    reason.
    """
    stays = [stay.subject for stay in plan.stays]
    assert sorted(set(stays)) == stays
    given_ = {move.source for move in plan.moves}
    assert set(snapshot.live) - given_ <= set(stays)
    assert not {*given_, *(move.bundle for move in plan.moves)} & set(stays)
    assert all(stay.reason for stay in plan.stays)
    assert all(move.reason for move in plan.moves)
    assert (plan.idle is None) == bool(plan.moves)


def same_but_shuffled(snapshot: Snapshot, chance: random.Random) -> Snapshot:
    shuffled = chance.sample(list(snapshot.loads.items()), len(snapshot.loads))
    return replace(
        snapshot, loads=dict(shuffled), live=tuple(chance.sample(snapshot.live, len(snapshot.live)))
    )


def check(snapshot: Snapshot, seed: int) -> None:
    """Every strategy's plan is sane, and does not depend on the order of its input."""
    shuffled = same_but_shuffled(snapshot, random.Random(seed))
    for strategy in STRATEGIES:
        memory = random.Random(seed).choice([None, strategy.as_if_due(snapshot)])
        plan = plan_of(strategy, snapshot, memory)
        check_moves(snapshot, plan)
        check_stays(snapshot, plan)
        assert plan == plan_of(strategy, shuffled, memory)
        for figure in (plan.mean, plan.deviation, plan.deviation_after):
            assert figure is None or math.isfinite(figure)


@settings(max_examples=150)
@given(seed=SEEDS, faults_max=st.sampled_from([0, 3]))
def test_a_plan_is_sane_whatever_is_reported(seed: int, faults_max: int) -> None:
    check(cluster_of(seed, faults_max=faults_max), seed)


@settings(max_examples=150)
@given(seed=SEEDS)
def test_a_transfer_never_spreads_the_load_further(seed: int) -> None:
    """As far as the reports go. At most `sources_max` pairs exchange bundles."""
    plan = plan_of(EAGER, cluster_of(seed, faults_max=1))
    if plan.deviation is not None and plan.deviation_after is not None:
        assert plan.deviation_after <= plan.deviation * (1 + 1e-9)
    pairs = {frozenset((move.source, move.destination)) for move in plan.moves}
    assert len(pairs) <= EAGER.sources_max


@settings(max_examples=150)
@given(seed=SEEDS)
def test_as_pulsar_it_answers_whatever_it_is_asked(seed: int) -> None:
    """With `pulsar_exact` every snapshot has the same plan each time, and no broker gives to
    itself.
    """
    snapshot = cluster_of(seed, faults_max=3)
    for strategy in EXACT:
        plan = plan_of(strategy, snapshot)
        assert all(move.source != move.destination for move in plan.moves)
        # Equal but for figures that are no numbers.
        assert repr(plan) == repr(plan_of(strategy, snapshot))
