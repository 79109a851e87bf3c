"""Handle the requests of one client connection, in order, and answer them.

Messages go to their topics at once, or wait for permits or a rate, and all behind them with them.
A request that must wait for other brokers runs in a task of its own, so that PINGs and messages
behind it are not delayed. The task makes all its changes in one step after its last wait, so a
cancelled task has changed nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

from equipoise.brokers.errors import UnknownNamespace
from equipoise.brokers.pulsar.connections import Connections
from equipoise.brokers.pulsar.directory import Admission, Directory
from equipoise.brokers.pulsar.link import ClientLink
from equipoise.brokers.pulsar.rights import Guarded, Rights
from equipoise.brokers.pulsar.schemas import ClusterSchemas
from equipoise.brokers.pulsar.served import Served, send_active_changes
from equipoise.brokers.pulsar.service import PulsarService
from equipoise.brokers.pulsar.topics.clients import ActiveChange, Consumer, Meter, Producer, Refusal
from equipoise.brokers.pulsar.topics.names import partitioned_name, served_topic
from equipoise.brokers.pulsar.topics.stats import kind_name
from equipoise.brokers.pulsar.topics.throttling import Patience
from equipoise.brokers.pulsar.topics.topic import Topic
from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.errors import (
    NOT_ANSWERED,
    NotServed,
    ServedElsewhere,
)
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.pulsar.wire.requests import (
    AccessMode,
    Acked,
    Asked,
    Closed,
    Connected,
    ConsumerStatsAsked,
    Creation,
    CreationCancelled,
    CredentialsSent,
    Damaged,
    Elsewhere,
    Ended,
    Flowed,
    LookupAsked,
    PartitionsAsked,
    ProducerAsked,
    Published,
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
)
from equipoise.brokers.runtime.service import Peer, pulsar_address
from equipoise.channel.core.errors import DeadlineExceeded, EquipoiseError, Overloaded
from equipoise.channel.system.clocks import now_ms

_logger: Final = logging.getLogger(__name__)

# The version prefix of Pulsar's Go client.
_GO: Final = "Pulsar-Go"

# How soon to try again what waits for other clients: they have had several turns.
_WAIT_MS: Final = 1

# The same for what waits for a publish rate, at most: a policy that changes meanwhile is noticed.
_REST_MS: Final = 500

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What answers need, the same for all sessions. `rights` is None without authorization."""

    service: PulsarService
    connections: Connections[ClientLink]
    directory: Directory
    schemas: ClusterSchemas
    admission: Admission
    rights: Rights | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """The value attached to a producer id of a connection."""

    client: Producer
    served: Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming:
    """The value attached to a consumer id of a connection."""

    client: Consumer
    served: Served


class Session:
    """The requests of one client, and the tasks of those that wait."""

    __slots__ = (
        "_connection",
        "_creations",
        "_creations_asked",
        "_link",
        "_parts",
        "_patience",
        "_requests",
        "_service",
        "_tasks",
        "_topics_asked",
    )

    def __init__(self, link: ClientLink, parts: Parts) -> None:
        """Start without requests."""
        self._link = link
        self._connection = link.connection
        self._parts = parts
        self._service = parts.service
        # Requests to answer in order. The first one waits if there are any left.
        self._requests = deque[Request]()
        self._patience = Patience(
            wait_ms=parts.service.settings.topics.permits_wait_ms, now_ms=now_ms()
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._creations: dict[tuple[Asked, int], asyncio.Task[None]] = {}
        self._creations_asked = OrderedDict[tuple[Asked, int], Callable[[], Awaitable[None]]]()
        self._topics_asked = deque[TopicsAsked]()

    def take(self, requests: Iterable[Request]) -> None:
        """Handle requests, behind those that wait. Stop at one that must wait a moment."""
        link = self._link
        self._requests += requests
        while self._requests:
            request = self._requests.popleft()
            try:
                left = self._handle(request)
                link.write_soon()
                if left is not None and not link.has_left:
                    if not self._connection.is_ended:
                        self._wait(left)
                        return
                    # The client gets no more receipts, and sends again what waits. Skip to what
                    # ended the connection.
                    self._requests = deque([self._requests[-1]])
            except Exception:
                # A failing request must neither end the broker nor leave its connection in an
                # inconsistent state.
                about = {
                    "broker": self._parts.connections.broker_id,
                    "client": link.address,
                    "request": type(request).__name__,
                }
                _logger.exception("a request of a Pulsar client failed", extra=about)
                link.abort()
            if link.has_left:
                return

    def _handle(self, request: Request) -> Published | None:
        """Handle one request, or start a task for it. Return what is left of a message: handle that
        in a moment, and before the next request.
        """
        match request:
            case Published(producer=Publishing() as publishing):
                left = publishing.served.publish(publishing.client, request.entries, self._patience)
                return Published(producer=publishing, entries=[*left]) if left else None
            case Flowed(consumer=Consuming() as consuming):
                consuming.served.flow(consuming.client, request.permits)
            case Acked():
                self._parts.connections.counts.acknowledgements += 1
            case Ended():
                self._link.end(request)
            case _ if not (isinstance(request, Guarded) and self._is_refused(request)):
                self._HANDLERS[type(request)](self, request)
        return None

    def _wait(self, left: Published) -> None:
        """Let a message wait for permits of consumers or for the publish rate of its topic. As in
        Pulsar, all behind it waits meanwhile.
        """
        self._requests.appendleft(left)
        assert isinstance(left.producer, Publishing), "what was attached here"
        rest_ms = left.producer.served.topic.rest_ms
        self._link.is_throttled = rest_ms > 0
        self._link.pause(min(rest_ms, _REST_MS) or _WAIT_MS)

    def _is_refused(self, request: Guarded) -> bool:
        """Refuse a request if the role of the client lacks the right for it. Return whether that
        was so.
        """
        rights = self._parts.rights
        why = None if rights is None else rights.lacking(self._link, request)
        if rights is not None and why is not None:
            self._begin(partial(self._refuse, rights, request, why))
        return why is not None

    def _without_right(self, request: Guarded) -> Refusal | None:
        """Return a refusal that makes the client ask again; None if it has the right, as it had
        when its request came.
        """
        why = (
            None if self._parts.rights is None else self._parts.rights.lacking(self._link, request)
        )
        return None if why is None else Refusal(error=ServerError.MetadataError, message=why)

    async def _refuse(self, rights: Rights, request: Guarded, why: str) -> None:
        refused = await rights.refusal(self._link, request, why)
        self._connection.refuse(request, refused.error, refused.message)

    def end(self) -> None:
        """Drop all that waits, because the connection is over."""
        self._requests.clear()
        self._creations_asked.clear()
        for task in tuple(self._tasks):
            task.cancel()

    # --- requests answered at once ---

    def _on_credentials_sent(self, request: CredentialsSent) -> None:
        self._begin(partial(self._link.check_credentials, request.credentials))

    def _on_damaged(self, request: Damaged) -> None:
        """Refuse an entry with a wrong checksum. Clients match answers with the head of their
        queue, so this one must not overtake a receipt.
        """
        assert isinstance(request.producer, Publishing), "what was attached here"
        self._parts.connections.counts.damaged += 1
        producer, served = request.producer.client, request.producer.served
        if served.release_receipts(producer):
            problem = "The checksum of the message is wrong"
            self._connection.send(
                replies.send_error(
                    producer.id, request.sequence_id, ServerError.ChecksumError, problem
                )
            )

    def _on_connected(self, request: Connected) -> None:
        self._link.client_version = request.client_version

    def _on_turned_away(self, request: TurnedAway) -> None:
        self._parts.connections.counts.turned_away[request.what] += 1

    def _on_creation_cancelled(self, request: CreationCancelled) -> None:
        key = (request.asked, request.request_id)
        self._creations_asked.pop(key, None)
        task = self._creations.pop(key, None)
        if task is not None:
            task.cancel()

    def _on_closed(self, request: Closed) -> None:
        assert isinstance(request.thing, Publishing | Consuming), "what was attached here"
        self._link.drop(request.thing.client, request.thing.served)
        self._connection.succeed(request)

    def _on_unsubscribed(self, request: Unsubscribed) -> None:
        assert isinstance(request.consumer, Consuming), "what was attached here"
        consumer, served = request.consumer.client, request.consumer.served
        answer = served.topic.unsubscribe(consumer, is_forced=request.is_forced)
        if isinstance(answer, Refusal):
            self._connection.refuse(request, answer.error, answer.message)
            return
        for other in answer:
            other.link.redirect(other, None)
        self._link.drop(consumer, served)
        self._connection.succeed(request)

    def _on_sought(self, request: Sought) -> None:
        """Make Go clients reconnect. They take nothing after a SEEK until then, because Pulsar
        disconnects consumers of stored topics.
        """
        assert isinstance(request.consumer, Consuming), "what was attached here"
        if not self._link.client_version.startswith(_GO):
            return
        consumer, served = request.consumer.client, request.consumer.served
        self._link.redirect(consumer, None)
        send_active_changes(served.topic.remove_consumers((consumer,)))
        # Keep the topic: a new one would count entries from 1, and the consumer ignores ids that it
        # has passed.
        kept_s = self._service.settings.topics.reconnect_wait_ms / 1_000
        asyncio.get_running_loop().call_later(kept_s, self._service.hosting.forget_if_idle, served)

    def _on_consumer_stats_asked(self, request: ConsumerStatsAsked) -> None:
        assert isinstance(request.consumer, Consuming), "what was attached here"
        consumer = request.consumer.client
        stats = replies.consumer_stats(
            request.request_id,
            name=consumer.name,
            kind=kind_name(request.consumer.served.topic.kind_of(consumer)),
            address=consumer.address,
            connected_since=consumer.connected_since,
            message_rate=consumer.delivered.message_rate,
            byte_rate=consumer.delivered.byte_rate,
            permits=consumer.permits,
        )
        self._connection.answer(request, stats)

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
                if self._link.client_version.startswith(_GO):
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
                    error=ServerError.TopicNotFound,
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
            self._link.write_soon()
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
        link, connection = self._link, self._connection
        name = request.name or self._parts.directory.new_producer_name()

        def enter(topic: Topic) -> Refusal | tuple[Producer, Producer | None]:
            # Again: it may have been revoked since the request came.
            refused = self._without_right(request)
            refused = refused or self._parts.admission.producer_refused(
                served_topic(request.topic), is_encrypted=request.is_encrypted
            )
            if refused is not None:
                return refused
            producer = Producer(
                name=name,
                link=link,
                id=request.id,
                published=Meter(now_ms=now_ms()),
                epoch=request.epoch,
                access_mode=request.access_mode,
                properties=request.properties,
                address=link.address,
                client_version=link.client_version,
                connected_since=_printed_now(),
            )
            answer = topic.add_producer(producer)
            return answer if isinstance(answer, Refusal) else (producer, answer)

        try:
            served, (producer, replaced) = await self._let_in(request.topic, enter)
        except ServedElsewhere as error:
            self._parts.connections.counts.redirected += 1
            if request.access_mode is AccessMode.SHARED:
                connection.opened(request, Elsewhere(url=error.url), name=name)
            else:  # Success would wrongly confirm exclusive access.
                connection.refuse(request, *_refusal_of(error))
            return
        except EquipoiseError as error:
            connection.refuse(request, *_refusal_of(error))
            return
        if replaced is not None:
            link.clients.pop(replaced, None)
        if request.schema is not None:
            self._service.schemas.add(partitioned_name(served.name), request.schema)
        if connection.opened(request, Publishing(client=producer, served=served), name=name):
            link.clients[producer] = served
        else:
            link.drop(producer, served)

    async def _open_consumer(self, request: SubscribeAsked) -> None:
        link, connection = self._link, self._connection
        name = request.name or self._parts.directory.new_consumer_name()

        def enter(topic: Topic) -> Refusal | tuple[Consumer, list[ActiveChange]]:
            refused = self._without_right(request)
            if refused is not None:
                return refused
            came_ms = now_ms()
            consumer = Consumer(
                name=name,
                link=link,
                id=request.id,
                delivered=Meter(now_ms=came_ms),
                is_name_users=bool(request.name),
                priority=request.priority,
                key_shared=request.key_shared,
                properties=request.properties,
                address=link.address,
                client_version=link.client_version,
                connected_since=_printed_now(),
                is_writable=link.is_writable,
            )
            answer = topic.subscribe(consumer, request.subscription, request.kind, now_ms=came_ms)
            return answer if isinstance(answer, Refusal) else (consumer, answer)

        try:
            if request.read_compacted:
                raise NotServed(
                    error=ServerError.NotAllowedError,
                    problem="this topic cannot be read compacted; subscribe without it",
                )
            served, (consumer, changes) = await self._let_in(request.topic, enter)
        except (ServedElsewhere, DeadlineExceeded) as error:
            # Answer success, then redirect: clients differ in how they handle an error
            # (docs/adr/0006-pulsar.md).
            url = error.url if isinstance(error, ServedElsewhere) else None
            self._parts.connections.counts.redirected += isinstance(error, ServedElsewhere)
            connection.opened(request, Elsewhere(url=url))
            return
        except EquipoiseError as error:
            connection.refuse(request, *_refusal_of(error))
            return
        whole = partitioned_name(served.name)
        if request.schema is not None and not self._service.schemas.all_of(whole):
            # As in Pulsar, only a consumer that comes first registers its schema.
            self._service.schemas.add(whole, request.schema)
        if connection.opened(request, Consuming(client=consumer, served=served)):
            link.clients[consumer] = served
            send_active_changes(changes)
        else:
            link.drop(consumer, served)

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
        served = await self._service.serve(name, self._parts.admission.use)
        if isinstance(served, Peer):
            raise ServedElsewhere(
                topic=topic, broker=served.broker, url=pulsar_address(served.addresses)
            )
        return served

    async def _declared_dead(self, holder: Producer | Consumer | None) -> bool:
        """Return whether the holder's connection was dead and is now removed."""
        if holder is None or holder.link is self._link or await holder.link.is_alive():
            return False
        holder.link.abort()
        return True

    # --- tasks ---

    def _create(self, request: Creation, operation: Callable[[], Awaitable[None]]) -> None:
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
            about = {"broker": self._parts.connections.broker_id, "client": self._link.address}
            _logger.exception("a request of a Pulsar client failed", extra=about)
            self._link.abort()
        self._link.write_soon()

    _HANDLERS: Final[Mapping[type, Callable[..., None]]] = {
        CredentialsSent: _on_credentials_sent,
        Connected: _on_connected,
        Damaged: _on_damaged,
        TurnedAway: _on_turned_away,
        CreationCancelled: _on_creation_cancelled,
        Closed: _on_closed,
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
        return ServerError.TopicNotFound, str(error)
    if isinstance(error, DeadlineExceeded | Overloaded) or error.code == NOT_ANSWERED:
        return ServerError.MetadataError, str(error)
    return ServerError.UnknownError, str(error)


def _printed_now() -> str:
    """Return the current time in Pulsar's format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
