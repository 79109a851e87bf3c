"""Put together all paths of a broker that need Pulsar's topics, and refuse those of persistent
topics and of WebSocket clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import web

from equipoise.brokers.http.admin.absent import defaults
from equipoise.brokers.http.answers import problem_answer
from equipoise.brokers.pulsar.admin.namespaces import NamespacesWithTopics
from equipoise.brokers.pulsar.admin.partitions import Partitions
from equipoise.brokers.pulsar.admin.policies import TopicPolicies
from equipoise.brokers.pulsar.admin.schemas import SchemaPaths
from equipoise.brokers.pulsar.admin.topics import Topics
from equipoise.brokers.pulsar.server import Server
from equipoise.brokers.pulsar.topics.names import (
    NON_PERSISTENT,
    PERSISTENT,
    not_stored,
    served_topic,
)
from equipoise.brokers.runtime.service import pulsar_address
from equipoise.brokers.runtime.worker import Lookups, Worker
from equipoise.channel.core.ranges import TopicName, parse_topic

# aiohttp prefers a path whose fixed start is longer, so all these go before the paths of both
# domains, in any order.
_PERSISTENT_TOPIC: Final = f"/admin/v2/{PERSISTENT}/{{tenant}}/{{namespace}}/{{topic}}"

_TOPIC: Final = f"/admin/v2/{NON_PERSISTENT}/{{tenant}}/{{namespace}}/{{topic}}"
# Pulsar's policies of one topic, by the last part of their path.
_POLICIES: Final = (
    *("autoSubscriptionCreation", "backlogQuotaMap", "compactionThreshold", "deduplicationEnabled"),
    *("deduplicationSnapshotInterval", "delayedDelivery", "dispatchRate", "entryFilters"),
    *("dispatcherPauseOnAckStatePersistent", "inactiveTopicPolicies", "maxConsumers"),
    *("maxConsumersPerSubscription", "maxMessageSize", "maxProducers", "maxSubscriptionsPerTopic"),
    *("maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnSubscription", "messageTTL"),
    *("offloadPolicies", "persistence", "publishRate", "replication", "replicatorDispatchRate"),
    *("retention", "schemaCompatibilityStrategy", "subscribeRate", "subscriptionDispatchRate"),
    *("subscriptionTypesEnabled",),
)
DEFAULTS_OF_TOPICS: Final[Mapping[str, object]] = {
    f"{_TOPIC}/{{policy:{'|'.join(_POLICIES)}}}": None,
    f"{_TOPIC}/schemaValidationEnforced": False,
    f"{_TOPIC}/permissions": {},
    f"{_TOPIC}/properties": {},
    f"{_TOPIC}/subscription/{{subscription}}/properties": {},
}
"""What Pulsar answers to a GET for a topic where nothing is set; None becomes 204."""


class PulsarAdmin:
    """The administration of Pulsar's topics at one broker."""

    def __init__(self, worker: Worker, server: Server, lookups: Lookups) -> None:
        """`server` answers for local topics and asks other brokers; `lookups` finds the broker to
        redirect to.
        """
        self._worker = worker
        self._server = server
        self.namespaces = NamespacesWithTopics(worker, server, lookups)
        of_topics = (Topics, Partitions, SchemaPaths)
        self._paths = [
            *(group(worker, server, lookups) for group in of_topics),
            self.namespaces,
            TopicPolicies(worker, server),
        ]

    def documented(self) -> Sequence[web.RouteDef]:
        """Return the routes that work."""
        return [route for paths in self._paths for route in paths.routes()]

    def routes(self) -> Sequence[web.RouteDef]:
        """Return all routes, with those that are refused."""
        return [
            *self.documented(),
            *defaults(self._worker, DEFAULTS_OF_TOPICS),
            # Lists of persistent topics are not among them: they are empty.
            web.route("*", f"{_PERSISTENT_TOPIC}/{{rest:.*}}", self._refuse_persistent),
            *(
                web.route(method, _PERSISTENT_TOPIC, self._refuse_persistent)
                for method in ("PUT", "POST", "DELETE")
            ),
            web.route("*", "/ws/{path:.*}", self._refuse_websocket),
        ]

    def is_pulsars(self, topic: TopicName) -> bool:
        """Return whether Pulsar's service serves a topic, and not another one. Raise `NotServed`
        for a persistent topic.
        """
        if self._worker.service_of(topic.namespace) is not self._server.service:
            return False
        served_topic(topic.full)
        return True

    async def all_fetched(self) -> None:
        """Wait until next owners have fetched what they need over HTTP. Call this before HTTP
        ends.
        """
        await self._server.service.handovers.all_fetched()

    async def _refuse_persistent(self, request: web.Request) -> web.Response:
        """Refuse a persistent topic. The reason names the topic to use."""
        named = request.match_info
        raise not_stored(
            parse_topic(f"{PERSISTENT}://{named['tenant']}/{named['namespace']}/{named['topic']}")
        )

    async def _refuse_websocket(self, request: web.Request) -> web.Response:
        """Refuse a WebSocket client with 501."""
        url = pulsar_address(self._worker.profile.addresses) or "the broker's Pulsar address"
        reason = (
            "this server has no WebSocket interface; use a client of Pulsar's binary protocol at"
            f" {url}"
        )
        return problem_answer(request, HTTPStatus.NOT_IMPLEMENTED, reason, "NotSupported")
