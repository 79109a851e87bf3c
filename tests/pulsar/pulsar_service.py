"""A minimal service for a connection: it answers all requests, and records them."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.pulsar.wire.requests import (
    Change,
    Closed,
    ConsumerStatsAsked,
    Creation,
    CreationCancelled,
    Damaged,
    LookupAsked,
    PartitionsAsked,
    ProducerAsked,
    Published,
    Question,
    Request,
    Schema,
    SchemaAsked,
    SchemaOffered,
    SubscribeAsked,
    TopicsAsked,
    Unsubscribed,
)

SCHEMA = Schema(name="n", kind=4, definition=b"d", properties=(("a", "b"),))


@dataclass(slots=True, kw_only=True)
class DumbService:
    """Answers the requests of one connection, in order. It attaches each id to itself, unless
    `attached` is given.
    """

    connection: Connection
    seen: list[Request] = field(default_factory=list)
    unanswered: list[Request] = field(default_factory=list)
    refusal: tuple[ServerError, str] = (ServerError.ServiceNotReady, "not now")
    attached: object = None

    def handle(self, requests: list[Request]) -> None:
        """Record requests for a later answer."""
        self.seen += requests
        self.unanswered += requests

    def answer(self, *, favourably: bool = True, only: Container[int] | None = None) -> None:
        """Answer all waiting requests, or `only` those with these ids."""
        waiting, self.unanswered = self.unanswered, []
        for request in waiting:
            if only is not None and getattr(request, "request_id", None) not in only:
                self.unanswered.append(request)
            elif favourably:
                self._grant(request)
            else:
                self._refuse(request)

    def count(self, kind: type[Request]) -> int:
        """Return the number of requests of one class."""
        return sum(isinstance(request, kind) for request in self.seen)

    @property
    def entries(self) -> int:
        """Return the number of entries with a good checksum."""
        return sum(len(request.entries) for request in self.seen if isinstance(request, Published))

    def cancelled(self) -> set[int]:
        """Return the request ids of cancelled creations."""
        return {
            request.request_id for request in self.seen if isinstance(request, CreationCancelled)
        }

    def _grant(self, request: Request) -> None:
        connection = self.connection
        match request:
            case PartitionsAsked():
                connection.answer(request, replies.partitions(request.request_id, 4))
            case LookupAsked():
                connection.answer(
                    request, replies.located(request.request_id, "pulsar://broker:6650")
                )
            case TopicsAsked():
                connection.answer(
                    request, replies.topics(request.request_id, replies.encode_topics(["a", "b"]))
                )
            case SchemaAsked():
                connection.answer(
                    request, replies.schema_found(request.request_id, bytes(8), SCHEMA)
                )
            case SchemaOffered():
                connection.answer(request, replies.schema_accepted(request.request_id, bytes(8)))
            case ConsumerStatsAsked():
                stats = replies.consumer_stats(
                    request.request_id,
                    name="c",
                    kind="Shared",
                    address="a",
                    connected_since="s",
                    permits=-1,
                    message_rate=1.5,
                    byte_rate=2.5,
                )
                connection.answer(request, stats)
            case ProducerAsked() | SubscribeAsked():
                connection.opened(request, self.attached or request.id, name="named")
            case Closed() | Unsubscribed():
                connection.succeed(request)
            case _:
                self._deliver(request)

    def _refuse(self, request: Request) -> None:
        if isinstance(request, Question | Change | Creation):
            self.connection.refuse(request, *self.refusal)
        else:
            self._deliver(request)

    def _deliver(self, request: Request) -> None:
        """Send receipts and errors, favourably or not."""
        match request:
            case Published(producer=int(producer_id)):
                for sent in request.entries:
                    self.connection.send(
                        replies.receipt(producer_id, sent.sequence_id, sent.highest_sequence_id, 0)
                    )
            case Damaged(producer=int(producer_id)):
                self.connection.send(
                    replies.send_error(
                        producer_id, request.sequence_id, ServerError.ChecksumError, "damaged"
                    )
                )
            case _:
                pass
