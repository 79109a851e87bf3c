"""Serve the paths of partitioned topics: their number of partitions, and what concerns all
partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web
from pydantic import TypeAdapter

from equipoise.brokers.agent.requests import SetPolicy
from equipoise.brokers.balancing.topic_policies import PulsarModel
from equipoise.brokers.errors import conflict, invalid_request
from equipoise.brokers.http.answers import done, json_answer
from equipoise.brokers.http.bodies import Integer, body_of, flag_of, parameter_of
from equipoise.brokers.http.caller import requester_of
from equipoise.brokers.pulsar.admin.topics import (
    TOPIC_PATH,
    TopicPaths,
    check_unused,
    clients_in,
    no_properties,
    topic_of,
)
from equipoise.brokers.pulsar.topics.names import PARTITIONS_MAX, partitioned_name, policy_of
from equipoise.brokers.pulsar.topics.stats import (
    Stats,
    internal_stats,
    metadata_of,
    partitioned_stats,
)
from equipoise.brokers.pulsar.wire.requests import TopicsMode
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.ranges import TopicName
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX


class PartitionsBody(PulsarModel):
    """Pulsar's PartitionedTopicMetadata, which its tools send in place of the number when they have
    properties.
    """

    partitions: Integer
    properties: dict[str, str] | None = None


_CREATE: Final = "create partitioned topic"
_PARTITIONS_BODY: Final = TypeAdapter[int | PartitionsBody | None](Integer | PartitionsBody | None)


class Partitions(TopicPaths):
    """The paths of partitioned topics, as one broker answers them."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get(f"{TOPIC_PATH}/partitions", self.partitions),
            web.put(f"{TOPIC_PATH}/partitions", self.create_partitions),
            web.post(f"{TOPIC_PATH}/partitions", self.add_partitions),
            web.delete(f"{TOPIC_PATH}/partitions", self.delete_partitions),
            web.get(f"{TOPIC_PATH}/partitioned-stats", self.partitioned_stats),
            web.get(f"{TOPIC_PATH}/partitioned-internalStats", self.internal_stats),
        )

    async def partitions(self, request: web.Request) -> web.Response:
        """Return the number of partitions of a topic; 0 if it is not partitioned, in use or not."""
        return json_answer(
            metadata_of(await self._server.directory.partitions_of(topic_of(request)))
        )

    async def create_partitions(self, request: web.Request) -> web.Response:
        """Make a topic a partitioned topic."""
        topic = _partitionable(request)
        count = await _count_of(request)
        partitions = self._partitions(topic)
        self._server.directory.check_namespace(topic.namespace)
        if partitions:
            advice = "add partitions with update-partitioned-topic"
            raise conflict(
                topic.full,
                f"it already exists, with {partitions} partitions",
                action=_CREATE,
                advice=advice,
            )
        if topic.full in await self._server.directory.topics_of(
            topic.namespace, TopicsMode.NON_PERSISTENT
        ):
            raise conflict(
                topic.full,
                "it already exists, without partitions",
                action=_CREATE,
                advice="delete it first",
            )
        async with self._server.admission.room(topic, count):
            await self._set_partitions(
                topic, count, before=None, requested_by=requester_of(request)
            )
        return done()

    async def add_partitions(self, request: web.Request) -> web.Response:
        """Add partitions to a partitioned topic; never fewer, because clients may use them."""
        topic = _partitionable(request)
        count = await _count_of(request)
        before = self._existing(topic)
        if count <= before:
            raise invalid_request(
                what="the number of partitions",
                problem=f"{count} is not more than the current number, {before}",
            )
        async with self._server.admission.room(topic, count - before):
            await self._set_partitions(
                topic, count, before=before, requested_by=requester_of(request)
            )
        return done()

    async def delete_partitions(self, request: web.Request) -> web.Response:
        """Delete a partitioned topic with its partitions and schemas. With `force` also one that
        has clients, which are disconnected.

        With `local=true` only the partitions here, which is what brokers ask each other. Nothing is
        deleted unless all brokers answer and no other change came first.
        """
        topic = _partitionable(request)
        is_forced = flag_of(request, "force")
        if flag_of(request, "local"):
            self._delete_here(topic, is_forced=is_forced)
            return done()
        before = self._existing(topic)
        stats = await self._stats_of_partitions(topic)
        if not is_forced:
            check_unused(topic, stats.values())
        await self._set_partitions(topic, None, before=before, requested_by=requester_of(request))
        await self._server.peers.ask_all(
            topic.namespace, request.rel_url.raw_path_qs, method="DELETE"
        )
        self._delete_here(topic, is_forced=is_forced)
        await self._server.schemas.forget(topic)
        return done()

    def _existing(self, topic: TopicName) -> int:
        """Return the number of partitions. Raise `NotFound` if the topic has none."""
        partitions = self._partitions(topic)
        if not partitions:
            raise NotFound(
                f"topic {topic.full} has no partitions; create them with create-partitioned-topic"
            )
        return partitions

    def _delete_here(self, topic: TopicName, *, is_forced: bool) -> None:
        """Delete the partitions here. One that a client has begun to use since the check stays, as
        if it had come after the deletion.
        """
        stats = self._local_stats(topic)
        for served in self._partitions_here(topic):
            if is_forced or not any(clients_in([stats[served.name]])):
                self._hosting.delete(served)

    async def _set_partitions(
        self, topic: TopicName, count: int | None, *, before: int | None, requested_by: str | None
    ) -> None:
        """Set the number of partitions. Raise `Rejected` if it is no longer `before`, because of a
        concurrent change.
        """
        intent = SetPolicy(
            name=topic.namespace, policy=policy_of(topic.full), value=count, expected=before
        )
        await self._worker.request(
            intent, timeout_ms=self._worker.config.admin_ms, requested_by=requested_by
        )

    # --- stats ---
    async def partitioned_stats(self, request: web.Request) -> web.Response:
        """Return the stats of a partitioned topic: of all partitions together, and of each unless
        `perPartition=false`.

        With `local=true` only those of each partition that is served here, by name, which is what
        brokers ask each other.
        """
        topic = _partitionable(request)
        is_each_wanted = parameter_of(request, "perPartition") is None or flag_of(
            request, "perPartition"
        )
        if flag_of(request, "local"):
            return json_answer(self._local_stats(topic))
        partitions = self._existing(topic)
        stats = await self._stats_of_partitions(topic)
        return json_answer(
            partitioned_stats(stats, partitions=partitions, is_each_wanted=is_each_wanted)
        )

    async def internal_stats(self, request: web.Request) -> web.Response:
        """Return the internal stats of each partition.

        With `local=true` only those of each partition that is served here, by name, which is what
        brokers ask each other.
        """
        topic = _partitionable(request)

        def here() -> dict[str, Stats]:
            return {
                served.name: internal_stats(served.topic) for served in self._partitions_here(topic)
            }

        if flag_of(request, "local"):
            return json_answer(here())
        partitions = self._existing(topic)
        found = await self._of_partitions(topic, "partitioned-internalStats", here)
        return json_answer({"metadata": metadata_of(partitions), "partitions": found})


def _partitionable(request: web.Request) -> TopicName:
    """Return the topic of a path, which may have partitions. Raise `CallerError` if it may
    not.
    """
    topic = topic_of(request)
    if partitioned_name(topic.full) != topic.full:
        raise invalid_request(
            what=f"the topic {topic.full}",
            problem="it is a partition; name the topic without -partition-N",
        )
    if len(policy_of(topic.full)) > TEXT_CHARACTERS_MAX:
        raise invalid_request(
            what="the name of a partitioned topic",
            problem=f"it would make a policy of more than {TEXT_CHARACTERS_MAX} characters",
        )
    return topic


async def _count_of(request: web.Request) -> int:
    """Return the number in the body. Raise `CallerError`."""
    count: int | PartitionsBody | None = await body_of(request, _PARTITIONS_BODY)
    if isinstance(count, PartitionsBody):
        if count.properties:
            raise no_properties()
        count = count.partitions
    if count is None or not 0 < count <= PARTITIONS_MAX:
        raise invalid_request(
            what="the body",
            problem=f"it must be a number of partitions from 1 to {PARTITIONS_MAX}, such as 4",
        )
    return count
