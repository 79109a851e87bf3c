"""Serve the cluster and its policies: Pulsar's clusters, failure domains and isolation policies,
and pins, which are ours.

The only cluster is the one of this log: it begins with its first broker, and its addresses are
those of its brokers. `brokers.balancing.policies` defines the policies;
`brokers.balancing.policy_changes` decides which are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from equipoise.brokers.balancing.named import policy_named
from equipoise.brokers.balancing.policies import (
    FAILURE_DOMAIN,
    ISOLATION,
    MIN_LIMIT_DEFAULT,
    PIN,
    USAGE_THRESHOLD_DEFAULT,
    ClusterPolicies,
    failure_domain_document,
    is_named,
    items_of,
    read_policies,
)
from equipoise.brokers.http.admin.operating import Admin, Call, fact, order, order_with
from equipoise.brokers.http.bodies import FailureDomainBody, IsolationBody, PinBody
from equipoise.brokers.operations.verbs import delete_cluster_policy, set_cluster_policy
from equipoise.channel.core.records import Document
from equipoise.channel.core.view import View

_CLUSTERS: Final = "/admin/v2/clusters"
_CLUSTER: Final = f"{_CLUSTERS}/{{cluster}}"
_DOMAINS: Final = f"{_CLUSTER}/failureDomains"
_ISOLATIONS: Final = f"{_CLUSTER}/namespaceIsolationPolicies"
_PINS: Final = "/admin/v2/policies/pin"

# The fields of Pulsar's `ClusterData`, by the protocols that brokers advertise. Those of TLS are
# left out without TLS.
_ADDRESSES: Final = {
    "serviceUrl": "http",
    "serviceUrlTls": "https",
    "brokerServiceUrl": "pulsar",
    "brokerServiceUrlTls": "pulsar+ssl",
}
_ALWAYS: Final = frozenset({"serviceUrl", "brokerServiceUrl"})


def _key(call: Call, kind: str) -> str:
    return f"{kind}/{call.named('name')}"


def _document(call: Call, kind: str) -> Document:
    return policy_named(call.view, _key(call, kind)).document


def _documents(call: Call, kind: str) -> dict[str, Document]:
    """Return the documents of one kind by name, without the prefix of the kind."""
    view, prefix = call.view, f"{kind}/"
    return {
        key.removeprefix(prefix): view.policies[key].document
        for key in sorted(view.policies)
        if key.startswith(prefix)
    }


def _isolation(document: Document) -> dict[str, object]:
    """Return a policy as Pulsar's `NamespaceIsolationData`."""
    limits = {"min_limit": MIN_LIMIT_DEFAULT, "usage_threshold": USAGE_THRESHOLD_DEFAULT}
    return {
        **{name: items_of(document, name) for name in ("namespaces", "primary", "secondary")},
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {
                name: str(document.get(name, default)) for name, default in limits.items()
            },
        },
    }


def _isolation_of(view: View, policies: ClusterPolicies, broker: str) -> dict[str, object]:
    """Return the policies that name a broker. Of several, the name is that of the last one, and the
    namespaces are those of all.
    """
    named = [
        policy
        for policy in policies.isolations
        if is_named((*policy.primary, *policy.secondary), broker)
    ]
    namespaces = [
        pattern
        for policy in named
        for pattern in items_of(view.policies[policy.name].document, "namespaces")
    ]
    last = named[-1] if named else None
    return {
        "brokerName": broker,
        "policyName": None if last is None else last.name.partition("/")[2],
        "primary": last is not None and is_named(last.primary, broker),
        "namespaceRegex": namespaces,
    }


def _isolated_brokers(call: Call) -> list[dict[str, object]]:
    view = call.view
    policies = read_policies(view)
    return [
        _isolation_of(view, policies, broker)
        for broker in sorted(broker.broker for broker in view.live_brokers())
    ]


def _pin(document: Document) -> dict[str, object]:
    return {
        "namespace": document.get("namespace"),
        "range": document.get("range"),
        "brokers": items_of(document, "brokers"),
    }


def _domain(document: Document) -> dict[str, object]:
    """Return a failure domain as Pulsar's `FailureDomain`."""
    return {"brokers": items_of(document, "brokers")}


def _url_of(addresses: Iterable[str]) -> str:
    """Return one URL with the hosts of all addresses, as Pulsar's clients read it. Only addresses
    of the first one's scheme count.
    """
    parts = [urlsplit(address) for address in sorted(set(addresses)) if address]
    if not parts:
        return ""
    scheme = parts[0].scheme
    return f"{scheme}://{','.join(part.netloc for part in parts if part.scheme == scheme)}"


def _addresses(call: Call) -> dict[str, str]:
    addresses = [
        broker.joined.addresses for broker in call.view.live_brokers() if broker.status == "up"
    ]
    urls = {
        field: _url_of(each.get(name, "") for each in addresses)
        for field, name in _ADDRESSES.items()
    }
    return {field: url for field, url in urls.items() if url or field in _ALWAYS}


class Clusters(Admin):
    """The paths of clusters and failure domains of one worker."""

    rows = (
        fact(
            "clusters",
            _CLUSTERS,
            "List the clusters: this one.",
            lambda call: [call.view.cluster],
        ),
        fact(
            "cluster",
            _CLUSTER,
            "Return the addresses of the cluster: those of its live brokers that do not drain, as"
            " a URL with several hosts.",
            _addresses,
        ),
        fact(
            "domains",
            _DOMAINS,
            "Return all failure domains by name.",
            lambda call: {
                name: _domain(each) for name, each in _documents(call, FAILURE_DOMAIN).items()
            },
        ),
        fact(
            "domain",
            f"{_DOMAINS}/{{name}}",
            "Return one failure domain.",
            lambda call: _domain(_document(call, FAILURE_DOMAIN)),
        ),
        order_with(
            (FailureDomainBody, "an object with brokers, a list of ids"),
            "set_domain",
            f"POST {_DOMAINS}/{{name}}",
            "Set the brokers of one failure domain; 409 if one of them is in another one. It"
            " applies as bundles are placed.",
            lambda call, body: set_cluster_policy(
                call.port,
                _key(call, FAILURE_DOMAIN),
                failure_domain_document(body.brokers or ()),
            ),
        ),
        order(
            "delete_domain",
            f"DELETE {_DOMAINS}/{{name}}",
            "Delete one failure domain. Its brokers are then in the domains that they declare.",
            lambda call: delete_cluster_policy(call.port, _key(call, FAILURE_DOMAIN)),
        ),
    )


class Policies(Admin):
    """The paths of cluster policies of one worker."""

    rows = (
        fact(
            "isolations",
            _ISOLATIONS,
            "Return all isolation policies by name.",
            lambda call: {
                name: _isolation(each) for name, each in _documents(call, ISOLATION).items()
            },
        ),
        fact(
            "isolated_brokers",
            f"{_ISOLATIONS}/brokers",
            "Return the isolation policy of each live broker, sorted by broker, as Pulsar's"
            " `BrokerNamespaceIsolationData`.",
            _isolated_brokers,
        ),
        fact(
            "isolated_broker",
            f"{_ISOLATIONS}/brokers/{{broker}}",
            "Return the isolation policy of a broker, which need not have joined.",
            lambda call: _isolation_of(call.view, read_policies(call.view), call.named("broker")),
        ),
        fact(
            "isolation",
            f"{_ISOLATIONS}/{{name}}",
            "Return one isolation policy.",
            lambda call: _isolation(_document(call, ISOLATION)),
        ),
        order_with(
            (
                IsolationBody,
                "an object with namespaces and primary, lists of regular expressions",
            ),
            "set_isolation",
            f"POST {_ISOLATIONS}/{{name}}",
            "Set one isolation policy. The leader moves bundles that violate it, some at a time.",
            lambda call, body: set_cluster_policy(call.port, _key(call, ISOLATION), body.document),
        ),
        order(
            "delete_isolation",
            f"DELETE {_ISOLATIONS}/{{name}}",
            "Delete one isolation policy.",
            lambda call: delete_cluster_policy(call.port, _key(call, ISOLATION)),
        ),
        fact(
            "pins",
            _PINS,
            "Return all pins by name.",
            lambda call: {name: _pin(each) for name, each in _documents(call, PIN).items()},
        ),
        fact(
            "pin",
            f"{_PINS}/{{name}}",
            "Return one pin.",
            lambda call: _pin(_document(call, PIN)),
        ),
        order_with(
            (PinBody, "an object with namespace and brokers, a list of ids"),
            "set_pin",
            f"POST {_PINS}/{{name}}",
            "Set one pin. The leader moves bundles that violate it, some at a time.",
            lambda call, body: set_cluster_policy(call.port, _key(call, PIN), body.document),
        ),
        order(
            "delete_pin",
            f"DELETE {_PINS}/{{name}}",
            "Delete one pin.",
            lambda call: delete_cluster_policy(call.port, _key(call, PIN)),
        ),
    )
