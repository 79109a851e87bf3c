"""Serve the paths that create, unload and delete a topic, and those about its subscriptions and
stats.

Their base finds the topic of a path, and the broker that answers for it: the one that serves it.
Others redirect there (307), as Pulsar does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from urllib.parse import quote

from aiohttp import web
from pydantic import TypeAdapter

from equipoise.brokers.balancing.named import namespace_named
from equipoise.brokers.errors import conflict, invalid_request
from equipoise.brokers.http.answers import done, json_answer
from equipoise.brokers.http.bodies import body_of, flag_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.server import Server
from equipoise.brokers.pulsar.topics.names import (
    NON_PERSISTENT,
    PARTITIONS_MAX,
    partitioned_name,
    partitions_in,
)
from equipoise.brokers.pulsar.topics.stats import (
    Stats,
    consumers_in,
    internal_stats,
    producers_in,
    topic_stats,
)
from equipoise.brokers.pulsar.wire.errors import NotServed, not_answered
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.runtime.service import Peer, own_http
from equipoise.brokers.runtime.worker import Lookups, Worker
from equipoise.channel.core.errors import CallerError, NotFound
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
        `PeerError`.
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


def no_properties() -> CallerError:
    """Return the error of a topic that is to be created with properties."""
    return invalid_request(
        what="the body",
        problem="this server keeps no properties of topics; create the topic without them",
    )


_CREATE: Final = "create topic"
_PROPERTIES_BODY: Final = TypeAdapter[dict[str, str] | None](dict[str, str] | None)


class Topics(TopicPaths):
    """The paths of single topics, as one broker answers them."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.put(TOPIC_PATH, self.create),
            web.delete(TOPIC_PATH, self.delete),
            web.put(f"{TOPIC_PATH}/unload", self.unload),
            web.get(f"{TOPIC_PATH}/stats", self.stats),
            web.get(f"{TOPIC_PATH}/internalStats", self.internal_stats),
            web.get(f"{TOPIC_PATH}/subscriptions", self.subscriptions),
            web.delete(f"{TOPIC_PATH}/subscription/{{subscription}}", self.unsubscribe),
        )

    # --- the life of a topic ---

    async def create(self, request: web.Request) -> web.Response:
        """Create a topic without clients. It goes when no client has used it for a minute.

        A body may only be empty: topics here have no properties.
        """
        topic = topic_of(request)
        if await body_of(request, _PROPERTIES_BODY):
            raise no_properties()
        self._server.directory.check_namespace(topic.namespace)
        if self._partitions(topic):
            problem = f"it already exists, with {self._partitions(topic)} partitions"
            raise conflict(
                topic.full,
                problem,
                action=_CREATE,
                advice="use it, or delete it with delete-partitioned-topic first",
            )
        await self._here(request, topic.namespace, topic_hash(topic.full))
        served = await self._service.serve(topic, self._server.admission.room)
        if isinstance(served, Peer):
            raise not_answered(f"topic {topic.full} is moving to another broker; try again")
        if served.is_kept or not served.topic.is_idle:
            raise conflict(
                topic.full, "it already exists", action=_CREATE, advice="use it, or delete it first"
            )
        self._hosting.keep(served)
        return done()

    async def delete(self, request: web.Request) -> web.Response:
        """Delete a topic and its schemas. With `force` also one that has clients, which are
        disconnected and may create it again.
        """
        topic = topic_of(request)
        is_forced = flag_of(request, "force")
        if self._partitions(topic):
            raise conflict(
                topic.full,
                "it has partitions",
                action="delete topic",
                advice="delete it with delete-partitioned-topic",
            )
        served = await self._served(request, topic)
        if not is_forced:
            check_unused(topic, [topic_stats(served.topic, owner_broker=self._worker.broker_id)])
        self._hosting.delete(served)
        if partitioned_name(topic.full) == topic.full:
            await self._server.schemas.forget(topic)
        return done()

    async def unload(self, request: web.Request) -> web.Response:
        """Make the clients of a topic, or of all its partitions, look it up again. Its bundle does
        not move, and no message is lost.

        With `local=true` only of the partitions here, which is what brokers ask each other.
        """
        topic = topic_of(request)
        if not flag_of(request, "local"):
            if not self._partitions(topic):
                self._hosting.unload(await self._served(request, topic))
                return done()
            await self._server.peers.ask_all(
                topic.namespace, f"{path_of(topic)}/unload", method="PUT"
            )
        for served in self._partitions_here(topic):
            self._hosting.unload(served)
        return done()

    # --- stats ---

    async def stats(self, request: web.Request) -> web.Response:
        """Return the stats of one topic; 404 if it does not exist."""
        served = await self._served(request, topic_of(request))
        return json_answer(topic_stats(served.topic, owner_broker=self._worker.broker_id))

    async def internal_stats(self, request: web.Request) -> web.Response:
        """Return what Pulsar calls the internal stats of one topic: its last entry, and a cursor
        for each subscription.
        """
        served = await self._served(request, topic_of(request))
        return json_answer(internal_stats(served.topic))

    # --- subscriptions ---

    async def subscriptions(self, request: web.Request) -> web.Response:
        """List the subscriptions of a topic, or of all its partitions, by name."""
        topic = topic_of(request)
        if not self._partitions(topic):
            return json_answer(sorted((await self._served(request, topic)).topic.subscriptions))
        stats = await self._stats_of_partitions(topic)
        return json_answer(sorted({name for each in stats.values() for name in consumers_in(each)}))

    async def unsubscribe(self, request: web.Request) -> web.Response:
        """Delete a subscription of a topic, or of all its partitions. With `force` also one with
        consumers, which are disconnected.

        With `local=true` only of the partitions here, which is what brokers ask each other.
        """
        topic, name = topic_of(request), request.match_info["subscription"]
        is_forced = flag_of(request, "force")
        if not flag_of(request, "local"):
            if not self._partitions(topic):
                served = await self._served(request, topic)
                _check_subscription(
                    topic,
                    name,
                    [topic_stats(served.topic, owner_broker=self._worker.broker_id)],
                    is_forced=is_forced,
                )
                served.delete_subscription(name)
                return done()
            _check_subscription(
                topic, name, (await self._stats_of_partitions(topic)).values(), is_forced=is_forced
            )
            await self._server.peers.ask_all(
                topic.namespace, request.rel_url.raw_path, method="DELETE"
            )
        for served in self._partitions_here(topic):
            served.delete_subscription(name)
        return done()


def _check_subscription(
    topic: TopicName, name: str, stats: Iterable[Stats], *, is_forced: bool
) -> None:
    """Raise `NotFound` if no topic of these stats has the subscription. Raise `NotServed` (412) if
    it has consumers, unless `is_forced`.
    """
    found = [consumers[name] for each in stats if name in (consumers := consumers_in(each))]
    if not found:
        raise NotFound(
            f"topic {topic.full} has no subscription {name}; list them with 'topics subscriptions'"
        )
    if sum(found) and not is_forced:
        problem = (
            f"subscription {name} of topic {topic.full} has {sum(found)} consumers; close them, or"
            " use --force"
        )
        raise NotServed(error=ServerError.NotAllowedError, problem=problem)


def clients_in(stats: Iterable[Stats]) -> tuple[int, int]:
    """Return how many producers and consumers the topics of these stats have."""
    all_ = tuple(stats)
    return sum(map(producers_in, all_)), sum(sum(consumers_in(each).values()) for each in all_)


def check_unused(topic: TopicName, stats: Iterable[Stats]) -> None:
    """Raise `NotServed` (412) if a topic that is to be deleted has clients. `stats` are its own, or
    those of its partitions.
    """
    producers, consumers = clients_in(stats)
    if producers or consumers:
        problem = (
            f"topic {topic.full} has {producers} producers and {consumers} consumers; close them,"
            " or use --force"
        )
        raise NotServed(error=ServerError.NotAllowedError, problem=problem)
