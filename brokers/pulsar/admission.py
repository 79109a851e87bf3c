"""Decide who may use a topic, by the policies of its namespace that are about more than one topic,
about schemas or about encryption.

`brokers.pulsar.topics.policies` has those that bound a single topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from equipoise.brokers.balancing import topic_policies as policies
from equipoise.brokers.balancing.topic_policies import Compatibility
from equipoise.brokers.pulsar.topics.compatibility import (
    UNCOMPARED,
    compared_with,
    misfit_of_consumer,
    misfit_of_producer,
)
from equipoise.brokers.pulsar.topics.dispatch import Refusal
from equipoise.brokers.pulsar.topics.names import partition_of, partitioned_name, partitions_in
from equipoise.brokers.pulsar.topics.schemas import version_of
from equipoise.brokers.pulsar.wire.errors import NotServed, ServerError
from equipoise.brokers.pulsar.wire.requests import Schema
from equipoise.channel.core.ranges import TopicName

if TYPE_CHECKING:
    from equipoise.brokers.pulsar.server import Server

T = TypeVar("T")

# Verdicts are kept only until the decisions that wait for them are made.
_VERDICTS_MAX: Final = 1024

_Misfit = Callable[[Schema, Sequence[Schema], Compatibility], str | None]
_Compared = tuple[_Misfit, bytes, tuple[bytes, ...], Compatibility]


class UncomparedError(Exception):
    """A decision needs schemas compared, which takes too long for the event loop:
    `Admission.once_compared` does it.
    """

    def __init__(self, key: _Compared, compare: Callable[[], str | None]) -> None:
        """`compare` returns the verdict for `key`."""
        super().__init__()
        self.key = key
        self.compare = compare


class Admission:
    """The policies of all namespaces, for the clients of one broker."""

    def __init__(self, server: Server) -> None:
        """`server` asks other brokers for topics and schemas."""
        self._server = server
        self._schemas = server.service.schemas
        self._verdicts: dict[_Compared, str | None] = {}
        self._comparing = asyncio.Lock()
        # By namespace. A lock goes when nobody holds it or waits for it.
        self._creating = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def use(self, topic: TopicName) -> AsyncIterator[None]:
        """Hold room for a topic while a client creates it by using it. Raise `NotServed` if it must
        not.

        Partitions of a partitioned topic exist already.
        """
        if not self._may_use(topic):
            is_certain = await self._server.up_to_date()
            if not self._may_use(topic):
                problem = (
                    f"topic {topic.full} does not exist, and clients must not create topics in"
                    f" {topic.namespace}; create it first"
                )
                raise NotServed(
                    error=ServerError.TOPIC_NOT_FOUND if is_certain else ServerError.METADATA_ERROR,
                    problem=problem,
                )
        if _is_partition(topic.full, partitions_in(self._server.policies_of(topic.namespace))):
            yield
            return
        async with self.room(topic):
            yield

    def _may_use(self, topic: TopicName) -> bool:
        document = self._server.policies_of(topic.namespace)
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
        topics_max = policies.MAX_TOPICS.value_in(self._server.policies_of(topic.namespace))
        if not topics_max:
            yield
            return
        announced = self._server.service.hosting.announced
        async with self._creating.setdefault(topic.namespace, asyncio.Lock()):
            announced.add(topic.full)
            try:
                await self._check_room(topic, added, topics_max)
                yield
            finally:
                announced.discard(topic.full)

    async def _check_room(self, topic: TopicName, added: int, topics_max: int) -> None:
        others = [
            name
            for name in await self._server.peers.topics_of(topic.namespace)
            if name != topic.full
        ]
        partitions = partitions_in(self._server.policies_of(topic.namespace))
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

    def depends_on_schemas(
        self, topic: TopicName, schema: Schema | None, *, is_consumers: bool
    ) -> bool:
        """Return whether the answer to a producer or a consumer with `schema` depends on the
        schemas that its topic has.
        """
        document = self._server.policies_of(topic.namespace)
        if schema is None:
            return not is_consumers and bool(policies.SCHEMA_ENFORCED.value_in(document))
        if not is_consumers and policies.AUTO_UPDATE_SCHEMA.value_in(document) is False:
            return True
        return self.strategy_of(topic.namespace) not in UNCOMPARED

    async def once_compared(self, decide: Callable[[], Awaitable[T]]) -> T:
        """Return what `decide` returns. Call it again after each comparison of schemas that it
        lacks, one at a time in a thread.

        `decide` asks for a refusal and makes its changes in one step, so no other schema comes
        between the two.
        """
        while True:
            try:
                return await decide()
            except UncomparedError as lacking:
                async with self._comparing:
                    if lacking.key not in self._verdicts:
                        verdict = await asyncio.to_thread(lacking.compare)
                        while len(self._verdicts) >= _VERDICTS_MAX:
                            del self._verdicts[next(iter(self._verdicts))]
                        self._verdicts[lacking.key] = verdict

    def producer_refused(
        self, topic: TopicName, schema: Schema | None, *, is_encrypted: bool
    ) -> Refusal | None:
        """Return why a producer is refused; None if it is not. Raise `UncomparedError`."""
        document = self._server.policies_of(topic.namespace)
        if not document:
            return None
        if policies.ENCRYPTION_REQUIRED.value_in(document) and not is_encrypted:
            message = (
                f"Encryption is required in {topic.full}: the policy of its namespace refuses"
                " producers that do not encrypt"
            )
            return Refusal(error=ServerError.METADATA_ERROR, message=message)
        if schema is not None:
            return self.schema_refused(topic, schema)
        if policies.SCHEMA_ENFORCED.value_in(document) and self._known(topic):
            message = (
                f"Producers cannot connect without a schema to {topic.full}, which has one: the"
                " policy of its namespace enforces schemas"
            )
            return Refusal(error=ServerError.INCOMPATIBLE_SCHEMA, message=message)
        return None

    def schema_refused(self, topic: TopicName, schema: Schema) -> Refusal | None:
        """Return why producers of a topic must not use a schema; None if they may. Raise
        `UncomparedError`.
        """
        document = self._server.policies_of(topic.namespace)
        if not document:
            return None
        known = self._known(topic)
        if (
            policies.AUTO_UPDATE_SCHEMA.value_in(document) is False
            and known
            and schema not in known
        ):
            message = f"Schema not found and schema auto updating is disabled for {topic.full}"
            return Refusal(error=ServerError.INCOMPATIBLE_SCHEMA, message=message)
        return self._incompatible(topic, schema, misfit_of_producer, is_consumers=False)

    def strategy_of(self, namespace: str) -> Compatibility:
        """Return the compatibility strategy of the schemas of a namespace."""
        strategy = policies.COMPATIBILITY.value_in(self._server.policies_of(namespace))
        return Compatibility.UNDEFINED if strategy is None else strategy

    def consumer_refused(self, topic: TopicName, schema: Schema | None) -> Refusal | None:
        """Return why a consumer is refused; None if it is not. Raise `UncomparedError`."""
        document = self._server.policies_of(topic.namespace)
        if not document or schema is None:
            return None
        return self._incompatible(topic, schema, misfit_of_consumer, is_consumers=True)

    def _incompatible(
        self, topic: TopicName, schema: Schema, misfit: _Misfit, *, is_consumers: bool
    ) -> Refusal | None:
        """Return the refusal of a schema by a comparison; None if it is not refused. Raise
        `UncomparedError` before the comparison.
        """
        strategy = self.strategy_of(topic.namespace)
        compared = compared_with(schema, self._known(topic), strategy, is_consumers=is_consumers)
        if not compared:
            return None
        key = (misfit, version_of(schema), tuple(version_of(each) for each in compared), strategy)
        if key not in self._verdicts:
            raise UncomparedError(key, partial(misfit, schema, compared, strategy))
        problem = self._verdicts[key]
        if problem is None:
            return None
        return Refusal(
            error=ServerError.INCOMPATIBLE_SCHEMA,
            message=f"The schema is incompatible with topic {topic.full}: {problem}",
        )

    def _known(self, topic: TopicName) -> Sequence[Schema]:
        """Return the schemas of a topic that are known here, the newest last."""
        return [schema for _, schema in self._schemas.all_of(_whole(topic))]


def _whole(topic: TopicName) -> str:
    """Return the name under which a topic's schemas are kept: partitions share them."""
    return partitioned_name(topic.full)


def _is_partition(topic: str, partitions: Mapping[str, int]) -> bool:
    """Return whether a topic is a partition of one of these partitioned topics, given by their full
    names and counts.
    """
    return 0 <= partition_of(topic) < partitions.get(partitioned_name(topic), 0)
