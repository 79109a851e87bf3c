"""Destinations: which brokers may have a bundle, and why each of the others may not."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from equipoise.brokers.balancing.destinations import Destinations, PlacementRules, version_rank
from equipoise.brokers.balancing.policies import domain_of, domains_in, failure_domain_document
from equipoise.channel.core import propose
from equipoise.channel.core.records import Document
from equipoise.shedder.loads import Load
from tests.channels.folding import Channel
from tests.channels.ruled import Member, bundle_of, give, load, ruled_channel, set_policy

NS = "t/ns"
GOLD, IRON = "t/gold", "t/iron"
TWO: Mapping[str, str | None] = {"t/one": "group", "t/two": "group"}
DOMAINS = [
    Member(broker=f"broker{number}", domain=f"domain{(number + 1) // 2}") for number in range(1, 5)
]


def allowed(channel: Channel, asked: str = NS, *, rules: PlacementRules | None = None) -> str:
    """The brokers that may have a bundle, as one text. `t/ns 1` asks about the second one."""
    namespace, _, place = asked.partition(" ")
    bundle = bundle_of(channel, namespace, int(place or 0))
    return " ".join(Destinations(channel.view, rules=rules).of(bundle).allowed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A cluster, and who may have which bundle.

    `held`: the owners of bundles. `away`: brokers that drain.
    """

    name: str
    up: Sequence[Member | str]
    spaces: Mapping[str, str | None] = field(default_factory=lambda: {NS: None})
    bundles: int = 1
    policies: Mapping[str, Document] = field(default_factory=dict)
    held: Mapping[str, str] = field(default_factory=dict)
    away: Sequence[str] = ()
    loads: Mapping[str, Load] = field(default_factory=dict)
    rules: PlacementRules = field(default_factory=PlacementRules)
    expected: Mapping[str, str]

    def channel(self) -> Channel:
        """The cluster."""
        channel = ruled_channel(self.up, self.spaces, bundles=self.bundles)
        for key, document in self.policies.items():
            set_policy(channel, key, document)
        for asked, owner in self.held.items():
            namespace, _, place = asked.partition(" ")
            give(channel, bundle_of(channel, namespace, int(place or 0)).name, owner)
        for broker in self.away:
            channel.accept(propose.draining(channel.author(broker), channel.broker(broker)))
        return channel


def isolated(
    name: str,
    up: str,
    gold: str,
    iron: str,
    *,
    used: Mapping[str, float] | None = None,
    **more: int,
) -> Case:
    """A policy whose primaries take no other namespaces, and whose secondaries are shared."""
    policy: Document = {"namespaces.0": GOLD, "primary.0": "p.", "secondary.0": "s.", **more}
    return Case(
        name=name,
        up=up.split(),
        spaces={GOLD: None, IRON: None},
        policies={"isolation/gold": policy},
        loads={broker: load(use) for broker, use in (used or {}).items()},
        expected={GOLD: gold, IRON: iron},
    )


ALL, SHARED = "p1 p2 s1 s2 x", "s1 s2 x"
LEFT_PIN: Document = {
    "namespace": NS,
    "range": "0x00000000_0x80000000",
    "brokers.0": "a",
    "brokers.1": "b",
}
CASES = (
    Case(
        name="without a report a broker counts as one without topics",
        up="abc",
        loads={"a": load(topics=10), "b": load(topics=9)},
        rules=PlacementRules(topics_max=10),
        expected={NS: "b c"},
    ),
    isolated("primaries suffice", ALL, "p1 p2", SHARED),
    isolated("one primary is enough by default", "p2 s1 x", "p2", "s1 x"),
    isolated("no primary is up", "s1 x", "s1", "s1 x"),
    isolated("nobody of the policy is up", "x", "", "x"),
    isolated("fewer than the limit", ALL, "p1 p2 s1 s2", SHARED, min_limit=3),
    isolated("never fails over", "s1 x", "", "s1 x", min_limit=0),
    isolated(
        "a full primary is not available",
        ALL,
        "p1 p2 s1 s2",
        SHARED,
        used={"p1": 0.8},
        min_limit=2,
        usage_threshold=80,
    ),
    isolated(
        "a primary below it is",
        ALL,
        "p1 p2",
        SHARED,
        used={"p1": 0.79},
        min_limit=2,
        usage_threshold=80,
    ),
    isolated(
        "one of which nothing is known is", ALL, "p1 p2", SHARED, min_limit=2, usage_threshold=1
    ),
    isolated(
        "what is no number is full",
        ALL,
        "p1 p2 s1 s2",
        SHARED,
        used={"p1": math.nan},
        min_limit=2,
    ),
    Case(
        name="each of several policies must allow it",
        up="abc",
        policies={
            "isolation/2": {"namespaces.0": NS, "primary.0": "[bc]"},
            "isolation/1": {"namespaces.0": NS, "primary.0": "[ab]"},
        },
        expected={NS: "b"},
    ),
    Case(
        name="an unreadable policy closes its namespaces",
        up="ab",
        spaces={NS: None, "t/other": None},
        policies={"isolation/bad": {"namespaces.0": NS, "primary.0": "("}},
        expected={NS: "", "t/other": "a b"},
    ),
    Case(
        name="a pinned bundle waits for its brokers, and others go anywhere",
        up="abc",
        bundles=2,
        policies={"pin/p": LEFT_PIN},
        away="ab",
        expected={NS: "", f"{NS} 1": "c"},
    ),
    Case(
        name="each of several pins must name the broker",
        up="abc",
        policies={
            "pin/left": LEFT_PIN,
            "pin/right": {
                "namespace": NS,
                "range": "0x80000000_0xffffffff",
                "brokers.0": "b",
                "brokers.1": "c",
            },
        },
        expected={NS: "b"},
    ),
    Case(
        name="without failure domains namespaces keep apart by broker",
        up=[member.broker for member in DOMAINS],
        spaces=TWO,
        held={"t/one": "broker1"},
        expected={"t/two": "broker2 broker3 broker4"},
    ),
    Case(
        name="failure domains may be switched off",
        up=DOMAINS,
        spaces=TWO,
        held={"t/one": "broker1"},
        rules=PlacementRules(failure_domains=False),
        expected={"t/two": "broker2 broker3 broker4"},
    ),
    Case(
        name="groups are compared without case, as in Pulsar",
        up="ab",
        spaces={"t/x": "Group", "t/y": "gROUP", "t/z": "other", "t/none": None},
        held={"t/x": "a"},
        expected={"t/y": "b", "t/z": "a b", "t/none": "a b"},
    ),
    Case(
        name="a namespace keeps together in one domain",
        up=DOMAINS,
        spaces=TWO,
        bundles=2,
        held={"t/one": "broker1"},
        expected={"t/one 1": "broker2"},
    ),
    Case(
        name="a namespace prefers its own broker to that of another",
        up="ab",
        spaces=TWO,
        bundles=2,
        held={"t/one": "a", "t/two": "b"},
        expected={"t/two 1": "b"},
    ),
    Case(
        name="anti-affinity chooses among those that hard rules leave",
        up="abx",
        spaces={**TWO, "t/three": "group"},
        policies={"isolation/both": {"namespaces.0": "t/.*", "primary.0": "[ab]"}},
        held={"t/one": "a", "t/two": "b"},
        expected={"t/three": "a b"},
    ),
    Case(
        name="a domain counts as a whole",
        up=DOMAINS,
        spaces=TWO,
        held={"t/one": "broker1"},
        away=["broker1"],
        expected={"t/two": "broker3 broker4"},
    ),
    Case(
        name="a bundle does not count against itself",
        up="ab",
        spaces=TWO,
        held={"t/one": "a"},
        expected={"t/one": "a b"},
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_who_may_have_a_bundle(case: Case) -> None:
    channel = case.channel()
    for asked, expected in case.expected.items():
        namespace, _, place = asked.partition(" ")
        bundle = bundle_of(channel, namespace, int(place or 0))
        found = Destinations(channel.view, rules=case.rules, loads=case.loads).of(bundle)
        assert expected == " ".join(found.allowed)


DRAINED = Case(name="drained", up="abcd", away="c", expected={})
PRIMARIES: Document = {"namespaces.0": GOLD, "primary.0": "p", "secondary.0": "s"}
GOLD_IRON = Case(
    name="gold and iron",
    up="psx",
    spaces={GOLD: None, IRON: None},
    policies={"isolation/gold": PRIMARIES},
    expected={},
)
GROUPED = Case(
    name="grouped", up=DOMAINS, spaces=TWO, bundles=2, held={"t/one": "broker1"}, expected={}
)


@pytest.mark.parametrize(
    ("case", "asked", "refused"),
    [
        (DRAINED, NS, {"b": "it is down", "c": "it drains"}),
        (
            GOLD_IRON,
            GOLD,
            {
                "s": "isolation/gold has 1 primaries available, and needs 1",
                "x": "isolation/gold gives this namespace other brokers",
            },
        ),
        (GOLD_IRON, IRON, {"p": "isolation/gold keeps it for other namespaces"}),
        (
            Case(name="pinned", up="abc", policies={"pin/p": LEFT_PIN}, expected={}),
            NS,
            {"c": "pin/p keeps this bundle at a, b"},
        ),
        (
            GROUPED,
            "t/two",
            {
                "broker2": "its failure domain has 1 other namespaces of the anti-affinity group"
                " group, and another has 0"
            },
        ),
        (
            GROUPED,
            "t/one 1",
            {
                "broker1": "it has 1 bundles of the anti-affinity group group, and another has 0",
                "broker3": "its failure domain is not the one where this namespace is, and group is"
                " a group of anti-affinity",
            },
        ),
    ],
)
def test_each_refused_broker_has_a_reason(
    case: Case, asked: str, refused: Mapping[str, str]
) -> None:
    channel = case.channel()
    if case is DRAINED:
        channel.die("b")
    namespace, _, place = asked.partition(" ")
    found = Destinations(channel.view).of(bundle_of(channel, namespace, int(place or 0))).refused
    assert refused.items() <= found.items()


def test_destinations_are_freed_without_the_garbage_collector() -> None:
    """A round pauses it, and its destinations hold a view of 100,000 bundles."""
    channel = ruled_channel(["a", "b"], {NS: None})
    gc.collect()
    gc.disable()
    try:
        destinations = Destinations(channel.view)
        assert ("b",) == destinations.of(
            bundle_of(channel, NS), avoid={channel.incarnation("a")}
        ).allowed
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
    destinations, bundle = Destinations(channel.view), bundle_of(channel, NS)
    for found in (destinations.of(bundle), destinations.bound(bundle)):
        assert (("a",), {"b": f"it is in maintenance ({key}: new disks)"}) == (
            found.allowed,
            found.refused,
        )


@pytest.mark.parametrize(
    ("versions", "latest"),
    [
        (("1.9.0", "1.10.0", "1.10"), "b c"),
        (("2.0.0-rc.1", "2.0.0-rc.2", "2.0.0"), "c"),
        (("2.0.0", "2.0.0+build.2", "2.0.0+build.10"), "c"),
        (("1.0.0", "", "what?"), "a"),
        (("", "x", "-"), "a b c"),
    ],
)
def test_later_versions_are_preferred_if_configured(versions: tuple[str, ...], latest: str) -> None:
    """An unreadable version counts as the oldest."""
    channel = ruled_channel(
        [
            Member(broker=name, version=version)
            for name, version in zip("abc", versions, strict=True)
        ],
        {NS: None},
    )
    later = PlacementRules(prefer_later_versions=True)
    assert ("a b c", latest) == (allowed(channel), allowed(channel, rules=later))


def test_versions_have_one_order() -> None:
    """Semantic versions, after all invalid ones."""
    invalid, *alphas, odd, early, release, built, later, last = map(
        version_rank,
        (
            "junk",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-2a",
            "1.0.0rc1",
            "1.0.0",
            "1.0.0+1",
            "1.0.1",
            "v1.1",
        ),
    )
    assert sorted(alphas) == alphas
    assert invalid < min(alphas)
    assert max(*alphas, odd, early) < release <= built < later < last


def test_the_worked_table_of_the_documents() -> None:
    """Four namespaces over two domains of two brokers: the candidates and choices of Pulsar's page
    on anti-affinity.
    """
    channel = ruled_channel(DOMAINS, {f"t/ns{number}": "group" for number in range(1, 5)})
    for namespace, candidates, selected in (
        ("t/ns1", "broker1 broker2 broker3 broker4", "broker1"),
        ("t/ns2", "broker3 broker4", "broker3"),
        ("t/ns3", "broker2 broker4", "broker2"),
        ("t/ns4", "broker4", "broker4"),
    ):
        assert candidates == allowed(channel, namespace)
        give(channel, bundle_of(channel, namespace).name, selected)


def test_a_change_of_a_failure_domain_changes_where_a_bundle_goes() -> None:
    """Whatever brokers declare. A domain that cannot be read has no effect."""
    channel = ruled_channel(["a", "b", "c"], TWO)
    give(channel, bundle_of(channel, "t/one").name, "a")
    for document, expected in (
        (failure_domain_document(["a", "b"]), "c"),
        (failure_domain_document(["a", "c"]), "b"),
        ({"brokers.0": "no id"}, "b c"),
    ):
        set_policy(channel, "failure-domain/rack", document)
        assert expected == allowed(channel, "t/two")


def test_of_two_domains_of_a_broker_the_first_counts() -> None:
    channel = ruled_channel([Member(broker="a", domain="mine"), "b"], {NS: None})
    for name in ("rack2", "rack1"):
        set_policy(channel, f"failure-domain/{name}", failure_domain_document(["a"]))
    domains = domains_in(channel.view)
    assert [("rack1", "failure-domain/rack1"), (None, None)] == [
        domain_of(channel.broker(name), domains) for name in "ab"
    ]
    assert ("mine", "broker") == domain_of(channel.broker("a"), {})


def test_bundles_placed_in_the_same_batch_count() -> None:
    """Before its record is read."""
    channel = ruled_channel(DOMAINS, {f"t/ns{number}": "group" for number in range(1, 5)})
    destinations = Destinations(channel.view)
    destinations.placed(bundle_of(channel, "t/ns1"), "broker1")
    destinations.placed(bundle_of(channel, "t/ns2"), "broker3")
    assert ("broker2", "broker4") == destinations.of(bundle_of(channel, "t/ns3")).allowed
    destinations.placed(bundle_of(channel, "t/ns2"), "broker2")
    assert ("broker3", "broker4") == destinations.of(bundle_of(channel, "t/ns3")).allowed


def test_bound_namespaces_have_an_isolation_policy_or_a_group() -> None:
    """By an isolation policy, readable or not, or by a group. Pins bind only bundles."""
    spaces = dict.fromkeys(("t/closed", "t/free", "t/isolated", "t/pinned"))
    channel = ruled_channel(["a"], {**spaces, "t/both": "group", "t/grouped": "group"})
    for key, document in (
        ("good", {"namespaces.0": "t/isolated", "namespaces.1": "t/both", "primary.0": "a"}),
        ("bad", {"namespaces.0": "t/closed"}),
    ):
        set_policy(channel, f"isolation/{key}", document)
    set_policy(channel, "pin/p", {"namespace": "t/pinned", "brokers.0": "a"})
    isolations = dict.fromkeys(("t/both", "t/closed", "t/isolated"), "isolation")
    assert {
        **isolations,
        "t/grouped": "anti-affinity",
    } == Destinations(channel.view).bound_namespaces


def test_only_programs_that_serve_a_namespace_may_have_its_bundles() -> None:
    """Also where a policy or a preference would choose another broker."""
    channel = Channel()
    channel.genesis()
    channel.create(namespace=GOLD)
    channel.create(namespace=IRON)
    channel.join("all")
    channel.join("gold", serves=[GOLD])
    channel.join("none", serves=[])
    destinations = Destinations(channel.view)
    gold, iron = (destinations.of(bundle_of(channel, each)) for each in (GOLD, IRON))
    assert (("all", "gold"), ("all",)) == (gold.allowed, iron.allowed)
    why = dict.fromkeys(("gold", "none"), f"its program does not serve {IRON}")
    assert why == iron.refused == destinations.bound(bundle_of(channel, IRON)).refused
    assert ["none"] == list(destinations.bound(bundle_of(channel, GOLD)).refused)
    set_policy(channel, "isolation/x", {"namespaces.0": IRON, "primary.0": "gold"})
    assert "" == allowed(channel, IRON)
    assert "all" == allowed(channel, GOLD)
