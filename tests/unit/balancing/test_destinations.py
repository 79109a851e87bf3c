"""Destinations: which brokers may have a bundle, and why each of the others may not."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import dataclass, field, replace

import pytest

from equipoise.brokers.balancing.destinations import Destinations, PlacementRules, version_rank
from equipoise.brokers.balancing.failure_domains import domain_of, domains_in
from equipoise.brokers.balancing.policies import failure_domain_document
from equipoise.channel.core import propose
from equipoise.channel.core.records import Document
from equipoise.shedder.loads import BrokerLoad
from tests.channels.folding import Channel
from tests.channels.ruled import Member, bundle_of, give, load, ruled_channel, set_policy

NS = "t/ns"
EXACT = PlacementRules(pulsar_exact=True)


def allowed(
    channel: Channel,
    namespace: str = NS,
    *,
    rules: PlacementRules | None = None,
    loads: dict[str, BrokerLoad] | None = None,
) -> str:
    """The brokers that may have the first bundle of a namespace, as one text."""
    return " ".join(
        Destinations(channel.view, rules=rules, loads=loads)
        .of(bundle_of(channel, namespace))
        .allowed
    )


def test_without_any_rule_all_that_are_up_may_have_it() -> None:
    channel = ruled_channel(["d", "c", "b", "a"], {NS: None})
    channel.die("b")
    channel.accept(propose.draining(channel.author("c"), channel.broker("c")))
    found = Destinations(channel.view).of(bundle_of(channel, NS))
    assert (("a", "d"), {"b": "it is down", "c": "it drains"}) == (found.allowed, found.refused)


def test_destinations_are_freed_without_the_garbage_collector() -> None:
    """A round pauses it, and its destinations hold a view of 100,000 bundles."""
    channel = ruled_channel(["a", "b"], {NS: None})
    gc.collect()
    gc.disable()
    try:
        destinations = Destinations(channel.view)
        destinations.of(bundle_of(channel, NS), avoid={1})
        left = weakref.ref(destinations)
        del destinations
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("key", ["maintenance/b", "domain-maintenance/rack"])
def test_brokers_in_maintenance_are_refused(key: str) -> None:
    channel = ruled_channel(["a", "b"], {NS: None})
    set_policy(channel, "failure-domain/rack", {"brokers.0": "b"})
    set_policy(channel, key, {"reason": "new disks"})
    destinations, why = (
        Destinations(channel.view),
        {"b": f"it is in maintenance ({key}: new disks)"},
    )
    for found in (
        destinations.of(bundle_of(channel, NS)),
        destinations.bound(bundle_of(channel, NS)),
    ):
        assert (("a",), why) == (found.allowed, found.refused)


def test_brokers_to_avoid_are_refused() -> None:
    channel = ruled_channel(["a", "b"], {NS: None})
    found = Destinations(channel.view).of(bundle_of(channel, NS), avoid={channel.incarnation("a")})
    assert (("b",), ["a"]) == (found.allowed, list(found.refused))


def test_a_broker_at_the_topic_limit_is_refused() -> None:
    """A broker without a report counts as one without topics."""
    channel = ruled_channel(["a", "b", "c"], {NS: None})
    loads = {"a": load(topics=10), "b": load(topics=9)}
    assert "b c" == allowed(channel, rules=PlacementRules(topics_max=10), loads=loads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    versions: tuple[str, ...]
    latest: str
    in_pulsar: str


VERSIONS = (
    Versions(versions=("1.9.0", "1.10.0", "1.10"), latest="b c", in_pulsar="b c"),
    Versions(versions=("2.0.0-rc.1", "2.0.0-rc.2", "2.0.0"), latest="c", in_pulsar="c"),
    Versions(versions=("2.0.0", "2.0.0+build.2", "2.0.0+build.10"), latest="c", in_pulsar="c"),
    Versions(versions=("1.0.0", "", "what?"), latest="a", in_pulsar="a b c"),
    Versions(versions=("", "x", "-"), latest="a b c", in_pulsar="a b c"),
)


@pytest.mark.parametrize("case", VERSIONS, ids=lambda case: str(case.versions))
def test_later_versions_are_preferred_if_configured(case: Versions) -> None:
    """An unreadable version counts as the oldest. In Pulsar it disables the filter."""
    channel = ruled_channel(
        [
            Member(broker=name, version=version)
            for name, version in zip("abc", case.versions, strict=True)
        ],
        {NS: None},
    )
    assert "a b c" == allowed(channel)
    assert case.latest == allowed(channel, rules=PlacementRules(prefer_later_versions=True))
    assert case.in_pulsar == allowed(
        channel, rules=PlacementRules(prefer_later_versions=True, pulsar_exact=True)
    )


def test_versions_have_one_order() -> None:
    """Semantic versions, after all invalid ones."""
    rising = (
        "junk",
        "0.9",
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-2a",
        "1.0.0rc1",
        "1.0.0",
        "1.0.0+1",
        "1.0.1",
        "v1.1",
    )
    ranks = [version_rank(version) for version in rising]
    assert ranks[0] == min(ranks)
    assert ranks[2:5] == sorted(ranks[2:5])
    assert ranks[7:] == sorted(ranks[7:])
    assert max(ranks[2:7]) < ranks[7]


# --- isolation ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolated:
    name: str
    up: str = "p1 p2 s1 s2 x"
    document: Document = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    gold: str
    gold_in_pulsar: str | None = None
    iron: str = "s1 s2 x"


ISOLATED = (
    Isolated(name="primaries suffice", gold="p1 p2"),
    Isolated(name="one primary is enough by default", up="p2 s1 x", gold="p2", iron="s1 x"),
    Isolated(name="no primary is up", up="s1 x", gold="s1", iron="s1 x"),
    Isolated(name="nobody of the policy is up", up="x", gold="", iron="x"),
    Isolated(name="fewer than the limit", document={"min_limit": 3}, gold="p1 p2 s1 s2"),
    Isolated(name="never fails over", up="s1 x", document={"min_limit": 0}, gold="", iron="s1 x"),
    Isolated(
        name="a full primary is not available",
        document={"min_limit": 2, "usage_threshold": 80},
        used={"p1": 0.8},
        gold="p1 p2 s1 s2",
        gold_in_pulsar="p1 p2",
    ),
    Isolated(
        name="a primary below it is",
        document={"min_limit": 2, "usage_threshold": 80},
        used={"p1": 0.79},
        gold="p1 p2",
    ),
    Isolated(
        name="one of which nothing is known is",
        document={"min_limit": 2, "usage_threshold": 1},
        gold="p1 p2",
    ),
    Isolated(
        name="what is no number is full",
        document={"min_limit": 2},
        used={"p1": math.nan},
        gold="p1 p2 s1 s2",
        gold_in_pulsar="p1 p2",
    ),
)


@pytest.mark.parametrize("case", ISOLATED, ids=lambda case: case.name)
def test_an_isolation_policy_keeps_a_namespace_to_its_brokers(case: Isolated) -> None:
    """Its primaries take no other namespaces. Secondaries are shared, and help while too few
    primaries are available.
    """
    channel = ruled_channel(case.up.split(), {"t/gold": None, "t/iron": None})
    set_policy(
        channel,
        "isolation/gold",
        {"namespaces.0": "t/gold", "primary.0": "p.", "secondary.0": "s.", **case.document},
    )
    loads = {name: load(used) for name, used in case.used.items()}
    assert (case.gold, case.iron) == (
        allowed(channel, "t/gold", loads=loads),
        allowed(channel, "t/iron", loads=loads),
    )
    in_pulsar = case.gold if case.gold_in_pulsar is None else case.gold_in_pulsar
    assert (in_pulsar, case.iron) == (
        allowed(channel, "t/gold", loads=loads, rules=EXACT),
        allowed(channel, "t/iron", loads=loads, rules=EXACT),
    )


def test_each_refused_broker_has_a_reason() -> None:
    channel = ruled_channel(["p", "s", "x"], {"t/gold": None, "t/iron": None})
    set_policy(
        channel, "isolation/gold", {"namespaces.0": "t/gold", "primary.0": "p", "secondary.0": "s"}
    )
    destinations = Destinations(channel.view)
    assert {
        "s": "isolation/gold has 1 primaries available, and needs 1",
        "x": "isolation/gold gives this namespace other brokers",
    } == destinations.of(bundle_of(channel, "t/gold")).refused
    assert {"p": "isolation/gold keeps it for other namespaces"} == destinations.of(
        bundle_of(channel, "t/iron")
    ).refused


def test_of_several_isolation_policies_each_must_allow_it() -> None:
    """Pulsar applies one of them; with `pulsar_exact` it is the first by name."""
    channel = ruled_channel(["a", "b", "c"], {NS: None})
    set_policy(channel, "isolation/2", {"namespaces.0": NS, "primary.0": "[bc]"})
    set_policy(channel, "isolation/1", {"namespaces.0": NS, "primary.0": "[ab]"})
    assert ("b", "a b") == (allowed(channel), allowed(channel, rules=EXACT))


def test_no_broker_may_have_the_namespaces_of_an_unreadable_policy() -> None:
    """Pulsar ignores an unreadable policy."""
    channel = ruled_channel(["a", "b"], {NS: None, "t/other": None})
    set_policy(channel, "isolation/bad", {"namespaces.0": NS, "primary.0": "("})
    assert ("", "a b", "a b") == (
        allowed(channel),
        allowed(channel, "t/other"),
        allowed(channel, rules=EXACT),
    )
    assert "cannot be read" in Destinations(channel.view).of(bundle_of(channel, NS)).refused["a"]


# --- pins ---


def test_a_pinned_bundle_waits_for_its_brokers() -> None:
    """Other brokers may be idle. Bundles outside the pin go anywhere."""
    channel = ruled_channel(["a", "b", "c"], {NS: None}, bundles=2)
    set_policy(
        channel,
        "pin/p",
        {"namespace": NS, "range": "0x00000000_0x80000000", "brokers.0": "a", "brokers.1": "b"},
    )
    assert "a b" == allowed(channel)
    channel.die("a")
    channel.die("b")
    found = Destinations(channel.view).of(bundle_of(channel, NS))
    assert ((), "pin/p keeps this bundle at a, b") == (found.allowed, found.refused["c"])
    assert ("c",) == Destinations(channel.view).of(bundle_of(channel, NS, 1)).allowed


def test_of_several_pins_each_must_name_the_broker() -> None:
    """A merged bundle may be covered by two."""
    channel = ruled_channel(["a", "b", "c"], {NS: None})
    set_policy(
        channel,
        "pin/left",
        {"namespace": NS, "range": "0x00000000_0x80000000", "brokers.0": "a", "brokers.1": "b"},
    )
    set_policy(
        channel,
        "pin/right",
        {"namespace": NS, "range": "0x80000000_0xffffffff", "brokers.0": "b", "brokers.1": "c"},
    )
    assert "b" == allowed(channel)


# --- anti-affinity ---

GROUPED = {f"t/ns{number}": "group" for number in range(1, 5)}
DOMAINS = [
    Member(broker=f"broker{number}", domain=f"domain{(number + 1) // 2}") for number in range(1, 5)
]


@pytest.mark.parametrize("rules", [PlacementRules(), EXACT], ids=["ours", "Pulsar's"])
def test_the_worked_table_of_the_documents(rules: PlacementRules) -> None:
    """Four namespaces over two domains of two brokers: the candidates and choices of Pulsar's page
    on anti-affinity.
    """
    channel = ruled_channel(DOMAINS, GROUPED)
    table = (
        ("t/ns1", "broker1 broker2 broker3 broker4", "broker1"),
        ("t/ns2", "broker3 broker4", "broker3"),
        ("t/ns3", "broker2 broker4", "broker2"),
        ("t/ns4", "broker4", "broker4"),
    )
    for namespace, candidates, selected in table:
        assert candidates == allowed(channel, namespace, rules=rules)
        give(channel, bundle_of(channel, namespace).name, selected)


@pytest.mark.parametrize("declared", [None, "elsewhere"])
def test_a_policy_sets_what_a_broker_could_declare(declared: str | None) -> None:
    """With policies, and whatever brokers declare, the choices are those of brokers that declare
    the same domains.
    """
    spaces: dict[str, str | None] = dict.fromkeys(
        (f"t/ns{number}" for number in range(1, 5)), "group"
    )
    by_policy = ruled_channel([replace(member, domain=declared) for member in DOMAINS], spaces)
    set_policy(by_policy, "failure-domain/domain1", failure_domain_document(["broker1", "broker2"]))
    set_policy(by_policy, "failure-domain/domain2", failure_domain_document(["broker3", "broker4"]))
    declaring = ruled_channel(DOMAINS, spaces)
    for namespace in spaces:
        choices = allowed(by_policy, namespace)
        assert allowed(declaring, namespace) == choices
        for channel in (by_policy, declaring):
            give(channel, bundle_of(channel, namespace).name, choices.split()[0])
    assert {"broker1", "broker2", "broker3", "broker4"} == {
        by_policy.view.live[bundle_of(by_policy, name).owner or 0].broker for name in spaces
    }


def test_a_change_of_a_failure_domain_changes_where_a_bundle_goes() -> None:
    channel = ruled_channel(["a", "b", "c"], {"t/one": "group", "t/two": "group"})
    give(channel, bundle_of(channel, "t/one").name, "a")
    assert "b c" == allowed(channel, "t/two")
    set_policy(channel, "failure-domain/rack", failure_domain_document(["a", "b"]))
    assert "c" == allowed(channel, "t/two")
    set_policy(channel, "failure-domain/rack", failure_domain_document(["a", "c"]))
    assert "b" == allowed(channel, "t/two")
    set_policy(channel, "failure-domain/rack", {"brokers.0": "no id"})
    assert "b c" == allowed(channel, "t/two"), "a domain that cannot be read has no effect"


def test_of_two_domains_of_a_broker_the_first_counts() -> None:
    channel = ruled_channel([Member(broker="a", domain="mine"), "b"], {NS: None})
    for name in ("rack2", "rack1"):
        set_policy(channel, f"failure-domain/{name}", failure_domain_document(["a"]))
    domains = domains_in(channel.view)
    assert [("rack1", "failure-domain/rack1"), (None, None)] == [
        domain_of(channel.broker(name), domains) for name in "ab"
    ]
    assert ("mine", "broker") == domain_of(channel.broker("a"), {})


def test_without_failure_domains_namespaces_keep_apart_by_broker() -> None:
    """They may be switched off, or no broker declares one."""
    switched_off = PlacementRules(failure_domains=False)
    for members, rules in (
        (DOMAINS, switched_off),
        ([member.broker for member in DOMAINS], PlacementRules()),
    ):
        channel = ruled_channel(members, GROUPED)
        give(channel, bundle_of(channel, "t/ns1").name, "broker1")
        assert "broker2 broker3 broker4" == allowed(channel, "t/ns2", rules=rules)


def test_groups_are_compared_as_pulsar_compares_them() -> None:
    """Upper and lower case are equal. Namespaces without a group go anywhere."""
    channel = ruled_channel(
        ["a", "b"], {"t/x": "Group", "t/y": "gROUP", "t/z": "other", "t/none": None}
    )
    give(channel, bundle_of(channel, "t/x").name, "a")
    assert ("b", "a b", "a b") == (
        allowed(channel, "t/y"),
        allowed(channel, "t/z"),
        allowed(channel, "t/none"),
    )


def test_a_namespace_keeps_together_in_one_domain() -> None:
    """A domain that fails then affects no other namespace. Pulsar counts bundles, and spreads them
    over all domains.
    """
    channel = ruled_channel(DOMAINS, {"t/ns1": "group", "t/ns2": "group"}, bundles=2)
    give(channel, bundle_of(channel, "t/ns1").name, "broker1")
    second = bundle_of(channel, "t/ns1", 1)
    assert ("broker2",) == Destinations(channel.view).of(second).allowed
    assert ("broker3", "broker4") == Destinations(channel.view, rules=EXACT).of(second).allowed
    give(channel, second.name, "broker2")
    assert "broker3 broker4" == allowed(channel, "t/ns2")


def test_a_namespace_prefers_its_own_broker_to_that_of_another() -> None:
    """If each broker has a namespace of the group, the next bundle goes to its own. Pulsar takes
    any of them.
    """
    channel = ruled_channel(["a", "b"], {"t/ns1": "group", "t/ns2": "group"}, bundles=2)
    give(channel, bundle_of(channel, "t/ns1").name, "a")
    give(channel, bundle_of(channel, "t/ns2").name, "b")
    second = bundle_of(channel, "t/ns2", 1)
    assert ("b",) == Destinations(channel.view).of(second).allowed
    assert ("a", "b") == Destinations(channel.view, rules=EXACT).of(second).allowed


def test_anti_affinity_chooses_among_those_that_hard_rules_leave() -> None:
    """Pulsar applies it first, which may leave no broker."""
    channel = ruled_channel(["a", "b", "x"], {"t/ns1": "group", "t/ns2": "group"})
    set_policy(channel, "isolation/both", {"namespaces.0": "t/.*", "primary.0": "[ab]"})
    for number, broker in ((1, "a"), (2, "b")):
        give(channel, bundle_of(channel, f"t/ns{number}").name, broker)
    channel.accept(
        propose.create_namespace(
            channel.admin(),
            channel.view,
            name="t/ns3",
            boundaries=(0, 0xFFFFFFFF),
            policies={"anti_affinity_group": "group"},
        )
    )
    assert ("a b", "") == (allowed(channel, "t/ns3"), allowed(channel, "t/ns3", rules=EXACT))


def test_a_domain_counts_with_brokers_that_may_not_have_the_bundle() -> None:
    """A domain fails as a whole. Pulsar counts only candidates."""
    channel = ruled_channel(DOMAINS, {"t/ns1": "group", "t/ns2": "group"})
    give(channel, bundle_of(channel, "t/ns1").name, "broker1")
    channel.accept(propose.draining(channel.author("broker1"), channel.broker("broker1")))
    assert "broker3 broker4" == allowed(channel, "t/ns2")
    assert "broker2 broker3 broker4" == allowed(channel, "t/ns2", rules=EXACT)


def test_a_bundle_does_not_count_against_itself() -> None:
    """A bundle may stay where it is, or go where it would be as well placed."""
    channel = ruled_channel(["a", "b"], {"t/ns1": "group", "t/ns2": "group"})
    give(channel, bundle_of(channel, "t/ns1").name, "a")
    assert ("a b", "b") == (allowed(channel, "t/ns1"), allowed(channel, "t/ns1", rules=EXACT))


def test_bundles_placed_in_the_same_batch_count() -> None:
    """Before its record is read."""
    channel = ruled_channel(DOMAINS, GROUPED)
    destinations = Destinations(channel.view)
    destinations.placed(bundle_of(channel, "t/ns1"), "broker1")
    destinations.placed(bundle_of(channel, "t/ns2"), "broker3")
    assert ("broker2", "broker4") == destinations.of(bundle_of(channel, "t/ns3")).allowed
    destinations.placed(bundle_of(channel, "t/ns2"), "broker2")
    assert ("broker3", "broker4") == destinations.of(bundle_of(channel, "t/ns3")).allowed


def test_anti_affinity_gives_reasons() -> None:
    channel = ruled_channel(DOMAINS, {"t/ns1": "group", "t/ns2": "group"}, bundles=2)
    give(channel, bundle_of(channel, "t/ns1").name, "broker1")
    found = Destinations(channel.view)
    assert (
        "its failure domain has 1 other namespaces of the anti-affinity group group, and another"
        " has 0" == found.of(bundle_of(channel, "t/ns2")).refused["broker2"]
    )
    refused = found.of(bundle_of(channel, "t/ns1", 1)).refused
    assert (
        "it has 1 bundles of the anti-affinity group group, and another has 0" == refused["broker1"]
    )
    assert (
        "its failure domain is not the one where this namespace is, and group is a group of"
        " anti-affinity" == refused["broker3"]
    )


def test_bound_namespaces_have_an_isolation_policy_or_a_group() -> None:
    """By an isolation policy, readable or not, or by a group. Pins bind only bundles."""
    groups = {
        "t/both": "group",
        "t/closed": None,
        "t/free": None,
        "t/grouped": "group",
        "t/isolated": None,
        "t/pinned": None,
    }
    channel = ruled_channel(["a"], groups)
    set_policy(
        channel,
        "isolation/good",
        {"namespaces.0": "t/isolated", "namespaces.1": "t/both", "primary.0": "a"},
    )
    set_policy(channel, "isolation/bad", {"namespaces.0": "t/closed"})
    set_policy(channel, "pin/p", {"namespace": "t/pinned", "brokers.0": "a"})
    expected = {
        "t/both": "isolation",
        "t/closed": "isolation",
        "t/grouped": "anti-affinity",
        "t/isolated": "isolation",
    }
    assert expected == Destinations(channel.view).bound_namespaces
