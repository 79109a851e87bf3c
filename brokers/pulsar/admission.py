"""Decide who may use a topic, by the policies of its namespace that are about more than one topic
or about encryption.

`brokers.pulsar.topics.policies` has those that bound a single topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from equipoise.brokers.balancing import topic_policies as policies
from equipoise.brokers.pulsar.directory import Directory
from equipoise.brokers.pulsar.peers import Peers
from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.pulsar.topics.clients import Refusal
from equipoise.brokers.pulsar.topics.names import partition_of, partitioned_name, partitions_in
from equipoise.brokers.pulsar.wire.errors import NotServed, ServerError
from equipoise.channel.core.ranges import TopicName


class Admission:
    """The policies of all namespaces, for the clients of one broker."""

    def __init__(self, service: PulsarService, directory: Directory, peers: Peers) -> None:
        """`peers` asks other brokers for their topics."""
        self._service = service
        self._directory = directory
        self._peers = peers
        # By namespace. A lock goes when nobody holds it or waits for it.
        self._creating = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def use(self, topic: TopicName) -> AsyncIterator[None]:
        """Hold room for a topic while a client creates it by using it. Raise `NotServed` if it must
        not.

        Partitions of a partitioned topic exist already.
        """
        if not self._may_use(topic):
            is_certain = await self._directory.up_to_date()
            if not self._may_use(topic):
                problem = (
                    f"topic {topic.full} does not exist, and clients must not create topics in"
                    f" {topic.namespace}; create it first"
                )
                raise NotServed(
                    error=ServerError.TOPIC_NOT_FOUND if is_certain else ServerError.METADATA_ERROR,
                    problem=problem,
                )
        if _is_partition(topic.full, partitions_in(self._service.policies_of(topic.namespace))):
            yield
            return
        async with self.room(topic):
            yield

    def _may_use(self, topic: TopicName) -> bool:
        document = self._service.policies_of(topic.namespace)
        creation = policies.AUTO_TOPIC_CREATION.value_in(document)
        return (
            creation is None
            or creation.is_allowed
            or _is_partition(topic.full, partitions_in(document))
        )

    @asynccontextmanager
    async def room(self, topic: TopicName, added: int = 1) -> AsyncIterator[None]:
        """Hold room for a topic, or for `added` partitions of it, until it is created. Raise
        `NotServed` beyond the most topics.

        One topic of a namespace at a time is created here, and is announced to the other brokers
        before they are asked. So many at once never exceed the limit. Brokers that create the last
        ones at the same time may refuse each other.
        """
        topics_max = policies.MAX_TOPICS.value_in(self._service.policies_of(topic.namespace))
        if not topics_max:
            yield
            return
        announced = self._service.hosting.announced
        async with self._creating.setdefault(topic.namespace, asyncio.Lock()):
            announced.add(topic.full)
            try:
                await self._check_room(topic, added, topics_max)
                yield
            finally:
                announced.discard(topic.full)

    async def _check_room(self, topic: TopicName, added: int, topics_max: int) -> None:
        others = [
            name for name in await self._peers.topics_of(topic.namespace) if name != topic.full
        ]
        partitions = partitions_in(self._service.policies_of(topic.namespace))
        count = sum(partitions.values()) + sum(
            not _is_partition(name, partitions) for name in others
        )
        if count + added > topics_max:
            problem = (
                f"namespace {topic.namespace} has {count} topics, and its policy allows"
                f" {topics_max}"
            )
            problem += (
                f", which {added} more would exceed; delete topics, or raise the policy with"
                " set-max-topics-per-namespace"
            )
            raise NotServed(error=ServerError.NOT_ALLOWED, problem=problem)

    def producer_refused(self, topic: TopicName, *, is_encrypted: bool) -> Refusal | None:
        """Return why a producer is refused; None if it is not."""
        document = self._service.policies_of(topic.namespace)
        if is_encrypted or not policies.ENCRYPTION_REQUIRED.value_in(document):
            return None
        message = (
            f"Encryption is required in {topic.full}: the policy of its namespace refuses"
            " producers that do not encrypt"
        )
        return Refusal(error=ServerError.METADATA_ERROR, message=message)


def _is_partition(topic: str, partitions: Mapping[str, int]) -> bool:
    """Return whether a topic is a partition of one of these partitioned topics, given by their full
    names and counts.
    """
    return 0 <= partition_of(topic) < partitions.get(partitioned_name(topic), 0)
