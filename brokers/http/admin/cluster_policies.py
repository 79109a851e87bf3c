"""Serve cluster policies: Pulsar's isolation policies, and pins, which are ours.

`brokers.balancing.policies` defines the policies; `brokers.balancing.policy_changes` decides which
are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.named import policy_named
from equipoise.brokers.balancing.policies import (
    ISOLATION,
    MIN_LIMIT_DEFAULT,
    PIN,
    USAGE_THRESHOLD_DEFAULT,
    ClusterPolicies,
    is_named,
    items_of,
    read_policies,
)
from equipoise.brokers.http.admin.operating import Admin
from equipoise.brokers.http.answers import json_answer
from equipoise.brokers.http.bodies import ISOLATION_BODY, PIN_BODY, required_body_of
from equipoise.brokers.http.readiness import ready_view, view_of_cluster
from equipoise.brokers.operations.verbs import delete_cluster_policy, set_cluster_policy
from equipoise.channel.core.records import Document
from equipoise.channel.core.view import View

_ISOLATIONS: Final = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies"
_PINS: Final = "/admin/v2/policies/pin"


class Policies(Admin):
    """The paths of cluster policies of one worker."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get(_ISOLATIONS, self.isolations),
            web.get(f"{_ISOLATIONS}/brokers", self.isolated_brokers),
            web.get(f"{_ISOLATIONS}/brokers/{{broker}}", self.isolated_broker),
            web.get(f"{_ISOLATIONS}/{{name}}", self.isolation),
            web.post(f"{_ISOLATIONS}/{{name}}", self.set_isolation),
            web.delete(f"{_ISOLATIONS}/{{name}}", self.delete_isolation),
            web.get(_PINS, self.pins),
            web.get(f"{_PINS}/{{name}}", self.pin),
            web.post(f"{_PINS}/{{name}}", self.set_pin),
            web.delete(f"{_PINS}/{{name}}", self.delete_pin),
        )

    async def isolations(self, request: web.Request) -> web.Response:
        """Return all isolation policies by name."""
        view = view_of_cluster(self._worker, request)
        return json_answer(
            {name: _isolation(document) for name, document in documents_of(view, ISOLATION).items()}
        )

    async def isolation(self, request: web.Request) -> web.Response:
        """Return one isolation policy."""
        return json_answer(
            _isolation(
                policy_named(
                    view_of_cluster(self._worker, request), key_of(request, ISOLATION)
                ).document
            )
        )

    async def set_isolation(self, request: web.Request) -> web.Response:
        """Set one isolation policy. The leader moves bundles that violate it, some at a time."""
        view_of_cluster(self._worker, request)
        body = await required_body_of(
            request,
            ISOLATION_BODY,
            "an object with namespaces and primary, lists of regular expressions",
        )
        return await self._done(
            set_cluster_policy(self._port(request), key_of(request, ISOLATION), body.document)
        )

    async def delete_isolation(self, request: web.Request) -> web.Response:
        """Delete one isolation policy."""
        view_of_cluster(self._worker, request)
        return await self._done(
            delete_cluster_policy(self._port(request), key_of(request, ISOLATION))
        )

    async def isolated_brokers(self, request: web.Request) -> web.Response:
        """Return the isolation policy of each live broker, sorted by broker, as Pulsar's
        `BrokerNamespaceIsolationData`.
        """
        view = view_of_cluster(self._worker, request)
        policies, brokers = (
            read_policies(view),
            sorted(broker.broker for broker in view.live_brokers()),
        )
        return json_answer([_isolation_of(view, policies, broker) for broker in brokers])

    async def isolated_broker(self, request: web.Request) -> web.Response:
        """Return the isolation policy of a broker, which need not have joined."""
        view = view_of_cluster(self._worker, request)
        return json_answer(_isolation_of(view, read_policies(view), request.match_info["broker"]))

    async def pins(self, _request: web.Request) -> web.Response:
        """Return all pins by name."""
        return json_answer(
            {
                name: _pin(document)
                for name, document in documents_of(ready_view(self._worker), PIN).items()
            }
        )

    async def pin(self, request: web.Request) -> web.Response:
        """Return one pin."""
        return json_answer(
            _pin(policy_named(ready_view(self._worker), key_of(request, PIN)).document)
        )

    async def set_pin(self, request: web.Request) -> web.Response:
        """Set one pin. The leader moves bundles that violate it, some at a time."""
        ready_view(self._worker)
        body = await required_body_of(
            request, PIN_BODY, "an object with namespace and brokers, a list of ids"
        )
        return await self._done(
            set_cluster_policy(self._port(request), key_of(request, PIN), body.document)
        )

    async def delete_pin(self, request: web.Request) -> web.Response:
        """Delete one pin."""
        return await self._done(delete_cluster_policy(self._port(request), key_of(request, PIN)))


def key_of(request: web.Request, kind: str) -> str:
    """Return the key of the policy that a path names."""
    return f"{kind}/{request.match_info['name']}"


def documents_of(view: View, kind: str) -> dict[str, Document]:
    """Return the documents of one kind by name, without the prefix of the kind."""
    prefix = f"{kind}/"
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


def _pin(document: Document) -> dict[str, object]:
    return {
        "namespace": document.get("namespace"),
        "range": document.get("range"),
        "brokers": items_of(document, "brokers"),
    }
