"""Policy violations: what a policy that was set later moves, and what it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from equipoise.brokers.balancing.decisions import STAYS_MAX
from equipoise.brokers.balancing.destinations import Destinations, PlacementRules
from equipoise.brokers.balancing.placement import FewestBundles
from equipoise.brokers.balancing.planning import policy_violations
from equipoise.channel.core import propose
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.records import Document
from equipoise.channel.core.view import View
from equipoise.shedder.loads import BrokerLoad
from equipoise.shedder.plan import Move, Stay
from tests.channels.folding import Channel
from tests.channels.ruled import Member, bundle_of, give, load, ruled_channel, set_policy

NS = "t/ns"
OTHER = "t/other"
TO_B: Document = {"namespaces.0": NS, "primary.0": "b"}


def spread(*members: Member | str, bundles: int = 1) -> Channel:
    """A channel whose first broker owns all bundles of two namespaces."""
    channel = ruled_channel(members, {NS: None, OTHER: None}, bundles=bundles)
    first = members[0] if isinstance(members[0], str) else members[0].broker
    for name in sorted(channel.view.bundles):
        give(channel, name, first)
    return channel


def found(
    channel: Channel,
    *,
    at_most: int = 9,
    resting: tuple[str, ...] = (),
    loads: dict[str, BrokerLoad] | None = None,
) -> tuple[tuple[Move, ...], tuple[Stay, ...]]:
    destinations = Destinations(channel.view, loads=loads)
    return policy_violations(
        destinations, placement=FewestBundles(), at_most=at_most, resting=resting
    )


def test_an_isolation_policy_moves_the_bundles_of_its_namespaces() -> None:
    """The reason names the rule. Other bundles stay."""
    channel = spread("a", "b", "c")
    assert ((), ()) == found(channel)
    set_policy(channel, "isolation/x", TO_B)
    bundle = bundle_of(channel, NS).name
    reason = "a may not have it: isolation/x gives this namespace other brokers"
    assert (
        (Move(bundle=bundle, source="a", destination="b", reason=reason, cause="Unknown"),),
        (),
    ) == found(channel)


def test_a_primary_gives_away_bundles_of_other_namespaces() -> None:
    channel = spread("a", "b")
    set_policy(channel, "isolation/x", {"namespaces.0": NS, "primary.0": "a"})
    (move,), stays = found(channel)
    assert (bundle_of(channel, OTHER).name, "b", ()) == (move.bundle, move.destination, stays)
    assert "a may not have it: isolation/x keeps it for other namespaces" == move.reason


def test_a_pin_moves_what_it_covers() -> None:
    channel = spread("a", "b", bundles=4)
    set_policy(
        channel, "pin/x", {"namespace": NS, "range": "0x40000000_0x80000001", "brokers.0": "b"}
    )
    moves, stays = found(channel)
    assert ([bundle_of(channel, NS, place).name for place in (1, 2)], ()) == (
        [move.bundle for move in moves],
        stays,
    )


def test_pins_of_a_missing_namespace_move_nothing() -> None:
    channel = spread("a", "b")
    set_policy(channel, "pin/x", {"namespace": "t/new", "brokers.0": "b"})
    assert ((), ()) == found(channel)


def test_a_bundle_that_no_other_broker_may_have_stays() -> None:
    """Of very many such bundles, the first ones are named."""
    channel = spread("a", "b", bundles=STAYS_MAX + 1)
    set_policy(channel, "isolation/x", {"namespaces.0": NS, "primary.0": "gone"})
    moves, stays = found(channel)
    assert ((), STAYS_MAX) == (moves, len(stays))
    assert (
        Stay(
            subject=bundle_of(channel, NS).name,
            reason=(
                "a may not have it: isolation/x gives this namespace other brokers; but no other"
                " broker may have it"
            ),
        )
        == stays[0]
    )


def test_an_unreadable_policy_moves_nothing() -> None:
    """No broker may have such a bundle."""
    channel = spread("a", "b")
    set_policy(channel, "isolation/x", {"namespaces.0": NS, "primary.0": "("})
    moves, (stay,) = found(channel)
    assert ((), True) == (moves, "isolation/x cannot be read" in stay.reason)


def test_a_bundle_rests_after_a_move() -> None:
    """Another bundle moves instead."""
    channel = spread("a", "b", bundles=2)
    set_policy(channel, "isolation/x", TO_B)
    first, second = (bundle_of(channel, NS, place).name for place in (0, 1))
    (move,), (stay,) = found(channel, resting=(first,), at_most=1)
    assert (second, first, True) == (
        move.bundle,
        stay.subject,
        stay.reason.endswith("; but it has just moved"),
    )


def test_at_most_so_many_bundles_move() -> None:
    channel = spread("a", "b", bundles=8)
    set_policy(channel, "isolation/x", TO_B)
    moves, stays = found(channel, at_most=3)
    assert ([bundle_of(channel, NS, place).name for place in range(3)], ()) == (
        [move.bundle for move in moves],
        stays,
    )
    assert ((), ()) == found(channel, at_most=0)


def test_a_draining_broker_is_skipped() -> None:
    """A bundle on its way no longer violates a policy at its source."""
    channel = spread("a", "b", "c", bundles=2)
    set_policy(channel, "isolation/x", TO_B)
    bundle = bundle_of(channel, NS)
    channel.accept(propose.transfer(channel.admin(), bundle, destination=channel.incarnation("c")))
    assert [bundle_of(channel, NS, 1).name] == [move.bundle for move in found(channel)[0]]
    channel.accept(propose.draining(channel.author("a"), channel.broker("a")))
    assert ((), ()) == found(channel)


def test_preferences_move_nothing() -> None:
    """Versions, anti-affinity and the topic limit count only when a bundle is placed."""
    channel = ruled_channel(
        [Member(broker="a", version="1.0"), Member(broker="b", version="2.0")],
        {NS: "group", OTHER: "group"},
    )
    for namespace in (NS, OTHER):
        give(channel, bundle_of(channel, namespace).name, "a")
    set_policy(channel, "isolation/x", {"namespaces.0": ".*", "primary.0": ".*"})
    rules = PlacementRules(prefer_later_versions=True, topics_max=1)
    destinations = Destinations(channel.view, loads={"a": load(topics=5)}, rules=rules)
    assert ("b",) == destinations.of(bundle_of(channel, NS)).allowed
    assert ((), ()) == policy_violations(
        destinations, placement=FewestBundles(rules=rules), at_most=9
    )


def test_preferences_that_come_first_may_leave_no_broker() -> None:
    """As in Pulsar. Such a bundle does not take the turn of another."""
    channel = spread("a", "b", Member(broker="c", version="2.0.0"))
    set_policy(channel, "isolation/x", TO_B)
    rules = PlacementRules(pulsar_exact=True, prefer_later_versions=True)
    destinations = Destinations(channel.view, rules=rules)
    moves, (stay,) = policy_violations(
        destinations, placement=FewestBundles(rules=rules), at_most=1
    )
    assert ((), True) == (moves, stay.reason.endswith("; but no other broker may have it"))


def test_a_secondary_gives_a_bundle_back_when_its_primary_has_room() -> None:
    channel = spread("s", "p")
    set_policy(
        channel,
        "isolation/x",
        {"namespaces.0": NS, "primary.0": "p", "secondary.0": "s", "usage_threshold": 80},
    )
    assert ((), ()) == found(channel, loads={"p": load(0.9)})
    (move,), _ = found(channel, loads={"p": load(0.7)})
    assert "s may not have it: isolation/x has 1 primaries available, and needs 1" == move.reason


class Stubborn:
    """A placement that puts everything at one broker."""

    def __init__(self, incarnation: int) -> None:
        self._incarnation = incarnation

    def place(
        self,
        view: View,
        bundles: Sequence[BundleEntry],
        *,
        avoid: Mapping[str, frozenset[int]],
        at_most: int,
    ) -> dict[str, int]:
        """See `Placement.place`."""
        return {bundle.name: self._incarnation for bundle in bundles}


@pytest.mark.parametrize("broker", ["a", "c"])
def test_a_forbidden_choice_of_placement_is_not_followed(broker: str) -> None:
    """If placement chooses a forbidden broker, or the owner, the bundle stays."""
    channel = spread("a", "b", "c")
    set_policy(channel, "isolation/x", TO_B)
    placement = Stubborn(channel.incarnation(broker))
    moves, (stay,) = policy_violations(Destinations(channel.view), placement=placement, at_most=9)
    assert ((), True) == (
        moves,
        stay.reason.endswith("; but placement finds no place among the allowed brokers"),
    )


def test_bound_covers_live_brokers() -> None:
    """Rules may also refuse a draining broker, which takes nothing in any case."""
    channel = ruled_channel(["a", "b", "c", "d"], {NS: None})
    set_policy(channel, "isolation/x", {"namespaces.0": NS, "primary.0": "[ab]"})
    channel.accept(propose.draining(channel.author("b"), channel.broker("b")))
    channel.accept(propose.draining(channel.author("d"), channel.broker("d")))
    bound = Destinations(channel.view).bound(bundle_of(channel, NS))
    told = "isolation/x gives this namespace other brokers"
    assert (("a",), {"c": told, "d": told}) == (bound.allowed, bound.refused)
