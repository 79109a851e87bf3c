"""Isolation policies and anti-affinity groups keep bundles where Pulsar would."""

from __future__ import annotations

import pytest

from equipoise.brokers.balancing.policies import Isolation
from equipoise.channel.core.errors import CallerError
from equipoise.pulsar_cluster.placement_rules import (
    ClusterPolicies,
    PlacementRules,
    parse_isolation,
)
from tests.unit.pulsar_cluster.made_clusters import names

BROKERS = ("a-1:80", "a-2:80", "b-1:80", "b-2:80")


def isolation(**fields: object) -> Isolation:
    document = {"namespaces": ["bank/.*"], "primary": ["a-.*"], "secondary": ["b-1"]} | fields
    return parse_isolation("bank", document)


def allowed(
    policies: ClusterPolicies,
    bundle: str,
    owners: dict[str, str] | None = None,
    brokers: tuple[str, ...] = BROKERS,
) -> list[str]:
    return list(PlacementRules(policies, brokers, owners or {}).candidates(bundle).allowed)


def test_a_namespace_with_a_policy_uses_its_primaries_and_others_use_the_rest() -> None:
    policies = ClusterPolicies(isolations=(isolation(),))
    assert ["a-1:80", "a-2:80"] == allowed(policies, "bank/accounts/0x00000000_0xffffffff")
    assert ["b-1:80", "b-2:80"] == allowed(policies, "public/default/0x00000000_0xffffffff")
    refused = (
        PlacementRules(policies, BROKERS, {})
        .candidates("bank/accounts/0x00000000_0xffffffff")
        .refused
    )
    assert "the isolation policy bank has 2 primaries live, and needs 1" == refused["b-1:80"]
    assert "the isolation policy bank gives this namespace other brokers" == refused["b-2:80"]


def test_too_few_primaries_let_the_secondaries_in() -> None:
    policies = ClusterPolicies(
        isolations=(isolation(auto_failover_policy={"parameters": {"min_limit": "2"}}),)
    )
    assert ["a-1:80", "b-1:80"] == allowed(
        policies, "bank/accounts/0x00000000_0xffffffff", brokers=("a-1:80", "b-1:80", "b-2:80")
    )


def test_patterns_match_the_host_alone_and_whole() -> None:
    policies = ClusterPolicies(
        isolations=(isolation(primary=["a", "b-2:80", "b-2"], secondary=[]),)
    )
    assert ["b-2:80"] == allowed(policies, "bank/accounts/0x00000000_0xffffffff")


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (7, "it is not a JSON object"),
        ({"primary": ["("]}, "primary has a pattern that Python cannot read"),
        ({"secondary": [3]}, "secondary has a pattern"),
        ({"namespaces": "x"}, "namespaces is not a list"),
        ({"auto_failover_policy": {"parameters": {"min_limit": "few"}}}, "min_limit is 'few'"),
    ],
)
def test_a_policy_that_cannot_be_read_is_an_error(document: object, told: str) -> None:
    with pytest.raises(CallerError, match=r"^the isolation policy 'x' cannot be read") as raised:
        parse_isolation("x", document)
    assert told in str(raised.value)


def test_a_group_spreads_over_the_brokers_with_the_fewest() -> None:
    """The bundle that is to move is not counted: one bundle on each of three brokers stays where it
    is.
    """
    policies = ClusterPolicies(groups={"t/one": "g", "t/two": "g", "t/three": "g"})
    one, two, three = (names(1, namespace)[0] for namespace in policies.groups)
    owners = {one: "a-1:80", two: "a-2:80", three: "b-1:80"}
    assert ["a-1:80", "b-2:80"] == allowed(policies, one, owners)
    assert ["a-1:80"] == allowed(policies, one, owners, brokers=BROKERS[:3])
    rules = PlacementRules(policies, BROKERS, owners)
    rules.move(two, "b-2:80")
    assert ("a-1:80", "a-2:80") == rules.candidates(one).allowed


def test_a_group_spreads_over_failure_domains_first() -> None:
    policies = ClusterPolicies(
        groups={"t/one": "g", "t/two": "g"},
        domains=dict(zip(BROKERS, ("x", "x", "y", "y"), strict=True)),
    )
    one, two = (names(1, namespace)[0] for namespace in policies.groups)
    assert ["b-1:80", "b-2:80"] == allowed(policies, one, {one: "b-1:80", two: "a-2:80"})


def test_a_broker_with_too_many_topics_takes_nothing() -> None:
    rules = PlacementRules(
        ClusterPolicies(topics_max=10), BROKERS, {}, topics={"a-1:80": 10, "a-2:80": 9}
    )
    assert "a-1:80" not in rules.candidates(names(1)[0]).allowed


def test_the_kind_of_policy_is_known() -> None:
    policies = ClusterPolicies(isolations=(isolation(),), groups={"t/one": "g"})
    assert ["isolation", "anti-affinity", None] == [
        policies.kind_of(name) for name in ("bank/x", "t/one", "t/two")
    ]
