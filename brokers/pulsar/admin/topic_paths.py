"""Find the topic of a path, and the broker that answers for it: the one that serves it. Others
redirect there (307), as Pulsar does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import quote

from aiohttp import web

from equipoise.brokers.balancing.named import namespace_named
from equipoise.brokers.errors import InvalidRequest
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.server import Server
from equipoise.brokers.pulsar.topics.names import NON_PERSISTENT, PARTITIONS_MAX, partitions_in
from equipoise.brokers.pulsar.topics.stats import Stats, topic_stats
from equipoise.brokers.runtime.service import own_http
from equipoise.brokers.runtime.worker import Lookups, Worker
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.ranges import TopicName, parse_topic, topic_hash

DOMAIN_PATH: Final = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
TOPIC_PATH: Final = DOMAIN_PATH + "/{topic}"


class TopicPaths:
    """The base of the classes that serve the paths of topics."""

    def __init__(self, worker: Worker, server: Server, lookups: Lookups) -> None:
        """`server` answers for local topics and asks other brokers; `lookups` finds the broker to
        redirect to.
        """
        self._worker = worker
        self._lookups = lookups
        self._server = server
        self._service = server.service
        self._hosting = server.service.hosting

    async def _here(self, request: web.Request, namespace: str, point: int) -> None:
        """Return if this broker serves a point. Otherwise redirect the caller to its owner. Waits
        as any lookup does.
        """
        located = await self._lookups.locate(namespace, point, started_ns=time.monotonic_ns())
        if located.broker.broker != self._worker.broker_id:
            address = own_http(located.broker.joined.addresses) or ""
            raise web.HTTPTemporaryRedirect(location=address + request.path_qs)

    async def _served(self, request: web.Request, topic: TopicName) -> Served:
        """Return a topic that exists here. Otherwise redirect the caller to its owner. Raise
        `NotFound` if the owner does not have it.
        """
        await self._here(request, topic.namespace, topic_hash(topic.full))
        served = self._hosting.topics.get(topic.full)
        if served is None:
            raise no_topic(topic)
        return served

    def _partitions(self, topic: TopicName) -> int:
        """Return the number of partitions, 0 if the topic is not partitioned. Raise
        `UnknownNamespace`.
        """
        namespace = namespace_named(ready_view(self._worker), topic.namespace)
        return partitions_in(namespace.policies).get(topic.full, 0)

    def _partitions_here(self, topic: TopicName) -> Sequence[Served]:
        """Return the partitions of a topic that exist here, whether or not this broker has read how
        many there are.
        """
        names = (f"{topic.full}-partition-{index}" for index in range(PARTITIONS_MAX))
        return [self._hosting.topics[name] for name in names if name in self._hosting.topics]

    def _local_stats(self, topic: TopicName) -> dict[str, Stats]:
        """Return the stats of each partition that exists here, by name."""
        return {
            served.name: topic_stats(served.topic, owner_broker=self._worker.broker_id)
            for served in self._partitions_here(topic)
        }

    async def _stats_of_partitions(self, topic: TopicName) -> dict[str, Stats]:
        """Return the stats of each partition that exists, by name, from all brokers. Raise
        `NotAnswered`.
        """
        return await self._of_partitions(
            topic, "partitioned-stats", lambda: self._local_stats(topic)
        )

    async def _of_partitions(
        self, topic: TopicName, path: str, here: Callable[[], dict[str, Stats]]
    ) -> dict[str, Stats]:
        """Return what `here` says of each partition by name, together with what the other brokers
        answer for a path of the topic.
        """
        answers = await self._server.peers.ask_all(topic.namespace, f"{path_of(topic)}/{path}")
        found = here()
        for answer in answers:
            found |= answer if isinstance(answer, dict) else {}
        names = (f"{topic.full}-partition-{index}" for index in range(self._partitions(topic)))
        return {name: found[name] for name in names if name in found}


def topic_of(request: web.Request) -> TopicName:
    """Return the topic of a path. Raise `InvalidName`. Paths of persistent topics are refused
    before (`refused`).
    """
    named = request.match_info
    return parse_topic(
        f"{NON_PERSISTENT}://{named['tenant']}/{named['namespace']}/{named['topic']}"
    )


def path_of(topic: TopicName) -> str:
    """Return the encoded path of a topic."""
    return f"/admin/v2/{NON_PERSISTENT}/{topic.namespace}/{quote(topic.local, safe='')}"


def no_topic(topic: TopicName) -> NotFound:
    """Return the error of a topic that does not exist."""
    return NotFound(
        f"there is no topic {topic.full} now; a topic exists while it has a producer or a consumer,"
        " or for 60 s once created"
    )


def no_properties() -> InvalidRequest:
    """Return the error of a topic that is to be created with properties."""
    return InvalidRequest(
        what="the body",
        problem="this server keeps no properties of topics; create the topic without them",
    )
