"""Answer questions about the topics of the cluster: where they are, which there are, and who may
use them, by the policies of namespaces that are about more than one topic or about encryption.

`brokers.pulsar.settings` has those that bound a single topic.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from equipoise.brokers.balancing import topic_policies as policies
from equipoise.brokers.pulsar.peers import Peers
from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.pulsar.topics.clients import Refusal
from equipoise.brokers.pulsar.topics.names import partition_of, partitioned_name, partitions_in
from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.errors import NotServed
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.pulsar.wire.requests import TopicsMode
from equipoise.brokers.runtime.service import pulsar_address
from equipoise.brokers.runtime.worker import Lookups, Worker
from equipoise.channel.core.entries import NamespaceEntry
from equipoise.channel.core.ranges import TopicName, topic_hash


class Directory:
    """The topics of the cluster, as one broker finds them."""

    def __init__(
        self, service: PulsarService, worker: Worker, lookups: Lookups, peers: Peers
    ) -> None:
        """`lookups` finds brokers, `peers` asks them for their topics."""
        self._service = service
        self._worker = worker
        self._lookups = lookups
        self._peers = peers
        self._message_bytes_max = worker.config.pulsar_message_bytes_max
        self._names = itertools.count(1)
        self._life = secrets.token_hex(4)
        self._encoded: tuple[Sequence[str], bytes] | None = None

    def new_producer_name(self) -> str:
        """Return a name that is unique in the cluster, across restarts of this broker."""
        me = f"{self._worker.config.cluster}-{self._worker.broker_id}"
        return f"{me}-{self._life}-{next(self._names)}"

    def new_consumer_name(self) -> str:
        """Return a name that is unique in the cluster; see `new_producer_name`."""
        return f"consumer-{self._life}-{next(self._names)}"

    async def locate(self, topic: TopicName) -> str:
        """Return the Pulsar address of the broker that serves a topic. Wait while the owner is
        undecided.

        Raises `UnknownNamespace`, `DeadlineExceeded`, `Overloaded`, and `NotServed` if that broker
        takes no Pulsar clients.
        """
        located = await self._lookups.locate(
            topic.namespace, topic_hash(topic.full), started_ns=time.monotonic_ns()
        )
        url = pulsar_address(located.broker.joined.addresses)
        if url is None:
            problem = (
                f"broker {located.broker.broker}, which serves {topic.full}, accepts no Pulsar"
                " clients"
            )
            raise NotServed(error=ServerError.NotAllowedError, problem=problem)
        return url

    def check_namespace(self, namespace: str) -> None:
        """Raise `NotServed` if another service serves the namespace."""
        if self._worker.service_of(namespace) is not self._service:
            raise NotServed(
                error=ServerError.NotAllowedError,
                problem=f"namespace {namespace} does not accept Pulsar clients",
            )

    async def partitions_of(self, topic: TopicName) -> int:
        """Return a topic's number of partitions, or 0 if it is not partitioned or is a partition
        itself.

        Raises `UnknownNamespace`, and `NotServed` if another service serves the namespace.
        """
        namespace = await self._namespace(topic.namespace)
        self.check_namespace(topic.namespace)
        if partitioned_name(topic.full) != topic.full:
            return 0
        partitions = partitions_in(namespace.policies).get(topic.full, 0)
        if not partitions and await self.up_to_date():
            namespace = await self._namespace(topic.namespace)
            partitions = partitions_in(namespace.policies).get(topic.full, 0)
        return partitions

    async def topics_of(self, namespace: str, mode: TopicsMode) -> Sequence[str]:
        """Return the full names of a namespace's topics on all brokers.

        Raises `UnknownNamespace`, and `PeerError` if a broker does not answer or a bundle moves
        for too long. An incomplete list would make clients that subscribe to a pattern drop the
        missing topics.
        """
        await self._namespace(namespace)
        if mode is TopicsMode.PERSISTENT:
            return ()
        return await self._peers.topics_of(namespace)

    async def encoded_topics(self, namespace: str, mode: TopicsMode) -> bytes:
        """Return the encoded list of `topics_of`. Raises as `topics_of`, and `NotServed` if the
        list is too long for a client.
        """
        names = await self.topics_of(namespace, mode)
        if self._encoded is None or self._encoded[0] is not names:
            self._encoded = names, replies.encode_topics(names)
            # Share the bytes only with the callers that get the same list, which all continue in
            # this turn.
            asyncio.get_running_loop().call_soon(self._forget_encoded)
        encoded = self._encoded[1]
        if len(encoded) > self._message_bytes_max:
            problem = (
                f"the names of the {len(names)} topics of namespace {namespace} are {len(encoded)}"
                f" bytes, and clients accept at most {self._message_bytes_max}; ask over"
                " HTTP, or spread the topics over more namespaces"
            )
            raise NotServed(error=ServerError.NotAllowedError, problem=problem)
        return encoded

    def _forget_encoded(self) -> None:
        self._encoded = None

    async def up_to_date(self) -> bool:
        """Read the log to its end, as `Worker.up_to_date` does."""
        return await self._worker.up_to_date(timeout_ms=self._service.settings.hold_ms)

    async def _namespace(self, name: str) -> NamespaceEntry:
        """Return a namespace. Raises `UnknownNamespace`, or `DeadlineExceeded` if this broker's
        view stays too old to deny it.
        """
        return await self._worker.router.known(
            name,
            lambda view: view.namespaces.get(name),
            timeout_ms=self._service.settings.hold_ms,
            what=f"namespace {name}",
        )


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
                    error=ServerError.TopicNotFound if is_certain else ServerError.MetadataError,
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
            raise NotServed(error=ServerError.NotAllowedError, problem=problem)

    def producer_refused(self, topic: TopicName, *, is_encrypted: bool) -> Refusal | None:
        """Return why a producer is refused; None if it is not."""
        document = self._service.policies_of(topic.namespace)
        if is_encrypted or not policies.ENCRYPTION_REQUIRED.value_in(document):
            return None
        message = (
            f"Encryption is required in {topic.full}: the policy of its namespace refuses"
            " producers that do not encrypt"
        )
        return Refusal(error=ServerError.MetadataError, message=message)


def _is_partition(topic: str, partitions: Mapping[str, int]) -> bool:
    """Return whether a topic is a partition of one of these partitioned topics, given by their full
    names and counts.
    """
    return 0 <= partition_of(topic) < partitions.get(partitioned_name(topic), 0)
