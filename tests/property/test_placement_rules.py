"""Placement under rules: no hard rule is broken, and anti-affinity groups are spread evenly."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.brokers.balancing.destinations import Destinations, PlacementRules
from equipoise.brokers.balancing.placement import (
    FewestBundles,
    LeastCost,
    LeastLongTermMessageRate,
    LeastResourceUsageWithWeight,
    Placement,
    RoundRobin,
    believed,
)
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.records import Document
from equipoise.shedder.loads import BundleTraffic, Load, Traffic
from tests.channels.folding import Channel
from tests.channels.ruled import Member, bundle_of, give, ruled_channel, set_policy

BROKERS = ("a1", "a2", "b1", "b2", "c1")
NAMESPACES = ("gold/x", "gold/y", "iron/x", "iron/y")
BROKER_PATTERNS = ("a.", "b.", ".1", "a1", "c1", ".*", "nobody")
NAMESPACE_PATTERNS = ("gold/.*", ".*/x", "iron/y", ".*", "nobody/.*")
FIGURES = st.sampled_from(
    [0.0, 0.1, 0.5, 0.84, 0.86, 1.0, 3.0, 1e9, -1.0, 1e300, float("nan"), float("inf")]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    channel: Channel
    policies: Mapping[str, Document]
    loads: Mapping[str, Load]
    rules: PlacementRules


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Document]:
    """A few policies, some of them unreadable."""
    found: dict[str, Document] = {}
    for number in range(draw(st.integers(0, 2))):
        primary = draw(st.lists(st.sampled_from((*BROKER_PATTERNS, "(")), min_size=1, max_size=2))
        secondary = draw(st.lists(st.sampled_from(BROKER_PATTERNS), max_size=1))
        found[f"isolation/{number}"] = {
            "namespaces.0": draw(st.sampled_from(NAMESPACE_PATTERNS)),
            **{f"primary.{place}": pattern for place, pattern in enumerate(primary)},
            **{f"secondary.{place}": pattern for place, pattern in enumerate(secondary)},
            "min_limit": draw(st.integers(0, 3)),
            "usage_threshold": draw(st.sampled_from([0, 50, 100])),
        }
    for number in range(draw(st.integers(0, 2))):
        low, high = sorted(
            draw(
                st.lists(
                    st.sampled_from([0, 0x40000000, 0x80000000, 0xC0000000, HASH_MAX]),
                    min_size=2,
                    max_size=2,
                    unique=True,
                )
            )
        )
        brokers = draw(
            st.lists(st.sampled_from((*BROKERS, "gone")), min_size=1, max_size=3, unique=True)
        )
        found[f"pin/{number}"] = {
            "namespace": draw(st.sampled_from(NAMESPACES)),
            "range": f"0x{low:08x}_0x{high:08x}",
            **{f"brokers.{place}": broker for place, broker in enumerate(brokers)},
        }
    return found


@st.composite
def reports(draw: st.DrawFn) -> dict[str, Load]:
    """Reports of some brokers: true, absurd or missing."""
    traffic = Traffic(bytes_in_per_second=1e3)
    bundles = tuple(
        BundleTraffic(bundle=f"{name}/0x00000000_0x80000000", traffic=traffic, cost=10.0)
        for name in NAMESPACES
    )
    return {
        broker: Load(
            broker=broker,
            at_ms=draw(st.integers(0, 5)),
            average_use=draw(FIGURES),
            average_bytes_per_second=draw(FIGURES),
            traffic=Traffic(messages_in_per_second=draw(FIGURES)),
            bundle_count=draw(st.integers(-1, 9)),
            topics=draw(st.integers(0, 12)),
            cost=10.0 * BROKERS.index(broker) if broker in BROKERS else 0.0,
            bundles=draw(st.sampled_from([(), bundles])),
        )
        for broker in draw(st.lists(st.sampled_from((*BROKERS, "gone")), unique=True))
    }


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A cluster with brokers up, draining and dead, bundles owned and free, and rules about all of
    them.
    """
    members = [
        Member(
            broker=name,
            domain=draw(st.sampled_from([None, "d1", "d2"])),
            version=draw(st.sampled_from(["1.0", "1.1", ""])),
        )
        for name in BROKERS
    ]
    channel = ruled_channel(
        members, {name: draw(st.sampled_from([None, "g", "h"])) for name in NAMESPACES}, bundles=2
    )
    for bundle in sorted(channel.view.bundles)[:: draw(st.integers(1, 4))]:
        give(channel, bundle, draw(st.sampled_from(BROKERS)))
    for broker in BROKERS:
        match draw(st.sampled_from(["up", "up", "up", "draining", "dead"])):
            case "draining":
                channel.accept(propose.draining(channel.author(broker), channel.broker(broker)))
            case "dead":
                channel.die(broker)
    policies = draw(documents())
    for key, document in policies.items():
        set_policy(channel, key, document)
    rules = PlacementRules(
        topics_max=draw(st.sampled_from([10, 50_000])),
        prefer_later_versions=draw(st.booleans()),
        failure_domains=draw(st.booleans()),
    )
    return Case(channel=channel, policies=policies, loads=draw(reports()), rules=rules)


def strategies_of(case: Case) -> tuple[Placement, ...]:
    return (
        FewestBundles(loads=case.loads, rules=case.rules),
        LeastCost(loads=case.loads, rules=case.rules),
        LeastLongTermMessageRate(loads=case.loads, rules=case.rules),
        LeastResourceUsageWithWeight(loads=case.loads, rules=case.rules),
        RoundRobin(rules=case.rules),
    )


def listed(document: Document, name: str) -> list[str]:
    return [str(value) for field, value in document.items() if field.startswith(f"{name}.")]


def matches(patterns: list[str], text: str) -> bool:
    return any(re.fullmatch(pattern, text) for pattern in patterns)


def is_unreadable(document: Document) -> bool:
    return "(" in listed(document, "primary")


def left_by(document: Document, left: Sequence[str], loads: dict[str, Load]) -> list[str]:
    """The brokers that one isolation policy allows: its primaries, and its secondaries while too
    few primaries are available.
    """
    primaries = [broker for broker in left if matches(listed(document, "primary"), broker)]
    threshold = document["usage_threshold"]
    assert isinstance(threshold, int)
    available = [
        name for name in primaries if name not in loads or loads[name].average_use * 100 < threshold
    ]
    helpers = [broker for broker in left if matches(listed(document, "secondary"), broker)]
    return [
        broker
        for broker in left
        if broker in primaries
        or (broker in helpers and len(available) < int(document["min_limit"]))
    ]


def may_have(
    case: Case,
    loads: dict[str, Load],
    broker: str,
    bundle: BundleEntry,
    avoided: Collection[int] = (),
) -> bool:
    """Whether isolation policies and pins allow a broker, among all that take the bundle."""
    fit = [
        name
        for name in BROKERS
        if case.channel.view.brokers[name].status == "up"
        and case.channel.incarnation(name) not in avoided
        and (name not in loads or loads[name].topics < case.rules.topics_max)
    ]
    left = sorted({*fit, broker})
    isolations = {
        key: document
        for key, document in sorted(case.policies.items())
        if key.startswith("isolation/")
    }
    covering = [
        document
        for document in isolations.values()
        if matches(listed(document, "namespaces"), bundle.namespace)
    ]
    if any(is_unreadable(document) for document in covering):
        return False
    for document in covering:
        left = left_by(document, left, loads)
    others = [document for document in isolations.values() if not is_unreadable(document)]
    if not covering and any(matches(listed(document, "primary"), broker) for document in others):
        return False
    for key, document in case.policies.items():
        if key.startswith("pin/") and document["namespace"] == bundle.namespace:
            low, high = (int(end, 16) for end in str(document["range"]).split("_"))
            if (
                low < bundle.high
                and bundle.low < high
                and broker not in listed(document, "brokers")
            ):
                return False
    return broker in left


@settings(max_examples=60, deadline=None)
@given(case=cases(), at_most=st.integers(0, 9))
def test_no_placement_breaks_a_hard_rule(case: Case, at_most: int) -> None:
    """Each strategy also places every bundle that it may place."""
    view = case.channel.view
    free = [
        view.bundles[name] for name in sorted(view.bundles) if view.bundles[name].phase == "free"
    ]
    avoid = {bundle.name: frozenset({case.channel.incarnation("a1")}) for bundle in free[::3]}
    for strategy in strategies_of(case):
        loads = {} if isinstance(strategy, RoundRobin) else dict(believed(case.loads))
        placed = strategy.place(view, free, avoid=avoid, at_most=at_most)

        def fits(broker: str, bundle: BundleEntry, loads: dict[str, Load] = loads) -> bool:
            avoided = avoid.get(bundle.name, ())
            return (
                view.brokers[broker].status == "up"
                and may_have(case, loads, broker, bundle, avoided)
                and (broker not in loads or loads[broker].topics < case.rules.topics_max)
                and case.channel.incarnation(broker) not in avoided
            )

        for name, incarnation in placed.items():
            assert fits(view.live[incarnation].broker, view.bundles[name])
        can = [bundle.name for bundle in free if any(fits(broker, bundle) for broker in BROKERS)]
        assert set(can[:at_most]) <= set(placed)
        assert len(placed) <= at_most


@settings(max_examples=100, deadline=None)
@given(case=cases())
def test_every_broker_is_allowed_or_has_a_reason(case: Case) -> None:
    destinations = Destinations(case.channel.view, loads=case.loads, rules=case.rules)
    for bundle in case.channel.view.bundles.values():
        found = destinations.of(bundle)
        assert sorted(BROKERS) == sorted([*found.allowed, *found.refused])
        assert sorted(found.allowed) == list(found.allowed)
        assert all(found.refused.values())


@settings(max_examples=60, deadline=None)
@given(
    domains=st.lists(st.sampled_from([None, "d1", "d2", "d3"]), min_size=1, max_size=7),
    namespaces=st.integers(1, 12),
    strategy=st.sampled_from(
        [FewestBundles(), LeastLongTermMessageRate(), LeastResourceUsageWithWeight()]
    ),
    one_by_one=st.booleans(),
    data=st.data(),
)
def test_namespaces_of_a_group_are_spread_evenly(
    domains: list[str | None],
    namespaces: int,
    strategy: Placement,
    *,
    one_by_one: bool,
    data: st.DataObject,
) -> None:
    """With one bundle each, the counts of domains, and of the brokers of a domain, differ by at
    most one.
    """
    members = [
        Member(broker=f"b{place}", domain=domain, capacity=data.draw(st.sampled_from([1, 100])))
        for place, domain in enumerate(domains)
    ]
    named = [f"t/ns{number:02d}" for number in range(namespaces)]
    channel = ruled_channel(members, dict.fromkeys(named, "group"))
    batches = [[name] for name in named] if one_by_one else [named]
    for batch in batches:
        placed = strategy.place(
            channel.view, [bundle_of(channel, name) for name in batch], avoid={}, at_most=99
        )
        assert len(batch) == len(placed)
        for bundle, incarnation in placed.items():
            give(channel, bundle, channel.view.live[incarnation].broker)
    held = {
        member.broker: channel.view.held_count(channel.incarnation(member.broker))
        for member in members
    }
    by_domain = Counter({member.domain: 0 for member in members})
    for member in members:
        by_domain[member.domain] += held[member.broker]
        same = [held[other.broker] for other in members if other.domain == member.domain]
        assert max(same) - min(same) <= 1
    assert max(by_domain.values()) - min(by_domain.values()) <= 1
