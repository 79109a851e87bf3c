"""Answer questions about the topics of the cluster: where they are, and which there are."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Sequence

from equipoise.brokers.pulsar.peers import Peers
from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.pulsar.topics.names import partitioned_name, partitions_in
from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.errors import NotServed, ServerError
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
            raise NotServed(error=ServerError.NOT_ALLOWED, problem=problem)
        return url

    def check_namespace(self, namespace: str) -> None:
        """Raise `NotServed` if another service serves the namespace."""
        if self._worker.service_of(namespace) is not self._service:
            raise NotServed(
                error=ServerError.NOT_ALLOWED,
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

        Raises `UnknownNamespace`, and `NotAnswered` if a broker does not answer or a bundle moves
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
            raise NotServed(error=ServerError.NOT_ALLOWED, problem=problem)
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
        return await self._worker.known(
            name,
            lambda view: view.namespaces.get(name),
            timeout_ms=self._service.settings.hold_ms,
            what=f"namespace {name}",
        )
