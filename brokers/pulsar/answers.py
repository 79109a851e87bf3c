"""Handle the requests of one client connection and answer them.

A request that must wait runs in a task of its own, so that PINGs and messages behind it are not
delayed. The task makes all its changes in one step after its last wait, so a cancelled task has
changed nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

from equipoise.brokers.errors import UnknownNamespace
from equipoise.brokers.pulsar.admission import Admission
from equipoise.brokers.pulsar.cluster_schemas import ClusterSchemas
from equipoise.brokers.pulsar.connections import Connections
from equipoise.brokers.pulsar.directory import Directory
from equipoise.brokers.pulsar.hosting import Consuming, Publishing, Served
from equipoise.brokers.pulsar.rights import Guarded, Rights
from equipoise.brokers.pulsar.service import PulsarService, now_ms, send_active_changes
from equipoise.brokers.pulsar.session import Session
from equipoise.brokers.pulsar.topics.clients import ActiveChange, Consumer, Producer, Refusal
from equipoise.brokers.pulsar.topics.names import partitioned_name, served_topic
from equipoise.brokers.pulsar.topics.rates import Meter
from equipoise.brokers.pulsar.topics.stats import kind_name
from equipoise.brokers.pulsar.topics.topic import Replaced, Topic
from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.attachments import Elsewhere
from equipoise.brokers.pulsar.wire.errors import (
    NotAnswered,
    NotServed,
    ServedElsewhere,
    ServerError,
)
from equipoise.brokers.pulsar.wire.requests import (
    AccessMode,
    Asked,
    Connected,
    ConsumerClosed,
    ConsumerStatsAsked,
    CreationCancelled,
    CredentialsSent,
    LookupAsked,
    PartitionsAsked,
    ProducerAsked,
    ProducerClosed,
    Question,
    Request,
    Schema,
    SchemaAsked,
    SchemaOffered,
    Sought,
    SubscribeAsked,
    TopicsAsked,
    TurnedAway,
    Unsubscribed,
    version_of,
)
from equipoise.brokers.runtime.service import Peer, pulsar_address
from equipoise.channel.core.errors import DeadlineExceeded, EquipoiseError, Overloaded

_logger: Final = logging.getLogger(__name__)

# The version prefix of Pulsar's Go client.
_GO: Final = "Pulsar-Go"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What answers need, the same for all sessions. `rights` is None without authorization."""

    service: PulsarService
    connections: Connections[Session]
    directory: Directory
    schemas: ClusterSchemas
    admission: Admission
    rights: Rights | None


class Answers:
    """The requests of one session, and the tasks of those that wait."""

    __slots__ = (
        "_connection",
        "_creations",
        "_creations_asked",
        "_parts",
        "_service",
        "_session",
        "_tasks",
        "_topics_asked",
    )

    def __init__(self, session: Session, parts: Parts) -> None:
        """Start without tasks."""
        self._session = session
        self._connection = session.connection
        self._parts = parts
        self._service = parts.service
        self._tasks: set[asyncio.Task[None]] = set()
        self._creations: dict[tuple[Asked, int], asyncio.Task[None]] = {}
        self._creations_asked = OrderedDict[tuple[Asked, int], Callable[[], Awaitable[None]]]()
        self._topics_asked = deque[TopicsAsked]()

    def answer(self, request: Request) -> None:
        """Handle one request, or start a task for it."""
        if not (isinstance(request, Guarded) and self._is_refused(request)):
            self._HANDLERS[type(request)](self, request)

    def _is_refused(self, request: Guarded) -> bool:
        """Refuse a request if the role of the client lacks the right for it. Return whether that
        was so.
        """
        rights = self._parts.rights
        why = None if rights is None else rights.lacking(self._session, request)
        if rights is None or why is None:
            return False
        self._begin(partial(self._refuse, rights, request, why))
        return True

    def _without_right(self, request: Guarded) -> Refusal | None:
        """Return a refusal that makes the client ask again; None if it has the right, as it had
        when its request came.
        """
        why = (
            None
            if self._parts.rights is None
            else self._parts.rights.lacking(self._session, request)
        )
        return None if why is None else Refusal(error=ServerError.METADATA_ERROR, message=why)

    async def _refuse(self, rights: Rights, request: Guarded, why: str) -> None:
        refused = await rights.refusal(self._session, request, why)
        match request:
            case ProducerAsked():
                self._connection.producer_refused(request, refused.error, refused.message)
            case SubscribeAsked():
                self._connection.consumer_refused(request, refused.error, refused.message)
            case _:
                self._connection.refuse(request, refused.error, refused.message)

    def end(self) -> None:
        """Cancel all tasks, because the connection is over."""
        self._creations_asked.clear()
        for task in tuple(self._tasks):
            task.cancel()

    # --- requests answered at once ---

    def _on_credentials_sent(self, request: CredentialsSent) -> None:
        self._begin(partial(self._session.check_credentials, request.credentials))

    def _on_connected(self, request: Connected) -> None:
        self._session.client_version = request.client_version

    def _on_turned_away(self, request: TurnedAway) -> None:
        self._parts.connections.counts.turned_away[request.what] += 1

    def _on_creation_cancelled(self, request: CreationCancelled) -> None:
        key = (request.asked, request.request_id)
        self._creations_asked.pop(key, None)
        task = self._creations.pop(key, None)
        if task is not None:
            task.cancel()

    def _on_producer_closed(self, request: ProducerClosed) -> None:
        assert isinstance(request.producer, Publishing), "what was attached here"
        self._session.drop_producer(request.producer.producer, request.producer.served)
        self._connection.succeed(request)

    def _on_consumer_closed(self, request: ConsumerClosed) -> None:
        assert isinstance(request.consumer, Consuming), "what was attached here"
        self._session.drop_consumer(request.consumer.consumer, request.consumer.served)
        self._connection.succeed(request)

    def _on_unsubscribed(self, request: Unsubscribed) -> None:
        assert isinstance(request.consumer, Consuming), "what was attached here"
        consumer, served = request.consumer.consumer, request.consumer.served
        answer = served.topic.unsubscribe(consumer, is_forced=request.is_forced)
        if isinstance(answer, Refusal):
            self._connection.refuse(request, answer.error, answer.message)
            return
        for other in answer:
            other.link.redirect_consumer(other, None)
        self._session.drop_consumer(consumer, served)
        self._connection.succeed(request)

    def _on_sought(self, request: Sought) -> None:
        """Make Go clients reconnect. They take nothing after a SEEK until then, because Pulsar
        disconnects consumers of stored topics.
        """
        assert isinstance(request.consumer, Consuming), "what was attached here"
        if not self._session.client_version.startswith(_GO):
            return
        consumer, served = request.consumer.consumer, request.consumer.served
        self._session.redirect_consumer(consumer, None)
        send_active_changes(served.topic.remove_consumers((consumer,)))
        # Keep the topic: a new one would count entries from 1, and the consumer ignores ids that it
        # has passed.
        kept_s = self._service.settings.topics.reconnect_wait_ms / 1_000
        asyncio.get_running_loop().call_later(kept_s, self._service.hosting.forget_if_idle, served)

    def _on_consumer_stats_asked(self, request: ConsumerStatsAsked) -> None:
        assert isinstance(request.consumer, Consuming), "what was attached here"
        consumer = request.consumer.consumer
        stats = replies.ConsumerStats(
            name=consumer.name,
            kind=kind_name(request.consumer.served.topic.kind_of(consumer)),
            address=consumer.address,
            connected_since=consumer.connected_since,
            message_rate=consumer.delivered.message_rate,
            byte_rate=consumer.delivered.byte_rate,
            permits=max(consumer.permits, 0),
        )
        self._connection.answer(request, replies.consumer_stats(request.request_id, stats))

    # --- requests that wait ---

    def _on_schema_offered(self, request: SchemaOffered) -> None:
        async def register() -> bytes:
            topic = partitioned_name(served_topic(request.topic).full)
            return self._service.schemas.add(topic, request.schema)

        self._ask(request, register, partial(replies.schema_accepted, request.request_id))

    def _on_partitions_asked(self, request: PartitionsAsked) -> None:
        async def count() -> int:
            try:
                topic = served_topic(request.topic)
            except NotServed:
                # Go's client shows the text of a refused lookup only. It goes on to that if the
                # topic has no partitions.
                if self._session.client_version.startswith(_GO):
                    return 0
                raise
            return await self._parts.directory.partitions_of(topic)

        self._ask(request, count, partial(replies.partitions, request.request_id))

    def _on_lookup_asked(self, request: LookupAsked) -> None:
        self._ask(
            request,
            lambda: self._parts.directory.locate(served_topic(request.topic)),
            partial(replies.located, request.request_id),
        )

    def _on_schema_asked(self, request: SchemaAsked) -> None:
        async def find() -> tuple[bytes, Schema]:
            found = await self._parts.schemas.find(served_topic(request.topic), request.version)
            if found is None:
                raise NotServed(
                    error=ServerError.TOPIC_NOT_FOUND,
                    problem=f"No schema of {request.topic} is known",
                )
            return found

        self._ask(request, find, lambda found: replies.schema_found(request.request_id, *found))

    def _on_topics_asked(self, request: TopicsAsked) -> None:
        self._topics_asked.append(request)
        if len(self._topics_asked) == 1:
            self._begin(self._answer_topics)

    async def _answer_topics(self) -> None:
        """Answer one question at a time: an answer may be megabytes, and must be on its way before
        the next one is built.
        """
        while self._topics_asked:
            request = self._topics_asked[0]
            encoded = partial(self._parts.directory.encoded_topics, request.namespace, request.mode)
            await self._answer(request, encoded, partial(replies.topics, request.request_id))
            self._session.write_soon()
            self._topics_asked.popleft()
            await asyncio.sleep(0)

    def _ask(
        self, request: Question, question: Callable[[], Awaitable[T]], reply: Callable[[T], bytes]
    ) -> None:
        self._begin(partial(self._answer, request, question, reply))

    async def _answer(
        self, request: Question, question: Callable[[], Awaitable[T]], reply: Callable[[T], bytes]
    ) -> None:
        """Await the answer to a question. Send the reply that it makes, or the error that prevented
        it.
        """
        try:
            answer = await question()
        except EquipoiseError as error:
            self._connection.refuse(request, *_refusal_of(error))
        else:
            self._connection.answer(request, reply(answer))

    def _on_producer_asked(self, request: ProducerAsked) -> None:
        self._create(request, partial(self._open_producer, request))

    def _on_subscribe_asked(self, request: SubscribeAsked) -> None:
        self._create(request, partial(self._open_consumer, request))

    async def _open_producer(self, request: ProducerAsked) -> None:
        session, connection = self._session, self._connection
        name = request.name or self._parts.directory.new_producer_name()

        def enter(topic: Topic) -> Refusal | tuple[Producer, Replaced | None]:
            # Again: it may have been revoked since the request came.
            refused = self._without_right(request)
            refused = refused or self._parts.admission.producer_refused(
                served_topic(request.topic), is_encrypted=request.is_encrypted
            )
            if refused is not None:
                return refused
            producer = Producer(
                name=name,
                link=session,
                producer_id=request.producer_id,
                published=Meter(now_ms=now_ms()),
                epoch=request.epoch,
                access_mode=request.access_mode,
                properties=request.properties,
                address=session.address,
                client_version=session.client_version,
                connected_since=_printed_now(),
            )
            answer = topic.add_producer(producer)
            return answer if isinstance(answer, Refusal) else (producer, answer)

        try:
            served, (producer, replaced) = await self._let_in(request.topic, enter)
        except ServedElsewhere as error:
            self._parts.connections.counts.redirected += 1
            if request.access_mode is AccessMode.SHARED:
                version = version_of(request.schema)
                elsewhere = Elsewhere(url=error.url)
                connection.producer_opened(request, name, elsewhere, schema_version=version)
            else:  # Success would wrongly confirm exclusive access.
                connection.producer_refused(request, *_refusal_of(error))
            return
        except EquipoiseError as error:
            connection.producer_refused(request, *_refusal_of(error))
            return
        if replaced is not None:
            session.producers.pop(replaced.former, None)
            served.forget_works(replaced.forgotten)
        if request.schema is not None:
            self._service.schemas.add(partitioned_name(served.name), request.schema)
        publishing = Publishing(producer=producer, served=served)
        if connection.producer_opened(
            request, name, publishing, schema_version=version_of(request.schema)
        ):
            session.producers[producer] = served
        else:
            session.drop_producer(producer, served)

    async def _open_consumer(self, request: SubscribeAsked) -> None:
        session, connection = self._session, self._connection
        name = request.name or self._parts.directory.new_consumer_name()

        def enter(topic: Topic) -> Refusal | tuple[Consumer, list[ActiveChange]]:
            refused = self._without_right(request)
            if refused is not None:
                return refused
            came_ms = now_ms()
            consumer = Consumer(
                name=name,
                link=session,
                consumer_id=request.consumer_id,
                delivered=Meter(now_ms=came_ms),
                is_name_users=bool(request.name),
                priority=request.priority,
                key_shared=request.key_shared,
                properties=request.properties,
                address=session.address,
                client_version=session.client_version,
                connected_since=_printed_now(),
                is_writable=session.is_writable,
            )
            answer = topic.subscribe(consumer, request.subscription, request.kind, now_ms=came_ms)
            return answer if isinstance(answer, Refusal) else (consumer, answer)

        try:
            if request.read_compacted:
                raise NotServed(
                    error=ServerError.NOT_ALLOWED,
                    problem="this topic cannot be read compacted; subscribe without it",
                )
            served, (consumer, changes) = await self._let_in(request.topic, enter)
        except (ServedElsewhere, DeadlineExceeded) as error:
            # Answer success, then redirect: clients differ in how they handle an error
            # (docs/adr/0014-wrong-broker.md).
            url = error.url if isinstance(error, ServedElsewhere) else None
            self._parts.connections.counts.redirected += isinstance(error, ServedElsewhere)
            connection.consumer_opened(request, Elsewhere(url=url))
            return
        except EquipoiseError as error:
            connection.consumer_refused(request, *_refusal_of(error))
            return
        whole = partitioned_name(served.name)
        if request.schema is not None and not self._service.schemas.all_of(whole):
            # As in Pulsar, only a consumer that comes first registers its schema.
            self._service.schemas.add(whole, request.schema)
        if connection.consumer_opened(request, Consuming(consumer=consumer, served=served)):
            session.consumers[consumer] = served
            send_active_changes(changes)
        else:
            session.drop_consumer(consumer, served)

    async def _let_in(self, topic: str, enter: Callable[[Topic], Refusal | T]) -> tuple[Served, T]:
        """Return the topic and the result of `enter` on it. If a dead client holds the place,
        remove it and call `enter` again.

        Raises `NotServed` with the refusal, `ServedElsewhere`, and any error of serving the topic.
        """
        served = await self._served(topic)
        answer = enter(served.topic)
        if isinstance(answer, Refusal) and await self._declared_dead(answer.holder):
            # Get the topic again: it may have moved, or been dropped with the dead client.
            served = await self._served(topic)
            answer = enter(served.topic)
        if isinstance(answer, Refusal):
            self._service.hosting.forget_if_idle(served)
            raise NotServed(error=answer.error, problem=answer.message)
        return served, answer

    async def _served(self, topic: str) -> Served:
        """Return the topic once this broker serves it. Wait while its owner is undecided."""
        name = served_topic(topic)
        here = self._service.served_now(name)
        if here is not None:
            return here
        served = await self._service.serve(name, self._parts.admission.use)
        if isinstance(served, Peer):
            raise ServedElsewhere(
                topic=topic, broker=served.broker, url=pulsar_address(served.addresses)
            )
        return served

    async def _declared_dead(self, holder: Producer | Consumer | None) -> bool:
        """Return whether the holder's connection was dead and is now removed."""
        if holder is None or holder.link is self._session or await holder.link.is_alive():
            return False
        holder.link.abort()
        return True

    # --- tasks ---

    def _create(
        self, request: ProducerAsked | SubscribeAsked, operation: Callable[[], Awaitable[None]]
    ) -> None:
        """Start a creation, or queue it if too many are running."""
        self._creations_asked[request.asked, request.request_id] = operation
        self._begin_creations()

    def _begin_creations(self) -> None:
        while (
            self._creations_asked
            and len(self._creations) < self._parts.connections.limits.creations_max
        ):
            key, operation = self._creations_asked.popitem(last=False)
            task = self._creations[key] = self._begin(operation)
            task.add_done_callback(partial(self._end_creation, key))

    def _end_creation(self, key: tuple[Asked, int], task: asyncio.Task[None]) -> None:
        if self._creations.get(key) is task:
            del self._creations[key]
        self._begin_creations()

    def _begin(self, operation: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._run(operation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, operation: Callable[[], Awaitable[None]]) -> None:
        try:
            await operation()
        except Exception:
            about = {"broker": self._parts.connections.broker_id, "client": self._session.address}
            _logger.exception("a request of a Pulsar client failed", extra=about)
            self._session.abort()
        self._session.write_soon()

    _HANDLERS: Final[Mapping[type, Callable[..., None]]] = {
        CredentialsSent: _on_credentials_sent,
        Connected: _on_connected,
        TurnedAway: _on_turned_away,
        CreationCancelled: _on_creation_cancelled,
        ProducerClosed: _on_producer_closed,
        ConsumerClosed: _on_consumer_closed,
        Unsubscribed: _on_unsubscribed,
        Sought: _on_sought,
        ConsumerStatsAsked: _on_consumer_stats_asked,
        SchemaAsked: _on_schema_asked,
        SchemaOffered: _on_schema_offered,
        PartitionsAsked: _on_partitions_asked,
        LookupAsked: _on_lookup_asked,
        TopicsAsked: _on_topics_asked,
        ProducerAsked: _on_producer_asked,
        SubscribeAsked: _on_subscribe_asked,
    }


def _refusal_of(error: EquipoiseError) -> tuple[ServerError, str]:
    """Return the code and message of an error for the client. Avoid codes that make it close a
    shared connection.
    """
    if isinstance(error, NotServed):
        return error.error, error.problem
    if isinstance(error, UnknownNamespace):
        return ServerError.TOPIC_NOT_FOUND, str(error)
    if isinstance(error, DeadlineExceeded | NotAnswered | Overloaded):
        return ServerError.METADATA_ERROR, str(error)
    return ServerError.UNKNOWN_ERROR, str(error)


def _printed_now() -> str:
    """Return the current time in Pulsar's format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
