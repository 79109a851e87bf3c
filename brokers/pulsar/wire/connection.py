"""Run the protocol of one client connection as a state machine without IO: bytes in, requests and
bytes out.

Theory of operation:

1. The edge passes each chunk that it reads to `receive`, and calls `tick` a few times per
   keep-alive interval.
2. The service handles the returned requests in order. It answers each that needs an answer, at once
   or later.
3. The edge writes what `take_outgoing` returns.
4. After `Ended`, or after the end of the stream and `end`, the connection is over.

The connection knows ids, not topics. The service attaches an object to each id, and later requests
carry that object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from equipoise.brokers.pulsar.wire import commands, replies
from equipoise.brokers.pulsar.wire.attachments import (
    Attached,
    Attachments,
    Kept,
    Waiting,
)
from equipoise.brokers.pulsar.wire.authentication import Admit, Authenticate, Authentication
from equipoise.brokers.pulsar.wire.errors import NotServed
from equipoise.brokers.pulsar.wire.frames import Frame, FrameReader, checksum_is_good
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand, CommandSend, ServerError
from equipoise.brokers.pulsar.wire.requests import (
    Acked,
    Asked,
    Change,
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
    Published,
    PulsarProtocolError,
    Question,
    Request,
    Sent,
    Sought,
    TurnedAway,
    Unsubscribed,
    Violation,
)
from equipoise.brokers.security.identity import Identity, Refusal

# Clients know ACTIVE_CONSUMER_CHANGE from this version on.
_ACTIVE_CHANGE_VERSION: Final = 12

# A client sends these as often as it has messages, or when the broker asks.
_OF_MESSAGES: Final = frozenset(
    {
        BaseCommand.SEND,
        BaseCommand.FLOW,
        BaseCommand.ACK,
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
        BaseCommand.PONG,
    }
)

# A client gets a message about these violations before its connection ends.
_LAST_ANSWERS: Final = {
    Violation.UNSUPPORTED_VERSION: ServerError.UnsupportedVersionError,
    Violation.NOT_AUTHENTICATED: ServerError.AuthenticationError,
    # Clients try again after a pause.
    Violation.BUSY: ServerError.TooManyRequests,
    Violation.TOO_MANY_CONNECTIONS: ServerError.TooManyRequests,
}


class Outgoing:
    """A queue of whole frames, which the callers bound. Urgent ones go first: a PONG behind a
    backlog would come too late.
    """

    __slots__ = ("_bulk", "_is_closed", "_urgent", "waiting_bytes")

    def __init__(self) -> None:
        """Start empty."""
        self._urgent: list[bytes] = []
        self._bulk: list[bytes] = []
        self._is_closed = False
        self.waiting_bytes = 0

    def send(self, *parts: bytes) -> None:
        """Append a frame, whole or in parts. No-op after `close`."""
        if not self._is_closed:
            self._bulk += parts
            self.waiting_bytes += sum(map(len, parts))

    def send_first(self, frame: bytes) -> None:
        """Append an urgent frame. It always answers what just came, so it never comes after
        `close`.
        """
        self._urgent.append(frame)
        self.waiting_bytes += len(frame)

    def close(self) -> None:
        """Accept no more frames. Those queued are still written."""
        self._is_closed = True

    def take(self) -> bytes:
        """Remove and return everything queued."""
        taken = b"".join((*self._urgent, *self._bulk))
        self._urgent.clear()
        self._bulk.clear()
        self.waiting_bytes = 0
        return taken


class KeepAlive:
    """When the client last sent something, and which PINGs are unanswered."""

    __slots__ = (
        "_asked_ms",
        "_handshake_ms",
        "_heard_ms",
        "_keep_alive_ms",
        "_opened_ms",
        "_pings",
        "pongs",
    )

    def __init__(self, *, limits: Limits, now_ms: int) -> None:
        """Start with a connection that was just accepted."""
        self._handshake_ms = limits.handshake_ms
        self._keep_alive_ms = limits.keep_alive_ms
        self._opened_ms = now_ms
        self._asked_ms: int | None = None
        self._heard_ms = now_ms
        self._pings = 0
        self.pongs = 0

    def asked(self) -> int:
        """Count a PING and return its number."""
        self._pings += 1
        return self._pings

    def answered(self) -> None:
        """Count a PONG. PONGs come in the order of the PINGs; one without a PING is ignored."""
        self.pongs = min(self.pongs + 1, self._pings)

    def heard(self, now_ms: int) -> None:
        """Note that bytes came."""
        self._heard_ms = now_ms
        self._asked_ms = None

    def check_handshake(self, now_ms: int) -> None:
        """Raise `PulsarProtocolError` if CONNECT is overdue. Other bytes do not extend the
        deadline.
        """
        if now_ms - self._opened_ms >= self._handshake_ms:
            raise PulsarProtocolError(
                Violation.NO_HANDSHAKE, f"no CONNECT came within {self._handshake_ms} ms"
            )

    def check_silence(self, now_ms: int, *, is_read: bool) -> bool:
        """Return whether a PING is due. Raise `PulsarProtocolError` if the client did not answer
        the last one in time.

        While nothing is read from the client, a PING is due every time, and no answer is.
        """
        since_ms = self._heard_ms if self._asked_ms is None else self._asked_ms
        if now_ms - since_ms < self._keep_alive_ms:
            return False
        if is_read and self._asked_ms is not None:
            raise PulsarProtocolError(
                Violation.NO_ANSWER, f"nothing came within {self._keep_alive_ms} ms of a PING"
            )
        self._asked_ms = now_ms
        return True


class Connection:
    """The state of one connection. Times are milliseconds of a monotonic clock.

    Answers raise `Bug` if there is no such request. After the end they do nothing.
    """

    __slots__ = (
        "_authentication",
        "_client_version",
        "_consumers",
        "_is_connected",
        "_keep_alive",
        "_limits",
        "_now_ms",
        "_outgoing",
        "_producers",
        "_protocol_version",
        "_requests",
        "_tables",
        "_waiting",
        "asked",
        "is_ended",
        "is_held",
        "reader",
    )

    def __init__(
        self,
        *,
        limits: Limits,
        now_ms: int,
        authenticate: Authenticate | None = None,
        admit: Admit | None = None,
    ) -> None:
        """Start with a connection that was just accepted. See `Authentication`."""
        self._limits = limits
        self._authentication = Authentication(authenticate, admit)
        # Before CONNECT no frame may be as large as an entry.
        self.reader = FrameReader(
            frame_bytes_max=limits.command_bytes_max, command_bytes_max=limits.command_bytes_max
        )
        kept = Kept(bytes_max=limits.kept_bytes_max)
        self._producers = Attachments(
            Asked.PRODUCER, limits=limits, count_max=limits.producers_max, kept=kept
        )
        self._consumers = Attachments(
            Asked.CONSUMER, limits=limits, count_max=limits.consumers_max, kept=kept
        )
        self._tables = {each.asked: each for each in (self._producers, self._consumers)}
        self._waiting = Waiting(limits=limits)
        self._requests: list[Request] = []
        self._outgoing = Outgoing()
        self._keep_alive = KeepAlive(limits=limits, now_ms=now_ms)
        self._now_ms = now_ms
        self._protocol_version = 0
        self._is_connected = False
        self.asked = 0
        """How many commands came, without those of `_OF_MESSAGES`."""
        self.is_ended = False
        """Whether the connection is over."""
        self.is_held = False
        """Whether it waits for `authenticated`, and handles nothing."""
        self._client_version = ""

    @property
    def pongs(self) -> int:
        """The number of answered PINGs; see `probe`."""
        return self._keep_alive.pongs

    @property
    def outgoing_bytes(self) -> int:
        """The number of bytes that `take_outgoing` would return."""
        return self._outgoing.waiting_bytes

    def receive(self, data: bytes, now_ms: int) -> list[Request]:
        """Return the client's requests in these bytes, in order. Never raises: a protocol violation
        returns `Ended`.

        If there is much work it returns only the first part. Call it again while `reader.has_more`,
        with or without more bytes.
        """
        if self.is_ended:
            return []
        self._now_ms = now_ms
        self._keep_alive.heard(now_ms)
        if self.is_held:
            self.reader.keep(data)
            return []
        try:
            if not self._is_connected:
                # Take only the first frame: it decides how large the next may be.
                for frame in self.reader.feed(data, cost_max=1):
                    self._take(frame)
                data = b""
            if self._is_connected:
                for frame in self.reader.feed(data, cost_max=self._limits.turn_cost_max):
                    self._take(frame)
            if self.reader.problem is not None:
                self._end(self.reader.problem)
        except PulsarProtocolError as problem:
            self._end(problem)
        return self._take_requests()

    def authenticated(self, checked: Identity | Refusal, now_ms: int) -> list[Request]:
        """Answer `CredentialsSent`, and return further requests. Call `receive` afterwards, with or
        without more bytes.
        """
        if self.is_ended:
            return []
        self._now_ms = now_ms
        self.is_held = False
        try:
            self._authentication.take(checked, now_ms)
            self._welcome()
        except PulsarProtocolError as problem:
            self._end(problem)
        return self._take_requests()

    def tick(self, now_ms: int, *, is_read: bool = True) -> list[Request]:
        """Send a PING if it is due, or end a silent connection. One that is not read at the moment
        is not silent.
        """
        if self.is_ended:
            return []
        self._now_ms = now_ms
        try:
            if not self._is_connected:
                self._keep_alive.check_handshake(now_ms)
            else:
                if self._keep_alive.check_silence(now_ms, is_read=is_read):
                    self.probe()
                method = self._authentication.challenge_due(now_ms)
                if method is not None:
                    self._outgoing.send(replies.auth_challenge(method, self._protocol_version))
        except PulsarProtocolError as problem:
            self._end(problem)
        return self._take_requests()

    def probe(self) -> int:
        """Send a PING behind everything written. Once `pongs` reaches the returned number, the
        client has received all of that.
        """
        self._outgoing.send(replies.PING)
        return self._keep_alive.asked()

    def end(self) -> None:
        """End the connection, because the stream is over or the edge closes it. Late answers are
        dropped and all ids detached.
        """
        self.is_ended = True
        self.reader.clear()
        self._outgoing.close()
        self._producers.clear()
        self._consumers.clear()
        self._waiting.clear()

    def take_outgoing(self) -> bytes:
        """Return the frames to write now. PINGs and PONGs come first, because the rest may be
        long.
        """
        return self._outgoing.take()

    def send(self, *parts: bytes) -> None:
        """Write one of `replies` that answers no request."""
        self._outgoing.send(*parts)

    def answer(self, request: Question | Change, reply: bytes) -> None:
        """Answer a request with one of `replies`."""
        if not self.is_ended:
            self._waiting.answer(request.asked, request.request_id)
            self._outgoing.send(reply)

    @property
    def identity(self) -> Identity | None:
        """Who the client is. None before the handshake, and without authentication."""
        return self._authentication.identity

    def refuse(
        self, request: Question | Change | Creation, error: ServerError, message: str
    ) -> None:
        """Refuse a request. No-op if it is a creation that was cancelled. If another broker serves
        the topic of a consumer, attach `Elsewhere` instead.
        """
        what, request_id = request.asked.value, request.request_id
        if not isinstance(request, Creation):
            self.answer(request, replies.refusal(what, request_id, error, message))
        elif self._settle(self._tables[request.asked], request.id, request_id) is not None:
            self._outgoing.send(
                replies.refusal(what, request_id, error, message, consumer_id=request.id)
            )

    def succeed(self, request: Change) -> None:
        """Answer a request with success."""
        self.answer(request, replies.success(request.request_id))
        if isinstance(request, Unsubscribed):
            self._consumers.detach(request.consumer_id)

    def opened(self, request: Creation, thing: object, *, name: str = "") -> bool:
        """Attach what the service created, which may be `Elsewhere`. Return False if the request
        was cancelled; then undo it.
        """
        table = self._tables[request.asked]
        creation = self._settle(table, request.id, request.request_id)
        if creation is None:
            return False
        creation.thing, creation.name = thing, name
        table.attach(request.id, creation)
        self._outgoing.send(replies.created(request, name))
        return True

    def close(self, asked: Asked, id_: int, url: str | None = None) -> None:
        """Redirect a producer or consumer to `url`, or to a new lookup, and ignore its late
        messages. No-op if it is not live.
        """
        if self._tables[asked].close(id_, self._now_ms):
            self._outgoing.send(replies.close(asked, id_, url))

    def active(self, consumer_id: int, *, is_active: bool) -> None:
        """Send a Failover consumer whether it is active. May come before `opened`."""
        if self._protocol_version >= _ACTIVE_CHANGE_VERSION:
            self._outgoing.send(replies.active_consumer_change(consumer_id, is_active=is_active))

    def _take(self, frame: Frame) -> None:
        """Handle one frame. Raise `PulsarProtocolError`."""
        if frame.block is not None and self._is_connected:
            send = commands.plain_send(frame.command)
            if send is not None:
                self._take_entry(send, frame.block)
                return
        command = commands.parse(frame.command)
        handler = self._HANDLERS.get(command.type)
        if handler is None:
            raise PulsarProtocolError(
                Violation.UNEXPECTED_COMMAND,
                f"{commands.name_of(command)}, which only brokers send",
            )
        if self._is_connected == (command.type == BaseCommand.CONNECT):
            raise PulsarProtocolError(
                Violation.UNEXPECTED_COMMAND,
                f"{commands.name_of(command)} {'after' if self._is_connected else 'before'} the"
                " handshake",
            )
        if frame.block is not None and command.type != BaseCommand.SEND:
            raise PulsarProtocolError(
                Violation.MALFORMED_FRAME,
                f"{len(frame.block)} bytes behind a {commands.name_of(command)}",
            )
        self.asked += command.type not in _OF_MESSAGES
        try:
            handler(self, command, frame)
        except NotServed as refusal:
            self._refuse(command, refusal)

    def _on_connect(self, command: BaseCommand, _frame: Frame) -> None:
        """Check the client's version and credentials, and answer the handshake."""
        connect = command.connect
        self._protocol_version = commands.agreed_version(connect)
        self._client_version = commands.client_version(connect, self._limits)
        credentials = commands.credentials_in(connect)
        if self._authentication.connect(
            credentials,
            self._now_ms,
            refreshes=connect.feature_flags.supports_auth_refresh,
            forwards=bool(connect.original_auth_data),
        ):
            self._welcome()
        else:
            self.is_held = True
            self._requests.append(CredentialsSent(credentials=credentials))

    def _welcome(self) -> None:
        self._is_connected = True
        self.reader.frame_bytes_max = self._limits.frame_bytes_max
        # CONNECTED must come first: as the answer to CONNECT clients accept nothing else, not even
        # a PONG.
        self._outgoing.send_first(
            replies.connected(self._protocol_version, self._limits.message_bytes_max)
        )
        self._requests.append(Connected(client_version=self._client_version))

    def _on_ping(self, _command: BaseCommand, _frame: Frame) -> None:
        self._outgoing.send_first(replies.PONG)

    def _on_pong(self, _command: BaseCommand, _frame: Frame) -> None:
        self._keep_alive.answered()

    def _on_auth_response(self, command: BaseCommand, _frame: Frame) -> None:
        """Take fresh credentials. As in Pulsar, success has no answer."""
        self._authentication.answer(
            commands.credentials_in(command.auth_response.response), self._now_ms
        )

    def _on_nothing_to_do(self, _command: BaseCommand, _frame: Frame) -> None:
        """Ignore a command: nothing is redelivered."""

    def _on_send(self, command: BaseCommand, frame: Frame) -> None:
        self._take_entry(command.send, frame.block)

    def _take_entry(self, send: CommandSend, block: bytes | None) -> None:
        producer_id = send.producer_id
        attached = self._producers.live.get(producer_id)
        if attached is None:
            self._check_stray(producer_id)
            return
        if isinstance(attached.thing, Elsewhere):
            self.close(Asked.PRODUCER, producer_id, attached.thing.url)
            return
        if block is None:
            raise PulsarProtocolError(Violation.MALFORMED_FRAME, "a SEND without an entry")
        if not checksum_is_good(block):
            self._requests.append(Damaged(producer=attached.thing, sequence_id=send.sequence_id))
            return
        messages = commands.messages_in(send, block, self._limits)
        sent = Sent(send.sequence_id, send.highest_sequence_id, messages, block)
        last = self._requests[-1] if self._requests else None
        if isinstance(last, Published) and last.producer is attached.thing:
            last.entries.append(sent)
        else:
            self._requests.append(Published(producer=attached.thing, entries=[sent]))

    def _check_stray(self, producer_id: int) -> None:
        """Check a message for no live producer. It is late if this broker closed the producer, and
        too early if it is not yet open.
        """
        if producer_id not in self._producers.creations and not self._producers.was_closed(
            producer_id, self._now_ms
        ):
            raise PulsarProtocolError(
                Violation.UNKNOWN_PRODUCER, f"a message for the unknown producer {producer_id}"
            )

    def _on_flow(self, command: BaseCommand, _frame: Frame) -> None:
        consumer_id = command.flow.consumer_id
        consumer = self._consumers.live.get(consumer_id)
        if consumer is None:
            return  # It may have crossed a CLOSE_CONSUMER.
        if isinstance(consumer.thing, Elsewhere):
            self.close(Asked.CONSUMER, consumer_id, consumer.thing.url)
        else:
            self._requests.append(
                Flowed(consumer=consumer.thing, permits=command.flow.messagePermits)
            )

    def _on_ack(self, command: BaseCommand, _frame: Frame) -> None:
        ack = command.ack
        consumer = self._consumers.live.get(ack.consumer_id)
        if consumer is not None:
            self._requests.append(Acked(consumer=consumer.thing))
        if ack.HasField("request_id"):
            self._outgoing.send(replies.ack_response(ack.consumer_id, ack.request_id))

    def _on_question(self, command: BaseCommand, frame: Frame) -> None:
        """Pass on a request that only the service can answer and that leaves no state in the
        connection.
        """
        self._ask(commands.question(command, self._limits), frame)

    def _on_creation(self, command: BaseCommand, frame: Frame) -> None:
        asked = commands.creation(command, self._limits)
        table, kept_bytes = self._tables[asked.asked], commands.kept_bytes(asked)
        live = table.check_creation(asked.id, asked.place, kept_bytes)
        if live is not None:
            self._outgoing.send(replies.created(asked, live.name))
            return
        self._ask(asked, frame)
        table.ask(
            asked.id,
            Attached(request_id=asked.request_id, place=asked.place, kept_bytes=kept_bytes),
        )

    def _on_close(self, command: BaseCommand, frame: Frame) -> None:
        """Pass on the end of what is live under an id and served here. Otherwise answer the client,
        and cancel a pending creation.
        """
        if command.type == BaseCommand.CLOSE_PRODUCER:
            table, id_ = self._producers, command.close_producer.producer_id
        else:
            table, id_ = self._consumers, command.close_consumer.consumer_id
        request_id, live = commands.request_id_of(command), table.live.get(id_)
        if live is not None and not isinstance(live.thing, Elsewhere):
            self._ask(Closed(thing=live.thing, request_id=request_id), frame)
            table.detach(id_)
            return
        table.detach(id_)
        creation = table.creations.get(id_)
        if creation is not None:
            self._settle(table, id_, creation.request_id)
            self._requests.append(
                CreationCancelled(asked=table.asked, request_id=creation.request_id)
            )
        self._outgoing.send(replies.success(request_id))

    def _on_unsubscribe(self, command: BaseCommand, frame: Frame) -> None:
        asked = command.unsubscribe
        thing = self._consumer(asked.consumer_id, ServerError.MetadataError)
        request = Unsubscribed(
            consumer=thing,
            consumer_id=asked.consumer_id,
            request_id=asked.request_id,
            is_forced=asked.force,
        )
        self._ask(request, frame)

    def _on_consumer_stats(self, command: BaseCommand, frame: Frame) -> None:
        asked = command.consumer_stats
        thing = self._consumer(asked.consumer_id, ServerError.ConsumerNotFound)
        self._ask(ConsumerStatsAsked(consumer=thing, request_id=asked.request_id), frame)

    def _on_seek(self, command: BaseCommand, _frame: Frame) -> None:
        """Answer success: nothing is stored, and a consumer is always at the messages to come."""
        thing = self._consumer(command.seek.consumer_id, ServerError.MetadataError)
        self._outgoing.send(replies.success(command.seek.request_id))
        self._requests.append(Sought(consumer=thing))

    def _on_last_message_id(self, command: BaseCommand, _frame: Frame) -> None:
        self._consumer(command.get_last_message_id.consumer_id, ServerError.MetadataError)
        self._outgoing.send(replies.no_last_message(command.get_last_message_id.request_id))

    def _on_not_served(self, command: BaseCommand, _frame: Frame) -> None:
        raise NotServed(
            error=ServerError.NotAllowedError,
            problem=f"{commands.name_of(command)} is not served by this broker",
        )

    def _ask(self, request: Question | Change | Creation, frame: Frame) -> None:
        self._waiting.ask(request.asked, request.request_id, len(frame.command))
        self._requests.append(request)

    def _settle(self, table: Attachments, id_: int, request_id: int) -> Attached | None:
        creation = table.settle(id_, request_id)
        if creation is not None:
            self._waiting.answer(table.asked, request_id)
        return creation

    def _consumer(self, consumer_id: int, error: ServerError) -> object:
        """Return what the service attached to a consumer. Raise `NotServed` with `error` if there
        is no such consumer.
        """
        live = self._consumers.live.get(consumer_id)
        if live is None or isinstance(live.thing, Elsewhere):
            raise NotServed(
                error=error,
                problem=f"this connection has no consumer {consumer_id}; subscribe again",
            )
        return live.thing

    def _refuse(self, command: BaseCommand, refusal: NotServed) -> None:
        """Refuse a request without the service, and report it for counting."""
        what = commands.name_of(command)
        reply = replies.refusal(
            what,
            commands.request_id_of(command),
            refusal.error,
            refusal.problem,
            consumer_id=command.subscribe.consumer_id,
        )
        self._outgoing.send(reply)
        self._requests.append(TurnedAway(what=what))

    def _end(self, problem: PulsarProtocolError) -> None:
        answer = _LAST_ANSWERS.get(problem.violation)
        if answer is not None:
            self._outgoing.send(replies.error(replies.MINUS_ONE, answer, problem.problem))
        self.end()
        self._requests.append(Ended(problem=problem.problem, counted_as=problem.violation))

    def _take_requests(self) -> list[Request]:
        requests, self._requests = self._requests, []
        return requests

    # Types that are missing here come only from brokers.
    _HANDLERS: ClassVar[
        dict[BaseCommand.Type, Callable[[Connection, BaseCommand, Frame], None]]
    ] = {
        BaseCommand.CONNECT: _on_connect,
        BaseCommand.PING: _on_ping,
        BaseCommand.PONG: _on_pong,
        BaseCommand.AUTH_RESPONSE: _on_auth_response,
        BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: _on_nothing_to_do,
        BaseCommand.PARTITIONED_METADATA: _on_question,
        BaseCommand.LOOKUP: _on_question,
        BaseCommand.GET_TOPICS_OF_NAMESPACE: _on_question,
        BaseCommand.GET_SCHEMA: _on_question,
        BaseCommand.GET_OR_CREATE_SCHEMA: _on_question,
        BaseCommand.PRODUCER: _on_creation,
        BaseCommand.SEND: _on_send,
        BaseCommand.CLOSE_PRODUCER: _on_close,
        BaseCommand.SUBSCRIBE: _on_creation,
        BaseCommand.FLOW: _on_flow,
        BaseCommand.ACK: _on_ack,
        BaseCommand.UNSUBSCRIBE: _on_unsubscribe,
        BaseCommand.CLOSE_CONSUMER: _on_close,
        BaseCommand.CONSUMER_STATS: _on_consumer_stats,
        BaseCommand.SEEK: _on_seek,
        BaseCommand.GET_LAST_MESSAGE_ID: _on_last_message_id,
        **dict.fromkeys(commands.NOT_SERVED, _on_not_served),
    }


REFUSABLE: Final = commands.requests_among(Connection._HANDLERS)  # noqa: SLF001 - of this module
"""Pulsar's names of the commands that a client may send and that may be refused: those with a
request id."""
