"""Placement strategies: which broker gets a bundle, and how a batch is weighed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.balancing import placement
from equipoise.brokers.balancing.placement import (
    FewestBundles,
    LeastCost,
    LeastLongTermMessageRate,
    LeastResourceUsageWithWeight,
    Placement,
    RoundRobin,
    by_messages,
    by_use,
    choose_among,
    in_turns,
    places_elsewhere,
)
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import bundle_name, even_boundaries
from equipoise.channel.core.view import View
from equipoise.shedder.loads import BundleTraffic, Load
from tests.channels.folding import Channel
from tests.channels.ruled import Member, bundle_of, give, load, ruled_channel, set_policy

NS = "t/ns"


def placed(
    channel: Channel,
    placement: Placement,
    bundles: list[BundleEntry] | None = None,
    *,
    at_most: int = 99,
) -> dict[str, str]:
    """The broker that gets each free bundle of the namespace, by the start of its range, in the
    order of placement.
    """
    free = (
        [bundle for bundle in channel.view.bundles_of(NS) if bundle.phase == "free"]
        if bundles is None
        else bundles
    )
    incarnations = placement.place(channel.view, free, avoid={}, at_most=at_most)
    names = {channel.incarnation(name): name for name in channel.view.brokers}
    return {
        name.rpartition("/")[2][2:6]: names[incarnation]
        for name, incarnation in incarnations.items()
    }


def reported(broker: str, *, cost: float, costs: Mapping[str, float] | None = None) -> Load:
    """A report of the cost of the bundles of a broker, in total and one by one."""
    bundles = tuple(BundleTraffic(bundle=name, cost=each) for name, each in (costs or {}).items())
    return Load(broker=broker, at_ms=0, bundle_count=len(bundles), bundles=bundles, cost=cost)


def names(channel: Channel) -> list[str]:
    """The bundles of the namespace, in the order of the hash space."""
    return [bundle.name for bundle in channel.view.bundles_of(NS)]


@pytest.mark.parametrize("strategy", [FewestBundles(), LeastCost()])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 16, "b": 16, "c": 16}, {"a": 16, "b": 16, "c": 16}),
        ({"a": 32, "b": 16, "c": 0}, {"a": 16, "b": 16, "c": 16}),
        ({"a": 48, "b": 0, "c": 0}, {"a": 0, "b": 24, "c": 24}),
        ({"a": 7, "b": 5}, {"a": 5, "b": 7}),
        ({"a": 1, "b": 15, "c": 15, "d": 15}, {"a": 12, "b": 12, "c": 11, "d": 11}),
    ],
)
def test_bundles_that_leave_their_owners_together_are_spread(
    strategy: Placement, before: dict[str, int], after: dict[str, int]
) -> None:
    """None stays. One by one, those that leave first would fill the brokers that others leave
    next.
    """
    owners = [broker for broker, number in before.items() for _ in range(number)]
    channel = ruled_channel(before, {NS: None}, bundles=len(owners))
    for name, owner in zip(names(channel), owners, strict=True):
        give(channel, name, owner)
    bundles = channel.view.bundles_of(NS)
    found = places_elsewhere(channel.view, bundles, strategy)
    assert len(owners) == len(found)
    assert not [bundle.name for bundle in bundles if found[bundle.name] == bundle.owner]
    assert sorted(after.values()) == sorted(
        Counter(
            {channel.incarnation(broker): 0 for broker in before} | Counter(found.values())
        ).values()
    )


def test_owners_take_turns() -> None:
    channel = ruled_channel(["a", "b"], {NS: None}, bundles=4)
    for name, owner in zip(names(channel), "aaab", strict=True):
        give(channel, name, owner)
    first, second, third, fourth = channel.view.bundles_of(NS)
    assert [first, fourth, second, third] == in_turns([first, second, third, fourth])


def test_round_robin_continues_with_the_next_broker() -> None:
    """From one batch to the next, and past brokers that may not have a bundle."""
    channel = ruled_channel(["a", "b", "c"], {NS: None}, bundles=4)
    robin = RoundRobin()
    bundles = channel.view.bundles_of(NS)
    assert ["a", "b"] == list(placed(channel, robin, bundles[:2]).values())
    assert ["c", "a"] == list(placed(channel, robin, bundles[2:]).values())


FOUR = [bundle_name(NS, low, high) for low, high in pairwise(even_boundaries(4))]
HUNDREDS = dict.fromkeys(FOUR, 100.0)
TENS = dict(zip(FOUR, (10.0, 60.0, 20.0, 10.0), strict=True))
LIES = (math.nan, -1.0, math.inf, 1e300)
PLACED: dict[str, tuple[Sequence[Member | str], int, Placement, str]] = {
    # A placed bundle counts at once, with the rate that its last broker reported.
    "the fewest messages decide, for the heaviest first": (
        ("a", "b", "dead"),
        4,
        LeastLongTermMessageRate(
            loads={
                "a": load(messages=100),
                "b": load(messages=130),
                "dead": load(messages=100, bundles=TENS),
            }
        ),
        "4000:a 8000:b 0000:b c000:a",
    ),
    "an overloaded broker comes last": (
        "ab",
        1,
        LeastLongTermMessageRate(loads={"a": load(0.86, messages=1), "b": load(0.5, messages=100)}),
        "0000:b",
    ),
    "if all are overloaded, the fewest messages decide again": (
        "ab",
        1,
        LeastLongTermMessageRate(loads={"a": load(0.86, messages=1), "b": load(0.9, messages=100)}),
        "0000:a",
    ),
    # Each bundle adds its share of its last broker's use, so that a batch ends even.
    "the least used broker is chosen for each bundle": (
        ("a", "b", "dead"),
        4,
        LeastResourceUsageWithWeight(
            loads={
                "a": load(0.1, throughput=1),
                "b": load(0.3, throughput=9),
                "dead": load(0.8, throughput=400, bundles=HUNDREDS),
            }
        ),
        "0000:a 4000:b 8000:a c000:b",
    ),
    # It gets something, but not everything.
    "a broker that has just joined counts as the mean": (
        ("a", "b", "new"),
        4,
        LeastResourceUsageWithWeight(
            loads={"a": load(0.5, throughput=400, bundles=HUNDREDS), "b": load(0.5)}
        ),
        "0000:a 4000:b 8000:new c000:a",
    ),
    # The heaviest goes first, by capacity. A bundle of unknown cost counts as the mean.
    "the cost of the balanced shedder": (
        (Member(broker="small"), Member(broker="large", capacity=300)),
        4,
        LeastCost(
            loads={
                "small": reported("small", cost=0),
                "large": reported("large", cost=0),
                "dead": reported(
                    "dead", cost=60, costs=dict(zip(FOUR[:3], (10.0, 40.0, 10.0), strict=True))
                ),
            }
        ),
        "4000:large c000:large 0000:small 8000:small",
    ),
    # In a rolling restart it needs most of what the next broker gives away.
    "a broker without a report costs what it holds": (
        ("a", "b", "new"),
        4,
        LeastCost(
            loads={
                "a": reported("a", cost=30),
                "b": reported("b", cost=25, costs=TENS),
            }
        ),
        "4000:new 8000:b 0000:a c000:a",
    ),
    "bundles of equal costs go by number": (
        ("a", "b"),
        4,
        LeastCost(
            loads={
                "a": reported("a", cost=30),
                "b": reported("b", cost=25, costs=dict.fromkeys(FOUR, 10.0)),
            }
        ),
        "0000:a 4000:b 8000:a c000:b",
    ),
    "bundles that cost next to nothing go by number": (
        ("a", "b"),
        4,
        LeastCost(
            loads={
                "a": reported(
                    "a", cost=5e-4, costs=dict(zip(FOUR, (1e-4, 2e-5, 3e-5, 4e-5), strict=True))
                ),
                "b": reported("b", cost=2e-4),
            }
        ),
        "0000:a 4000:b 8000:a c000:b",
    ),
    # A broker with impossible figures counts as one without a report.
    **{
        f"a use of {lie}": (
            "abc",
            1,
            LeastResourceUsageWithWeight(loads={"a": load(lie), "b": load(0.2), "c": load(0.4)}),
            "0000:b",
        )
        for lie in LIES
    },
    **{
        f"{lie} messages": (
            "abc",
            1,
            LeastLongTermMessageRate(
                loads={
                    "a": load(messages=lie),
                    "b": load(messages=5),
                    "c": load(messages=9),
                }
            ),
            "0000:b",
        )
        for lie in LIES
    },
    **{
        f"a cost of {lie}": (
            "ab",
            4,
            LeastCost(loads={"a": reported("a", cost=lie), "b": reported("b", cost=10)}),
            "0000:a 4000:b 8000:a c000:b",
        )
        for lie in (-1e9, math.nan, math.inf)
    },
}


@pytest.mark.parametrize(
    ("brokers", "bundles", "strategy", "expected"), PLACED.values(), ids=PLACED.keys()
)
def test_where_bundles_go(
    brokers: Sequence[Member | str], bundles: int, strategy: Placement, expected: str
) -> None:
    channel = ruled_channel(brokers, {NS: None}, bundles=bundles)
    if "dead" in brokers:
        channel.die("dead")
    assert expected == " ".join(f"{low}:{name}" for low, name in placed(channel, strategy).items())


# --- resource use ---


@pytest.mark.parametrize(
    ("used", "margin", "expected"),
    [
        ({"a": 0.1, "b": 0.3, "c": 0.8}, 10, "ab"),
        ({"a": 0.1, "b": 0.3, "c": 0.6}, 5, "a"),
        ({"a": 0.2, "b": 0.3, "c": 0.5}, 5, "a"),
        ({"a": 0.35, "b": 0.2, "c": 0.45}, 5, "b"),
        ({"a": 0.5, "b": 1.0}, 5, "a"),
        ({"a": 0.5, "b": 0.5, "c": 0.5}, 5, "abc"),
        ({}, 5, "abc"),
    ],
)
def test_candidates_are_used_less_than_the_mean(
    used: Mapping[str, float], margin: int, expected: str
) -> None:
    """The worked example of Pulsar's settings, and the cases of its own test."""
    assert list(expected) == list(choose_among("abc", used, margin))


def test_hardly_any_throughput_makes_no_infinite_weight() -> None:
    """No weight is NaN or infinite."""
    channel = ruled_channel(["a", "b"], {NS: None})
    (name,) = names(channel)
    for throughput in (0.0, 5e-324, 1e-300, 0.5, 1.0, 1e18):
        loads = {
            "a": load(1e3, throughput=throughput, bundles={name: 0.0}),
            "b": load(0.5, throughput=throughput),
        }
        scale = by_use(loads).scale(channel.view)
        assert all(
            0 <= figure < float("inf")
            for figure in (*scale.carried.values(), *scale.weights.values(), scale.usual)
        )
        assert ["b"] == list(placed(channel, LeastResourceUsageWithWeight(loads=loads)).values())


# --- scales ---


def test_a_bundle_that_moved_after_the_reports_counts_at_its_new_broker() -> None:
    """Many lookups at once do not all choose one idle broker."""
    channel = ruled_channel(["a", "b"], {NS: None}, bundles=4)
    first, second, third, fourth = names(channel)
    told = load(0.4, throughput=240, messages=240, bundles={first: 60, second: 60})
    loads = {"a": told, "b": load(0.1, throughput=50, messages=50)}
    give(channel, first, "b")
    give(channel, third, "b")
    assert {"a": 180.0, "b": 50.0 + 60.0 + 60.0} == by_messages(loads).scale(channel.view).carried
    assert {"a": pytest.approx(0.3), "b": pytest.approx(0.1 + 0.1 + 0.1)} == by_use(loads).scale(
        channel.view
    ).carried
    scale = by_messages({**loads, "a": replace(told, bundle_count=5)}).scale(channel.view)
    assert ({"a": 180.0, "b": 50.0 + 60.0 + 40.0}, 40.0) == (scale.carried, scale.weight(fourth))


def test_between_equals_the_fewest_bundles_decide_and_then_the_name() -> None:
    channel = ruled_channel(["a", "b", "c"], {NS: None}, bundles=8)
    give(channel, bundle_of(channel, NS, 0).name, "a")
    for strategy in (LeastResourceUsageWithWeight(), LeastLongTermMessageRate()):
        assert ["b", "c", "a", "b", "c", "a", "b"] == list(placed(channel, strategy).values())


def test_reports_are_read_once_when_a_placement_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placing one bundle, as each lookup of a free one does, reads no report again."""
    channel = ruled_channel(["a", "b"], {NS: None}, bundles=4)
    loads = {
        "a": replace(load(0.5, messages=5), cost=50),
        "b": replace(load(0.1, messages=1), cost=1),
    }
    strategies = (
        LeastCost(loads=loads),
        FewestBundles(loads=loads),
        LeastLongTermMessageRate(loads=loads),
        LeastResourceUsageWithWeight(loads=loads),
    )
    monkeypatch.setattr(placement, "fault_of", None)
    assert ["b", "a", "b", "b"] == [
        placed(channel, strategy, at_most=1)["0000"] for strategy in strategies
    ]


@given(
    capacities=st.lists(st.sampled_from([50, 100, 200]), min_size=2, max_size=5),
    bundles=st.integers(1, 48),
    used=st.lists(st.floats(0, 0.04), min_size=5, max_size=5),
    exclude=st.booleans(),
)
def test_a_new_namespace_is_spread_over_idle_brokers(
    capacities: list[int], bundles: int, used: list[float], *, exclude: bool
) -> None:
    """In proportion to capacity, whatever an idle process uses, and over the brokers that the rules
    allow.
    """
    members = [
        Member(broker=f"b{number}", capacity=capacity) for number, capacity in enumerate(capacities)
    ]
    channel = ruled_channel(members, {NS: None}, bundles=bundles)
    allowed = members[1:] if exclude else members
    if exclude:
        set_policy(
            channel,
            "pin/p",
            {"namespace": NS}
            | {f"brokers.{place}": member.broker for place, member in enumerate(allowed)},
        )
    loads = {member.broker: load(use) for member, use in zip(members, used, strict=False)}
    for strategy in (
        FewestBundles(loads=loads),
        LeastCost(),
        LeastCost(loads=loads),
        LeastLongTermMessageRate(loads=loads),
        LeastResourceUsageWithWeight(loads=loads),
    ):
        counts = Counter(placed_of(channel, strategy))
        assert set(counts) <= {member.broker for member in allowed}
        for one in allowed:
            for other in allowed:
                # Moving one more bundle from `one` to `other` would not be more even.
                assert counts[one.broker] == 0 or (
                    counts[one.broker] / one.capacity <= (counts[other.broker] + 1) / other.capacity
                )
        if len({member.capacity for member in allowed}) == 1:
            numbers = [counts[member.broker] for member in allowed]
            assert max(numbers) - min(numbers) <= 1


def placed_of(channel: Channel, strategy: Placement) -> list[str]:
    """Return the broker of each bundle of the namespace."""
    chosen = strategy.place(channel.view, channel.view.bundles_of(NS), avoid={}, at_most=99)
    return [channel.view.live[incarnation].broker for incarnation in chosen.values()]


# --- against a slow and obvious model ---


def model_of(
    view: View, bundles: list[BundleEntry], avoid: Mapping[str, frozenset[int]], at_most: int
) -> dict[str, int]:
    """Place one bundle after the other at the broker with the smallest share after taking it,
    counting bundles one by one.
    """
    placed: dict[str, int] = {}
    for bundle in bundles:
        best = None
        for broker in sorted(view.live_brokers(), key=lambda broker: broker.broker):
            me = broker.incarnation
            if broker.status != "up" or me in avoid.get(bundle.name, ()):
                continue
            held = sum(1 for other in view.bundles.values() if me in (other.owner, other.source))
            share = (
                held + sum(1 for owner in placed.values() if owner == me) + 1
            ) / broker.joined.capacity
            if best is None or share < best[0]:
                best = (share, me)
        if best is not None and len(placed) < at_most:
            placed[bundle.name] = best[1]
    return placed


@given(data=st.data())
def test_fewest_bundles_places_as_the_model(data: st.DataObject) -> None:
    drawn = data.draw(st.permutations(["a", "b", "c", "d"]))
    capacities = {name: data.draw(st.sampled_from([1, 50, 100, 300])) for name in drawn}
    channel = ruled_channel(
        [Member(broker=name, capacity=capacity) for name, capacity in capacities.items()],
        {NS: None},
        bundles=8,
    )
    for bundle in channel.view.bundles_of(NS)[:4]:
        owner = channel.incarnation(data.draw(st.sampled_from(drawn)))
        channel.accept(propose.assign(channel.admin(), bundle, owner=owner))
    for name in data.draw(st.lists(st.sampled_from(drawn), unique=True, max_size=4)):
        channel.accept(propose.draining(channel.author(name), channel.broker(name)))
    free = [bundle for bundle in channel.view.bundles_of(NS) if bundle.phase == "free"]
    refusers = st.frozensets(st.sampled_from([channel.incarnation(name) for name in drawn]))
    avoid = {bundle.name: data.draw(refusers) for bundle in free[::2]}
    at_most = data.draw(st.integers(0, len(free) + 1))
    assert model_of(channel.view, free, avoid, at_most) == FewestBundles().place(
        channel.view, free, avoid=avoid, at_most=at_most
    )
