"""Cluster policies: how documents are read, and which ones are refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from equipoise.brokers.balancing.named import policy_named
from equipoise.brokers.balancing.policies import (
    Isolation,
    Pin,
    host_of,
    is_named,
    isolation_document,
    items_of,
    parse_policy,
    pin_document,
    policies_in,
    tenant_document,
)
from equipoise.brokers.balancing.policy_changes import check_policy_change
from equipoise.brokers.errors import InvalidPolicy, PolicyLeavesNobody
from equipoise.channel.core import propose
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.records import DOCUMENT_ENTRIES_MAX, TEXT_CHARACTERS_MAX, Document
from tests.channels.ruled import ruled_channel, set_policy

GOLD: Document = {"namespaces.0": "gold/.*", "primary.0": "a[0-9]", "secondary.0": "b[0-9]"}


def test_an_isolation_policy_is_read_with_its_defaults() -> None:
    """Patterns are in the order of their numbers."""
    document = {"namespaces.10": "x/.*", "namespaces.2": "gold/.*", "primary.0": "a.*"}
    policy = parse_policy("isolation/gold", document)
    assert isinstance(policy, Isolation)
    assert ["gold/.*", "x/.*"] == [pattern.pattern for pattern in policy.namespaces]
    assert (1, 100, ()) == (policy.min_limit, policy.usage_threshold, policy.secondary)


def test_a_document_is_read_as_it_was_made() -> None:
    """Also with more than nine items."""
    primary = [f"a{number}" for number in range(12)]
    document = isolation_document(
        namespaces=["gold/.*", "x"],
        primary=primary,
        secondary=["b"],
        min_limit=3,
        usage_threshold=80,
    )
    assert (["gold/.*", "x"], primary, ["b"], []) == tuple(
        items_of(document, name) for name in ("namespaces", "primary", "secondary", "brokers")
    )
    policy = parse_policy("isolation/gold", document)
    assert isinstance(policy, Isolation)
    assert (12, 3, 80) == (len(policy.primary), policy.min_limit, policy.usage_threshold)
    pin = parse_policy(
        "pin/p", pin_document(namespace="t/ns", brokers=["b", "a"], range_="0x00000000_0x80000000")
    )
    assert Pin(name="pin/p", namespace="t/ns", low=0, high=0x80000000, brokers=("a", "b")) == pin
    assert parse_policy("pin/p", pin_document(namespace="t/ns", brokers=["a"])) == parse_policy(
        "pin/p", {"namespace": "t/ns", "brokers.0": "a"}
    )


def test_items_that_are_not_text_are_skipped() -> None:
    """An unreadable document is shown as far as possible."""
    assert ["a", "b"] == items_of(
        {"primary.1": "b", "primary.0": "a", "primary.2": 7, "primary": "c", "primary.x": "d"},
        "primary",
    )


def test_a_policy_fits_into_a_record() -> None:
    """Too many entries, and texts that a record cannot hold, are refused."""
    primary = [f"b{number}" for number in range(DOCUMENT_ENTRIES_MAX - 3)]
    assert (
        parse_policy("isolation/x", isolation_document(namespaces=["x"], primary=primary))
        is not None
    )
    with pytest.raises(InvalidPolicy, match="it has 257 entries, and may have 256"):
        parse_policy("isolation/x", isolation_document(namespaces=["x"], primary=[*primary, "b"]))
    for text in ("\udc80", "a\nb", ""):
        with pytest.raises(InvalidPolicy, match="must be a text of printable characters"):
            parse_policy("isolation/x", isolation_document(namespaces=["x"], primary=[text]))
    longest = "r" * TEXT_CHARACTERS_MAX
    assert (
        parse_policy("tenant/acme", tenant_document(admin_roles=[longest], allowed_clusters=["c"]))
        is not None
    )
    for roles, clusters in (([f"{longest}r"], ["c"]), (["r"], [f"{longest}r"])):
        with pytest.raises(InvalidPolicy, match="has 1025 characters, and may have 1024"):
            parse_policy(
                "tenant/acme", tenant_document(admin_roles=roles, allowed_clusters=clusters)
            )


def test_a_policy_is_found_by_its_key() -> None:
    """Other policy records on the channel are not found."""
    channel = ruled_channel(["a"], {"t/gold": None})
    set_policy(channel, "pin/p", pin_document(namespace="t/gold", brokers=["a"]))
    set_policy(channel, "settings", {"a": 1})
    assert {"namespace": "t/gold", "brokers.0": "a"} == policy_named(channel.view, "pin/p").document
    for key in ("settings", "p", "isolation/p", ""):
        with pytest.raises(NotFound, match="there is no policy"):
            policy_named(channel.view, key)


@pytest.mark.parametrize(
    ("namespace", "covered"),
    [("gold/a", True), ("xgold/a", False), ("gold", False), ("golda/x", False)],
)
def test_a_pattern_matches_the_whole_name(namespace: str, covered: bool) -> None:
    policy = parse_policy("isolation/gold", GOLD)
    assert isinstance(policy, Isolation)
    assert covered == policy.covers(namespace)


@pytest.mark.parametrize(
    ("broker", "named", "in_pulsar"),
    [
        ("h1:8080", True, True),
        ("h1:8081", True, True),
        ("h1", True, True),
        ("h12:8080", False, False),
        ("x:9", True, False),
        ("x", False, False),
    ],
)
def test_a_broker_is_named_by_its_host_or_by_its_id(
    broker: str, named: bool, in_pulsar: bool
) -> None:
    """Pulsar matches the host alone, and cannot tell the brokers of one machine apart."""
    policy = parse_policy(
        "isolation/gold", {"namespaces.0": ".*", "primary.0": "h[0-9]", "primary.1": "x:9"}
    )
    assert isinstance(policy, Isolation)
    assert (named, in_pulsar) == (
        is_named(policy.primary, broker),
        is_named(policy.primary, broker, host_only=True),
    )


@pytest.mark.parametrize(
    ("broker", "host"),
    [("h:80", "h"), ("h", "h"), ("[::1]:80", "[::1]"), ("h:x", "h:x"), (":80", "")],
)
def test_the_host_is_the_id_without_a_port(broker: str, host: str) -> None:
    assert host == host_of(broker)


def test_a_pin_is_read() -> None:
    whole = parse_policy("pin/p", {"namespace": "t/ns", "brokers.1": "b", "brokers.0": "c"})
    part = parse_policy(
        "pin/p", {"namespace": "t/ns", "range": "0x40000000_0x80000000", "brokers.0": "b"}
    )
    assert whole == Pin(name="pin/p", namespace="t/ns", low=0, high=HASH_MAX, brokers=("b", "c"))
    assert part == Pin(
        name="pin/p", namespace="t/ns", low=0x40000000, high=0x80000000, brokers=("b",)
    )


def test_a_pin_is_about_every_bundle_that_shares_a_point_with_it() -> None:
    """So it survives splits and merges."""
    pin = parse_policy(
        "pin/p", {"namespace": "t/ns", "range": "0x40000000_0x80000000", "brokers.0": "b"}
    )
    assert isinstance(pin, Pin)
    for bundles, covered in ((1, [True]), (2, [True, False]), (4, [False, True, False, False])):
        channel = ruled_channel(["b"], {"t/ns": None, "t/other": None}, bundles=bundles)
        assert covered == [pin.covers(bundle) for bundle in channel.view.bundles_of("t/ns")]
        assert not any(pin.covers(bundle) for bundle in channel.view.bundles_of("t/other"))


def test_unknown_kinds_are_ignored() -> None:
    assert [None, None] == [parse_policy(key, {"x": 1}) for key in ("limits", "settings/balancing")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    key: str = "isolation/gold"
    document: Document
    problem: str


WRONG = (
    Wrong(document={}, problem="needs at least one of namespaces"),
    Wrong(document={"namespaces.0": ".*"}, problem="needs at least one of primary"),
    Wrong(
        document={**GOLD, "primary.1": "a("},
        problem=r"primary\.1 is 'a\(', which is no regular expression that can be used: missing \)",
    ),
    Wrong(document={**GOLD, "primary.1": "a{1001}"}, problem="no regular expression"),
    Wrong(document={**GOLD, "primary.1": "(" * 120 + ")" * 119}, problem="no regular expression"),
    Wrong(
        document={**GOLD, "primary.1": "a" * 256}, problem="has 256 characters, and may have 255"
    ),
    Wrong(document={**GOLD, "primary.1": ""}, problem="must be a text"),
    Wrong(document={**GOLD, "primary.1": 7}, problem="must be a text"),
    Wrong(document={**GOLD, "primary.01": "a"}, problem=r"it has no field 'primary\.01'"),
    Wrong(document={**GOLD, "primaries.0": "a"}, problem="it has no field"),
    Wrong(document={**GOLD, "min_limit": -1}, problem="an integer from 0 to"),
    Wrong(document={**GOLD, "min_limit": True}, problem="an integer from 0 to"),
    Wrong(document={**GOLD, "min_limit": "1"}, problem="an integer from 0 to"),
    Wrong(document={**GOLD, "usage_threshold": 101}, problem="an integer from 0 to 100"),
    Wrong(key="isolation/", document=GOLD, problem="its name must be"),
    Wrong(key="isolation/a b", document=GOLD, problem="its name must be"),
    Wrong(key="isolation", document=GOLD, problem="its name must be"),
    Wrong(key="pin/p", document={"brokers.0": "b"}, problem="namespace must be the name"),
    Wrong(
        key="pin/p", document={"namespace": "nothing", "brokers.0": "b"}, problem="TENANT/NAMESPACE"
    ),
    Wrong(key="pin/p", document={"namespace": "t/ns"}, problem="needs at least one of brokers"),
    Wrong(
        key="pin/p", document={"namespace": "t/ns", "brokers.0": "admin:x"}, problem=r"brokers\.0"
    ),
    Wrong(
        key="pin/p",
        document={"namespace": "t/ns", "brokers.0": "b", "range": "half"},
        problem="0xLOW_0xHIGH",
    ),
    Wrong(
        key="pin/p",
        document={"namespace": "t/ns", "brokers.0": "b", "range": 3},
        problem="must be a range",
    ),
)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.problem)
def test_an_invalid_document_is_refused(case: Wrong) -> None:
    """The error names the policy, the field, and the problem."""
    with pytest.raises(InvalidPolicy, match=case.problem) as caught:
        parse_policy(case.key, case.document)
    assert case.key == caught.value.policy
    assert "what was set before stays" in str(caught.value)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a|a)*b",
        "([a-z]+-?)+",
        "(a*)*b",
        "(a|b|ab)*c",
        "(.*.*)*x",
        "(" * 60 + "a*" + ")*" * 60 + "b",
    ],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    """Every broker matches it, and a match that takes long costs all of them their leases. In
    Python's `re` each takes for ever.
    """
    policy = parse_policy("isolation/gold", {**GOLD, "namespaces.0": f"t/{pattern}"})
    assert isinstance(policy, Isolation)
    assert not policy.covers(f"t/{'a' * 250}!")


@pytest.mark.parametrize(
    "pattern", [r"(a)\1", "(?!gold).*", "(?<=a)b", "(.{0,1000})" * 20, "((a{100}){100}){100}"]
)
def test_a_pattern_that_needs_more_than_linear_time_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPolicy, match="which is no regular expression that can be used: "):
        parse_policy("isolation/gold", {**GOLD, "primary.1": pattern})


def test_a_pattern_on_the_log_that_cannot_be_used_closes_only_the_namespaces_that_can_be_read() -> (
    None
):
    """The log may hold what no broker of ours would have written."""
    documents: dict[str, Document] = {
        "isolation/hostile": {**GOLD, "namespaces.0": "t/(?=a)a*", "namespaces.1": "t/(a|a)*b"}
    }
    (closed,) = policies_in(documents).closed
    assert [True, False] == [closed.covers(namespace) for namespace in ("t/aab", "t/" + "a" * 200)]


def test_an_unreadable_policy_does_not_affect_others() -> None:
    """It closes the namespaces that can be read from it."""
    documents: dict[str, Document] = {
        "isolation/bad": {"namespaces.0": "gold/.*", "namespaces.1": "(", "primary.0": "("},
        "isolation/good": GOLD,
        "isolation/unknown": {"namespaces.0": "(", "primary.0": "a"},
        "pin/bad": {"namespace": "t/ns", "brokers.0": 7},
    }
    policies = policies_in(documents)
    assert ["isolation/good"] == [policy.name for policy in policies.isolations]
    asked = ("gold/x", "t/ns", "t/nsx", "tenant/ns")
    assert {
        "isolation/bad": [True, False, False, False],
        "isolation/unknown": [False, False, False, False],
        "pin/bad": [False, True, False, False],
    } == {
        closed.name: [closed.covers(namespace) for namespace in asked] for closed in policies.closed
    }


NO_BROKER = "no broker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    name: str
    key: str
    document: Document | None
    nobody_for: str | None
    """The namespace or bundle that is left without a broker; `NO_BROKER` if the policy names no
    broker that is up."""


CHANGES = (
    Change(
        name="fits",
        key="isolation/gold",
        document={"namespaces.0": "t/gold", "primary.0": "a"},
        nobody_for=None,
    ),
    Change(
        name="keeps all brokers",
        key="isolation/gold",
        document={"namespaces.0": "t/gold", "primary.0": ".*"},
        nobody_for="t/iron",
    ),
    Change(
        name="all for all",
        key="isolation/gold",
        document={"namespaces.0": ".*", "primary.0": ".*"},
        nobody_for=None,
    ),
    Change(
        name="names nobody",
        key="isolation/gold",
        document={"namespaces.0": "t/gold", "primary.0": "x"},
        nobody_for=NO_BROKER,
    ),
    Change(
        name="names a secondary only",
        key="isolation/gold",
        document={"namespaces.0": "t/gold", "primary.0": "x", "secondary.0": "b"},
        nobody_for=None,
    ),
    Change(
        name="for a namespace to come",
        key="isolation/new",
        document={"namespaces.0": "t/new", "primary.0": "x"},
        nobody_for=NO_BROKER,
    ),
    Change(
        name="takes the last shared one",
        key="isolation/second",
        document={"namespaces.0": "t/new", "primary.0": "b"},
        nobody_for="t/iron",
    ),
    Change(
        name="pin to one who is there",
        key="pin/p",
        document={"namespace": "t/iron", "brokers.0": "b"},
        nobody_for=None,
    ),
    Change(
        name="pin to one who is not",
        key="pin/p",
        document={"namespace": "t/iron", "brokers.0": "x"},
        nobody_for=NO_BROKER,
    ),
    Change(
        name="pin to one who is kept for others",
        key="pin/p",
        document={"namespace": "t/iron", "range": "0x00000000_0x80000000", "brokers.0": "a"},
        nobody_for="t/iron/0x00000000_0x80000000",
    ),
    Change(
        name="taking away what keeps nobody off",
        key="isolation/first",
        document=None,
        nobody_for=None,
    ),
)


@pytest.mark.parametrize("case", CHANGES, ids=lambda case: case.name)
def test_a_change_must_leave_an_allowed_broker(case: Change) -> None:
    """A change after which no broker may have a bundle is refused, with the first such bundle or
    namespace.
    """
    channel = ruled_channel(["a", "b"], {"t/gold": None, "t/iron": None}, bundles=2)
    if case.name in (
        "takes the last shared one",
        "pin to one who is kept for others",
        "taking away what keeps nobody off",
    ):
        set_policy(channel, "isolation/first", {"namespaces.0": "t/gold", "primary.0": "a"})
    if case.nobody_for is None:
        check_policy_change(channel.view, case.key, case.document)
        return
    with pytest.raises(PolicyLeavesNobody) as caught:
        check_policy_change(channel.view, case.key, case.document)
    assert (case.key, case.nobody_for) == (caught.value.policy, caught.value.subject or NO_BROKER)


def test_removing_a_policy_can_leave_no_broker_too() -> None:
    channel = ruled_channel(["a", "b"], {"t/gold": None, "t/iron": None})
    for name in ("gold", "iron"):
        set_policy(channel, f"isolation/{name}", {"namespaces.0": f"t/{name}", "primary.0": "a|b"})
    with pytest.raises(PolicyLeavesNobody, match="no broker that is up could own t/gold"):
        check_policy_change(channel.view, "isolation/gold", None)


def test_any_policy_may_be_set_while_no_broker_is_up() -> None:
    channel = ruled_channel(["a"], {"t/gold": None})
    channel.accept(propose.draining(channel.author("a"), channel.broker("a")))
    check_policy_change(channel.view, "isolation/gold", GOLD)


def test_an_unknown_kind_is_not_set() -> None:
    """A misspelled kind must not be ignored."""
    channel = ruled_channel(["a"], {"t/gold": None})
    with pytest.raises(InvalidPolicy, match="no such kind"):
        check_policy_change(channel.view, "isolations/gold", GOLD)
