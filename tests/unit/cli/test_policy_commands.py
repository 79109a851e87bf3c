"""`equipoise policies`: what is set, what is refused while the old setting stays, and who may have
a bundle.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.brokers.balancing.policies import isolation_document, pin_document
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import DOCUMENT_ENTRIES_MAX
from tests.channels.folding import NAMESPACE, Channel
from tests.channels.ruled import set_policy
from tests.unit.cli.fabricated import (
    LEFT,
    LEFT_RANGE,
    RIGHT,
    Actors,
    owned_channel,
    run,
    view_of,
    write,
)

ISOLATION = isolation_document(
    namespaces=["tenant/.*"], primary=["a", "b"], secondary=["c"], min_limit=1, usage_threshold=80
)


def ruled() -> Channel:
    """The `owned_channel` with an isolation policy for a and b, and a pin of `RIGHT` to b: 11
    records.
    """
    channel = owned_channel()
    set_policy(channel, "isolation/x", ISOLATION)
    set_policy(
        channel,
        "pin/y",
        pin_document(namespace=NAMESPACE, brokers=["b"], range_="0x80000000_0xffffffff"),
    )
    return channel


@pytest.fixture
def log(tmp_path: Path) -> str:
    return write(ruled().entries, tmp_path)


def policies(log: str, *arguments: str) -> tuple[str, str, int]:
    """What `equipoise policies` prints, and its exit code."""
    result = run("policies", *arguments, log=log)
    return result.stdout, result.stderr, result.exit_code


# --- looking ---

LIST = """\
policy       namespaces  brokers  problem
isolation/x  tenant/.*   a, b     -
pin/y        tenant/ns   b        -
"""

SHOW = """\
policy           isolation/x
namespaces       tenant/.*
brokers          a, b
secondary        c
min limit        1
usage threshold  80
problem          -
last             10
"""


def test_policies_are_listed_and_shown(log: str) -> None:
    assert (LIST, "", 0) == policies(log, "list")
    assert (SHOW, "", 0) == policies(log, "show", "isolation/x")
    shown = json.loads(policies(log, "show", "pin/y", "--json")[0])
    expected = {
        "namespaces": [NAMESPACE],
        "range": "0x80000000_0xffffffff",
        "brokers": ["b"],
        "problem": None,
        "last": 11,
    }
    assert {"policy": "pin/y", **expected} == shown


def test_documents_of_other_kinds_are_no_policies(tmp_path: Path) -> None:
    channel = owned_channel()
    set_policy(channel, "settings/x", {"a": 1})
    url = write(channel.entries, tmp_path)
    assert ("there is no policy\n", "", 0) == policies(url, "list")
    told = (
        "error: there is no policy 'settings/x'; list those that exist: equipoise policies list\n"
    )
    assert ("", told, 2) == policies(url, "show", "settings/x")
    assert ("", told, 2) == policies(url, "delete", "settings/x")
    set_policy(channel, "isolation/x", {"namespaces.0": "(", "primary.0": 7})
    (tmp_path / "broken").mkdir()
    rows = json.loads(policies(write(channel.entries, tmp_path / "broken"), "list", "--json")[0])
    assert [("isolation/x", ["("], [], True)] == [
        (
            row["policy"],
            row["namespaces"],
            row["brokers"],
            "no regular expression" in row["problem"],
        )
        for row in rows
    ]


EXPLAINED = """\
broker  may have it  owner  why not
a       no           no     pin/y keeps this bundle at b
b       yes          yes    -
c       no           no     isolation/x has 2 primaries available, and needs 1
"""


def test_explain_shows_which_brokers_may_own_a_bundle(log: str) -> None:
    assert (EXPLAINED, "", 0) == policies(log, "explain", RIGHT)
    rows = json.loads(policies(log, "explain", LEFT, "--json")[0])
    assert [("a", "yes"), ("b", "yes"), ("c", "no")] == [
        (row["broker"], row["may_have_it"]) for row in rows
    ]
    assert 2 == policies(log, "explain", "tenant/ns/0x0_0x1")[2]


def test_explain_distinguishes_preferences_from_rules(tmp_path: Path) -> None:
    channel = owned_channel()
    channel.create(even_boundaries(1), namespace="tenant/other")
    url = write(channel.entries, tmp_path)
    for namespace in (NAMESPACE, "tenant/other"):
        assert (
            0
            == run(
                "namespaces", "policies", namespace, "--anti-affinity-group", "g", log=url
            ).exit_code
        )
    rows = json.loads(policies(url, "explain", "tenant/other/0x00000000_0xffffffff", "--json")[0])
    assert ["rather not", "rather not", "yes"] == [row["may_have_it"] for row in rows]
    assert "anti-affinity group g" in rows[0]["why_not"]


# --- setting ---


def test_an_isolation_policy_is_set(log: str) -> None:
    words = (
        "--namespaces",
        "shop/.*",
        "--namespaces",
        "tenant/ns",
        "--primary",
        "[ab]",
        "--secondary",
        "c",
        "--min-limit",
        "2",
    )
    told = "accepted at offset 12: isolation/new is set\n"
    assert (told, "", 0) == policies(
        log, "set-isolation", "new", *words, "--usage-threshold", "90", "--as", "erin"
    )
    expected = isolation_document(
        namespaces=["shop/.*", "tenant/ns"],
        primary=["[ab]"],
        secondary=["c"],
        min_limit=2,
        usage_threshold=90,
    )
    assert expected == view_of(log).policies["isolation/new"].document
    assert "admin:erin" in run("channel", "show", "12", log=log).stdout


def test_limits_are_accepted_in_pulsars_form(log: str) -> None:
    words = ("--namespaces", "tenant/.*", "--primary", "a", "--primary", "b")
    pulsars = (
        "--auto-failover-policy-type",
        "min_available",
        "--auto-failover-policy-params",
        "min_limit=2, usage_threshold=80",
    )
    assert 0 == policies(log, "set-isolation", "x", *words, *pulsars)[2]
    assert isolation_document(
        namespaces=["tenant/.*"], primary=["a", "b"], min_limit=2, usage_threshold=80
    ) == (view_of(log).policies["isolation/x"].document)
    document = json.loads(policies(log, "set-isolation", "x", *words, "--json")[0])
    assert (13, 1, 100) == (document["offset"], document["min_limit"], document["usage_threshold"])


@pytest.mark.parametrize(
    "words",
    [
        ("--auto-failover-policy-params", "min_limit"),
        ("--auto-failover-policy-params", "min_limit=-1"),
        ("--auto-failover-policy-params", "min_limit=1,min_limit=2"),
        ("--auto-failover-policy-params", "limit=1"),
        ("--auto-failover-policy-params", ""),
        ("--auto-failover-policy-params", "min_limit=1", "--min-limit", "1"),
        ("--auto-failover-policy-type", "other"),
    ],
    ids=" ".join,
)
def test_invalid_limits_are_usage_errors(words: tuple[str, ...], log: str) -> None:
    assert (
        2
        == policies(
            log, "set-isolation", "x", "--namespaces", "tenant/.*", "--primary", "a", *words
        )[2]
    )
    assert 11 == view_of(log).offset


def test_a_pin_is_set(log: str) -> None:
    assert (
        0
        == policies(
            log,
            "pin",
            "z",
            "--namespace",
            NAMESPACE,
            "--range",
            LEFT_RANGE,
            "--brokers",
            "a",
            "--brokers",
            "b",
        )[2]
    )
    assert 0 == policies(log, "pin", "all", "--namespace", NAMESPACE, "--brokers", "b")[2]
    view = view_of(log)
    assert (
        pin_document(namespace=NAMESPACE, brokers=["a", "b"], range_=LEFT_RANGE)
        == view.policies["pin/z"].document
    )
    assert {"namespace": NAMESPACE, "brokers.0": "b"} == view.policies["pin/all"].document


def test_a_policy_is_deleted_once(log: str) -> None:
    assert ("accepted at offset 12: pin/y is deleted\n", "", 0) == policies(log, "delete", "pin/y")
    assert (2, True) == (
        (told := policies(log, "delete", "pin/y"))[2],
        "there is no policy 'pin/y'" in told[1],
    )
    assert ["isolation/x"] == list(view_of(log).policies)


TOO_MANY = tuple(
    word for number in range(DOCUMENT_ENTRIES_MAX) for word in ("--primary", f"b{number}")
)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("x", "--namespaces", "tenant/.*", "--primary", "a("),
            "primary.0 is 'a(', which is no regular expression that can be used",
        ),
        (
            ("x", "--namespaces", "t", "--primary", "\udc80"),
            "must be a text of printable characters",
        ),
        (
            ("x", "--namespaces", "t", "--primary", "a", "--min-limit", "-1"),
            "min_limit is -1, and must be an integer from 0",
        ),
        (("x/y", "--namespaces", "t", "--primary", "a"), "its name must be 1 to 255 ASCII letters"),
        (("x", "--namespaces", "t", *TOO_MANY), "entries, and may have 256"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_invalid_policy_leaves_the_old_one(words: tuple[str, ...], told: str, log: str) -> None:
    out, error, code = policies(log, "set-isolation", *words)
    assert ("", 2, True) == (
        out,
        code,
        f"error: the policy isolation/{words[0]} cannot be set: " in error,
    ), error
    assert told in error
    assert error.endswith("; what was set before stays\n")
    view = view_of(log)
    assert (11, ISOLATION) == (view.offset, view.policies["isolation/x"].document)


def test_a_failure_domain_is_set_and_shown_with_its_source(log: str) -> None:
    told, error, code = policies(
        log, "set-failure-domain", "rack", "--brokers", "b", "--brokers", "a"
    )
    assert ("accepted at offset 12: failure-domain/rack is set\n", "", 0) == (told, error, code)
    assert ["a", "b"] == json.loads(policies(log, "show", "failure-domain/rack", "--json")[0])[
        "brokers"
    ]
    assert "failure-domain/rack" in policies(log, "list")[0]
    rows = json.loads(run("brokers", "list", "--json", log=log).stdout)
    found = {row["broker"]: (row["failure_domain"], row["failure_domain_source"]) for row in rows}
    assert {
        "a": ("rack", "failure-domain/rack"),
        "b": ("rack", "failure-domain/rack"),
        "c": (None, None),
    } == found
    refused = (
        "error: cannot set failure domain other: broker b is in the failure domain rack; remove it"
        " there first\n"
    )
    assert ("", refused, 1) == policies(log, "set-failure-domain", "other", "--brokers", "b")
    assert 0 == policies(log, "delete", "failure-domain/rack")[2]


def test_a_policy_that_leaves_no_broker_is_refused(log: str) -> None:
    refused = "error: the policy isolation/x was not changed: "
    nobody_is_up = (
        f"{refused}none of the brokers that it names is up; name brokers that are up (equipoise"
        " brokers list), or start them first\n"
    )
    assert ("", nobody_is_up, 1) == policies(
        log, "set-isolation", "x", "--namespaces", "tenant/.*", "--primary", "gone"
    )
    pinned_elsewhere = (
        f"{refused}no broker that is up could own {RIGHT}; name more brokers that are up (equipoise"
        " brokers list)\n"
    )
    assert ("", pinned_elsewhere, 1) == policies(
        log, "set-isolation", "x", "--namespaces", "tenant/.*", "--primary", "a"
    )
    view = view_of(log)
    assert (11, ISOLATION) == (view.offset, view.policies["isolation/x"].document)


# --- what policies refuse ---


def test_a_transfer_that_policies_forbid_is_refused(log: str) -> None:
    move = ("namespaces", "unload", NAMESPACE, "--bundle", LEFT_RANGE, "-d", "c")
    result = run(*move, log=log)
    told = (
        f"error: {LEFT} was not moved: c may not have it: isolation/x has 2 primaries available,"
        f" and needs 1; name a broker that may (equipoise policies explain {LEFT}), or force it:"
        " then it goes there, and balancing brings it back\n"
    )
    assert ("", told, 1) == (result.stdout, result.stderr, result.exit_code)
    assert 11 == view_of(log).offset
    with Actors(log):
        result = run(*move, "--force", log=log)
    assert (f"accepted at offset 12, done at 14: {LEFT} is owned by c, token 14\n", 0) == (
        result.stdout,
        result.exit_code,
    )


def test_force_is_for_transfers_with_a_destination(log: str) -> None:
    result = run("namespaces", "unload", NAMESPACE, "--bundle", LEFT_RANGE, "--force", log=log)
    assert (2, True) == (
        result.exit_code,
        "--force is for a transfer to --destinationBroker" in result.stderr,
    )


# --- anti-affinity groups ---


def test_a_namespace_joins_a_group_and_leaves_it(log: str) -> None:
    change = ("namespaces", "policies", NAMESPACE)
    told = "accepted at offset 12: anti_affinity_group of tenant/ns is orders\n"
    assert told == run(*change, "--anti-affinity-group", "orders", log=log).stdout
    assert {"anti_affinity_group": "orders"} == json.loads(run(*change, "--json", log=log).stdout)[
        "policies"
    ]
    told = "accepted at offset 13: anti_affinity_group of tenant/ns is no longer set\n"
    assert told == run(*change, "--no-anti-affinity-group", log=log).stdout
    assert {} == view_of(log).namespaces[NAMESPACE].policies
    for words in (("--no-anti-affinity-group",), ("--on-channel-loss", "serve")):
        result = run(*change, "--anti-affinity-group", "orders", *words, log=log)
        assert (2, True) == (result.exit_code, "set one policy at a time" in result.stderr)


@pytest.mark.parametrize("group", ["", "\udc80"])
def test_an_invalid_group_is_refused(group: str, log: str) -> None:
    result = run("namespaces", "policies", NAMESPACE, "--anti-affinity-group", group, log=log)
    assert (1, True) == (
        result.exit_code,
        "anti_affinity_group is " in result.stderr,
    ), result.stderr
    assert 11 == view_of(log).offset
