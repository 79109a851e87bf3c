"""Serve Pulsar's policies for the topics of a namespace, and its properties.

One table has the path of each policy; `brokers.balancing.topic_policies` defines them. The brokers
that serve the topics apply a change as soon as they have read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from pydantic import TypeAdapter

from equipoise.brokers.balancing import topic_policies as policies
from equipoise.brokers.balancing.named import namespace_named
from equipoise.brokers.balancing.topic_policies import (
    TopicPolicy,
    misfit,
    properties_in,
    property_policy,
)
from equipoise.brokers.errors import invalid_request
from equipoise.brokers.http.admin.namespaces import NAMESPACE_PATH
from equipoise.brokers.http.admin.operating import Admin
from equipoise.brokers.http.answers import done, json_answer, text_answer
from equipoise.brokers.http.bodies import namespace_of, required_body_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.operations import verbs
from equipoise.brokers.pulsar.server import Server
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.entries import NamespaceEntry
from equipoise.channel.core.records import DOCUMENT_ENTRIES_MAX

_PROPERTY: Final = f"{NAMESPACE_PATH}/property/{{key}}"
_PROPERTIES_BODY: Final = TypeAdapter[dict[str, str] | None](dict[str, str] | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPath:
    """The last part of the path of a policy, and Pulsar's methods for it. `expected` describes the
    body of a change.
    """

    policy: TopicPolicy
    expected: str
    methods: str = "GET POST DELETE"


_COUNT: Final = "a number from 0, which is no limit"
_FLAG: Final = "true or false"
_DISPATCH: Final = (
    '{"dispatchThrottlingRateInMsg": N, "dispatchThrottlingRateInByte": N, "ratePeriodInSecond":'
    " N}, with -1 for no limit"
)

PATHS: Final[Mapping[str, PolicyPath]] = {
    "maxProducersPerTopic": PolicyPath(policy=policies.MAX_PRODUCERS, expected=_COUNT),
    "maxConsumersPerTopic": PolicyPath(policy=policies.MAX_CONSUMERS, expected=_COUNT),
    "maxConsumersPerSubscription": PolicyPath(
        policy=policies.MAX_SUBSCRIPTION_CONSUMERS, expected=_COUNT
    ),
    "maxSubscriptionsPerTopic": PolicyPath(policy=policies.MAX_SUBSCRIPTIONS, expected=_COUNT),
    "maxTopicsPerNamespace": PolicyPath(policy=policies.MAX_TOPICS, expected=_COUNT),
    "publishRate": PolicyPath(
        policy=policies.PUBLISH_RATE,
        expected=(
            '{"publishThrottlingRateInMsg": N, "publishThrottlingRateInByte": N}, per second, with'
            " -1 for no limit"
        ),
    ),
    "dispatchRate": PolicyPath(policy=policies.DISPATCH_RATE, expected=_DISPATCH),
    "subscriptionDispatchRate": PolicyPath(
        policy=policies.SUBSCRIPTION_DISPATCH_RATE, expected=_DISPATCH
    ),
    "subscriptionTypesEnabled": PolicyPath(
        policy=policies.SUBSCRIPTION_TYPES, expected='a list such as ["Exclusive", "Shared"]'
    ),
    "schemaCompatibilityStrategy": PolicyPath(
        policy=policies.COMPATIBILITY,
        expected=f"one of these, as JSON: {', '.join(policies.Compatibility)}",
        methods="GET PUT",
    ),
    "isAllowAutoUpdateSchema": PolicyPath(
        policy=policies.AUTO_UPDATE_SCHEMA, expected=_FLAG, methods="GET POST"
    ),
    "schemaValidationEnforced": PolicyPath(
        policy=policies.SCHEMA_ENFORCED, expected=_FLAG, methods="GET POST"
    ),
    "encryptionRequired": PolicyPath(
        policy=policies.ENCRYPTION_REQUIRED, expected=_FLAG, methods="GET POST"
    ),
    "autoTopicCreation": PolicyPath(
        policy=policies.AUTO_TOPIC_CREATION,
        expected='{"allowAutoTopicCreation": true or false, "topicType": "non-partitioned"}',
    ),
}
"""The policies by the last part of their paths."""


class TopicPolicies(Admin):
    """The paths of policies for topics, and of properties, of one worker."""

    def __init__(self, worker: Worker, server: Server) -> None:
        """`server` knows which namespaces Pulsar's service serves: nobody else enforces these
        policies.
        """
        super().__init__(worker)
        self._server = server

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        handlers = {
            "GET": self.policy,
            "POST": self.set_policy,
            "PUT": self.set_policy,
            "DELETE": self.remove_policy,
        }
        of_policies = [
            web.route(method, f"{NAMESPACE_PATH}/{name}", handlers[method])
            for name, path in PATHS.items()
            for method in path.methods.split()
        ]
        return (
            *of_policies,
            web.get(f"{NAMESPACE_PATH}/properties", self.properties),
            web.put(f"{NAMESPACE_PATH}/properties", self.set_properties),
            web.delete(f"{NAMESPACE_PATH}/properties", self.clear_properties),
            web.get(_PROPERTY, self.property),
            web.delete(_PROPERTY, self.remove_property),
            web.put(f"{_PROPERTY}/{{value}}", self.set_property),
        )

    async def policy(self, request: web.Request) -> web.Response:
        """Return a policy for the topics of a namespace; if it is not set, Pulsar's default, which
        may be 204.
        """
        answer = _path_of(request).policy.answer_in(self._namespace(request).policies)
        return done() if answer is None else json_answer(answer)

    async def set_policy(self, request: web.Request) -> web.Response:
        """Set a policy for the topics of a namespace. Clients that are connected stay connected."""
        path = _path_of(request)
        self._server.directory.check_namespace(self._namespace(request).name)
        value: Any = await required_body_of(request, path.policy.adapter, path.expected)
        return await self._done(
            verbs.set_namespace_policy(
                self._port(request),
                namespace_of(request),
                path.policy.name,
                path.policy.encode(value),
            )
        )

    async def remove_policy(self, request: web.Request) -> web.Response:
        """Remove a policy for the topics of a namespace."""
        return await self._done(
            verbs.set_namespace_policy(
                self._port(request), namespace_of(request), _path_of(request).policy.name, None
            )
        )

    async def properties(self, request: web.Request) -> web.Response:
        """Return the properties of a namespace."""
        return json_answer(properties_in(self._namespace(request).policies))

    async def set_properties(self, request: web.Request) -> web.Response:
        """Set properties of a namespace, one after the other. Others stay."""
        body = await required_body_of(
            request, _PROPERTIES_BODY, 'an object of texts, such as {"team": "shop"}'
        )
        given = {property_policy(key): value for key, value in body.items()}
        # Check all before the first is set: a refused request changes nothing.
        unfit = next(filter(None, (misfit(name, value) for name, value in given.items())), None)
        if unfit is not None:
            raise invalid_request(what="the body", problem=unfit)
        if len(self._namespace(request).policies.keys() | given.keys()) > DOCUMENT_ENTRIES_MAX:
            problem = (
                f"the namespace would have more than {DOCUMENT_ENTRIES_MAX} policies and"
                " properties, the maximum; remove some first"
            )
            raise invalid_request(what="the body", problem=problem)
        return await self._done(
            verbs.set_namespace_policies(self._port(request), namespace_of(request), given)
        )

    async def clear_properties(self, request: web.Request) -> web.Response:
        """Remove all properties of a namespace, one after the other."""
        removed = dict.fromkeys(
            map(property_policy, properties_in(self._namespace(request).policies))
        )
        return await self._done(
            verbs.set_namespace_policies(self._port(request), namespace_of(request), removed)
        )

    async def property(self, request: web.Request) -> web.Response:
        """Return one property of a namespace as text; 204 if it is not set."""
        value = properties_in(self._namespace(request).policies).get(request.match_info["key"])
        return done() if value is None else text_answer(value)

    async def set_property(self, request: web.Request) -> web.Response:
        """Set one property of a namespace."""
        named = request.match_info
        return await self._done(
            verbs.set_namespace_policy(
                self._port(request),
                namespace_of(request),
                property_policy(named["key"]),
                named["value"],
            )
        )

    async def remove_property(self, request: web.Request) -> web.Response:
        """Remove one property of a namespace. Return its value as text; 204 if it was not set."""
        key = request.match_info["key"]
        value = properties_in(self._namespace(request).policies).get(key)
        await verbs.set_namespace_policy(
            self._port(request), namespace_of(request), property_policy(key), None
        )
        return done() if value is None else text_answer(value)

    def _namespace(self, request: web.Request) -> NamespaceEntry:
        return namespace_named(ready_view(self._worker), namespace_of(request))


def _path_of(request: web.Request) -> PolicyPath:
    return PATHS[request.path.rpartition("/")[2]]
