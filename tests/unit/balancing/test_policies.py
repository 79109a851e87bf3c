"""Cluster policies: how documents are read, and which ones are refused."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

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
from equipoise.brokers.errors import InvalidPolicy, Rejected
from equipoise.channel.core import propose
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.records import DOCUMENT_ENTRIES_MAX, TEXT_CHARACTERS_MAX, Document
from tests.channels.ruled import ruled_channel, set_policy

GOLD: Document = {"namespaces.0": "gold/.*", "primary.0": "a[0-9]", "secondary.0": "b[0-9]"}


def test_a_document_is_read_with_its_defaults() -> None:
    """Patterns are in the order of their numbers, brokers in that of their names. Unknown kinds are
    ignored.
    """
    document = {"namespaces.10": "x/.*", "namespaces.2": "gold/.*", "primary.0": "a.*"}
    policy = parse_policy("isolation/gold", document)
    assert isinstance(policy, Isolation)
    assert ["gold/.*", "x/.*"] == [pattern.pattern for pattern in policy.namespaces]
    assert (1, 100, ()) == (policy.min_limit, policy.usage_threshold, policy.secondary)
    pin = {"namespace": "t/ns", "brokers.1": "b", "brokers.0": "c"}
    whole = Pin(name="pin/p", namespace="t/ns", low=0, high=HASH_MAX, brokers=("b", "c"))
    assert [whole, None, None] == [
        parse_policy("pin/p", pin),
        *(parse_policy(key, {"x": 1}) for key in ("limits", "settings/balancing")),
    ]


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
    ("broker", "named"),
    [
        ("h1:8080", True),
        ("h1:8081", True),
        ("h1", True),
        ("h12:8080", False),
        ("x:9", True),
        ("x", False),
    ],
)
def test_a_broker_is_named_by_its_host_or_by_its_id(broker: str, named: bool) -> None:
    """Pulsar matches the host alone, and cannot tell the brokers of one machine apart."""
    policy = parse_policy(
        "isolation/gold", {"namespaces.0": ".*", "primary.0": "h[0-9]", "primary.1": "x:9"}
    )
    assert isinstance(policy, Isolation)
    assert named == is_named(policy.primary, broker)


@pytest.mark.parametrize(
    ("broker", "host"),
    [("h:80", "h"), ("h", "h"), ("[::1]:80", "[::1]"), ("h:x", "h:x"), (":80", "")],
)
def test_the_host_is_the_id_without_a_port(broker: str, host: str) -> None:
    assert host == host_of(broker)


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


PIN: Document = {"namespace": "t/ns", "brokers.0": "b"}
# Needs more than linear time, or is not a regular expression at all.
PATTERNS = (
    *("a{1001}", "(" * 120 + ")" * 119, r"(a)\1", "(?!gold).*", "(?<=a)b"),
    *("(.{0,1000})" * 20, "((a{100}){100}){100}"),
)
NO_PATTERN = "which is no regular expression that can be used: "


DAMAGED: tuple[tuple[Document, str], ...] = (
    (
        {"primary.1": "a("},
        r"primary\.1 is 'a\(', which is no regular expression that can be used: miss",
    ),
    *(({"primary.1": pattern}, NO_PATTERN) for pattern in PATTERNS),
    ({"primary.1": "a" * 256}, "has 256 characters, and may have 255"),
    ({"primary.1": ""}, "must be a text"),
    ({"primary.1": 7}, "must be a text"),
    ({"primary.01": "a"}, r"it has no field 'primary\.01'"),
    ({"primaries.0": "a"}, "it has no field"),
    ({"min_limit": -1}, "an integer from 0 to"),
    ({"min_limit": True}, "an integer from 0 to"),
    ({"min_limit": "1"}, "an integer from 0 to"),
    ({"usage_threshold": 101}, "an integer from 0 to 100"),
)


@pytest.mark.parametrize(
    ("key", "document", "problem"),
    [
        ("isolation/gold", {}, "needs at least one of namespaces"),
        ("isolation/gold", {"namespaces.0": ".*"}, "needs at least one of primary"),
        *(("isolation/gold", {**GOLD, **more}, problem) for more, problem in DAMAGED),
        *((key, GOLD, "its name must be") for key in ("isolation/", "isolation/a b", "isolation")),
        ("pin/p", {"brokers.0": "b"}, "namespace must be the name"),
        ("pin/p", {**PIN, "namespace": "nothing"}, "TENANT/NAMESPACE"),
        ("pin/p", {"namespace": "t/ns"}, "needs at least one of brokers"),
        ("pin/p", {**PIN, "brokers.0": "admin:x"}, r"brokers\.0"),
        ("pin/p", {**PIN, "range": "half"}, "0xLOW_0xHIGH"),
        ("pin/p", {**PIN, "range": 3}, "must be a range"),
    ],
)
def test_an_invalid_document_is_refused(key: str, document: Document, problem: str) -> None:
    """The error names the policy, the field, and the problem."""
    with pytest.raises(InvalidPolicy, match=problem) as caught:
        parse_policy(key, document)
    assert key == caught.value.policy
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


def isolating(namespace: str, primary: str, **more: str) -> Document:
    return {"namespaces.0": namespace, "primary.0": primary, **more}


KEPT = {"isolation/first": isolating("t/gold", "a")}
CHANGES: dict[str, tuple[Mapping[str, Document], str, Document | None, str | None]] = {
    "fits": ({}, "isolation/gold", isolating("t/gold", "a"), None),
    "keeps all brokers": ({}, "isolation/gold", isolating("t/gold", ".*"), "t/iron"),
    "all for all": ({}, "isolation/gold", isolating(".*", ".*"), None),
    "names nobody": ({}, "isolation/gold", isolating("t/gold", "x"), NO_BROKER),
    "names a secondary only": (
        {},
        "isolation/gold",
        {**isolating("t/gold", "x"), "secondary.0": "b"},
        None,
    ),
    "for a namespace to come": ({}, "isolation/new", isolating("t/new", "x"), NO_BROKER),
    "takes the last shared one": (KEPT, "isolation/second", isolating("t/new", "b"), "t/iron"),
    "pin to one who is there": ({}, "pin/p", {"namespace": "t/iron", "brokers.0": "b"}, None),
    "pin to one who is not": ({}, "pin/p", {"namespace": "t/iron", "brokers.0": "x"}, NO_BROKER),
    "pin to one who is kept for others": (
        KEPT,
        "pin/p",
        {"namespace": "t/iron", "range": "0x00000000_0x80000000", "brokers.0": "a"},
        "t/iron/0x00000000_0x80000000",
    ),
    "taking away what keeps nobody off": (KEPT, "isolation/first", None, None),
    "taking away what reserves brokers for one": (
        {f"isolation/{name}": isolating(f"t/{name}", "a|b") for name in ("gold", "iron")},
        "isolation/gold",
        None,
        "t/gold",
    ),
}


@pytest.mark.parametrize(
    ("before", "key", "document", "nobody_for"), CHANGES.values(), ids=CHANGES.keys()
)
def test_a_change_must_leave_an_allowed_broker(
    before: Mapping[str, Document], key: str, document: Document | None, nobody_for: str | None
) -> None:
    """A change after which no broker may have a bundle is refused, with the first such bundle or
    namespace. While no broker is up, any policy may be set.
    """
    channel = ruled_channel(["a", "b"], {"t/gold": None, "t/iron": None}, bundles=2)
    for name, found in before.items():
        set_policy(channel, name, found)
    refusal = nullcontext() if nobody_for is None else pytest.raises(Rejected)
    with refusal as caught:
        check_policy_change(channel.view, key, document)
    if caught is not None and nobody_for is not None:
        assert key == caught.value.key
        told = "none of the brokers that it names is up" if nobody_for == NO_BROKER else nobody_for
        assert told in str(caught.value.problem)
    for broker in "ab":
        channel.accept(propose.draining(channel.author(broker), channel.broker(broker)))
    check_policy_change(channel.view, key, document)


def test_an_unknown_kind_is_not_set() -> None:
    """A misspelled kind must not be ignored."""
    channel = ruled_channel(["a"], {"t/gold": None})
    with pytest.raises(InvalidPolicy, match="no such kind"):
        check_policy_change(channel.view, "isolations/gold", GOLD)
