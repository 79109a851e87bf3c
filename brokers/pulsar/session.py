"""One client's connection on the loop: what comes in, what goes out, and what it has here.

May live here: `Session`, the asyncio side of one `Connection`: writing and its bounds, signs of life, the producers and
consumers that hang on the connection. What the client asks is answered in `brokers.pulsar.answers`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeVar, cast

from equipoise.brokers.pulsar.answers import Answers
from equipoise.brokers.pulsar.hosting import Served
from equipoise.brokers.pulsar.service import tell_active
from equipoise.brokers.pulsar.topics.dispatch import Consumer
from equipoise.brokers.pulsar.topics.outcomes import Producer, Receipt
from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.errors import Violation
from equipoise.brokers.pulsar.wire.requests import Ended, Request

if TYPE_CHECKING:
    from equipoise.brokers.pulsar.server import Server

_logger: Final = logging.getLogger(__name__)

A = TypeVar("A", Producer, Consumer)

# A client that is parted with has this long to take the last words; it may be one that takes nothing at all.
_LAST_WORDS_S: Final = 1.0

# So much of what a turn of the loop delivers, the system takes of whoever is not behind. More counts as soon as it is delivered: the
# turn may deliver to thousands, and nobody can take anything before it is over.
_WRITTEN_AT_ONCE_BYTES: Final = 16 * 1024


class Session(asyncio.Protocol):
    """One connection. Everything is called on the loop."""

    __slots__ = (
        "_answers",
        "_has_delivered",
        "_has_left",
        "_is_busy",
        "_is_soiled",
        "_probes",
        "_server",
        "_service",
        "_transport",
        "address",
        "client_version",
        "connection",
        "consumers",
        "is_writable",
        "producers",
        "taken_at_ms",
    )

    def __init__(self, server: Server) -> None:
        """Made by the server for each connection that it accepts."""
        self._server = server
        self._service = server.service
        self._transport: asyncio.Transport | None = None
        self._is_busy = False
        self._is_soiled = False
        self._has_left = False
        self._has_delivered = False
        self._probes: list[tuple[int, asyncio.Future[None]]] = []
        self.taken_at_ms: int | None = None
        self.connection = Connection(limits=server.limits, now_ms=server.now_ms())
        self.address = ""
        self.client_version = ""
        self.is_writable = True
        self.producers: dict[Producer, Served] = {}
        self.consumers: dict[Consumer, Served] = {}
        self._answers = Answers(self, server)

    # --- what the transport says ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected; one too many is turned away at once."""
        # Not by `isinstance`: uvloop's transports do not descend from asyncio's.
        self._transport = transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        transport.set_write_buffer_limits(high=self._server.settings.write_buffer_bytes)
        if not self._server.admit(self):
            self.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes came: take the whole frames in them, in order; of very many only some, so that others get their turn."""
        self._take(self.connection.receive(data, self._server.now_ms()))
        if self._probes:
            self._answer_probes()
        self.write_soon()
        reader = self.connection.reader
        self._server.keeps_unfinished(self, reader.pending_bytes, came_bytes=len(data))
        if reader.has_more and not self._is_busy:
            self._set_busy(is_busy=True)

    def _go_on(self) -> None:
        """The next turn: take some more of what was read."""
        self._is_busy = False
        self.data_received(b"")
        if not self._is_busy:
            self._set_busy(is_busy=False)

    def _set_busy(self, *, is_busy: bool) -> None:
        """Nothing more is read while what was read is not yet taken, so that no more than one chunk of the transport piles up."""
        self._is_busy = is_busy
        if is_busy:
            asyncio.get_running_loop().call_soon(self._go_on)
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if is_busy else self._transport.resume_reading)()

    def pause_writing(self) -> None:
        """The client takes nothing more for now: what is published meanwhile is dropped for its consumers, and counted."""
        # Only noted: this is called in the midst of writing.
        self.is_writable = False
        for consumer, served in self.consumers.items():
            served.topic.writable(consumer, is_writable=False, now_ms=self._server.now_ms())

    def resume_writing(self) -> None:
        """The client takes again."""
        self._count_behind()
        self.is_writable = True
        for consumer, served in list(self.consumers.items()):
            self._service.resume(served, consumer)

    def eof_received(self) -> None:
        """The client says no more. It may take no more either, which must not keep its socket open for ever."""
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how a client went away changes nothing
        """The client is gone, and with it all that it had here."""
        self._leave()
        self._server.left(self)

    # --- what the server and the service do with it ---

    def soil(self) -> None:
        """Something waits to be written: do so at the end of this turn of the loop, with all that comes until then."""
        if not self._is_soiled:
            self._is_soiled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def write_soon(self) -> None:
        """What was answered goes out at the end of this turn; or at once, if it is much: many answers could make too much of it."""
        if self.connection.outgoing_bytes > self._server.settings.write_buffer_bytes:
            self.flush()
        elif self.connection.outgoing_bytes:
            self.soil()

    def flush(self) -> None:
        """Write what waits. A client that only ever asks, and takes none of the answers, is given up."""
        self._is_soiled = False
        transport = self._transport
        outgoing = self.connection.take_outgoing()
        if not outgoing or transport is None or transport.is_closing():
            return
        transport.write(outgoing)
        behind_bytes = transport.get_write_buffer_size()
        violation = self._server.is_behind(self, behind_bytes)
        if violation is not None:
            self._server.broke_off(self, violation, f"it takes nothing: {behind_bytes} bytes wait for it")
            self.abort()

    def tick(self, now_ms: int) -> None:
        """Time has passed: keep the connection alive, or give it up."""
        self._take(self.connection.tick(now_ms))
        self.write_soon()
        self._count_behind()

    def close(self) -> None:
        """Write what waits, and end the connection; one that takes nothing is cut off soon."""
        self.flush()
        self._leave()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._transport.abort)

    def abort(self) -> None:
        """End the connection at once: its client is dead, or takes nothing."""
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def deliver(self, consumer: Consumer, entry_id: int, partition: int, block: bytes) -> bool:
        """Write one message to a consumer; False if too much waits for its client already."""
        connection, settings, behind = self.connection, self._server.settings, self._server.behind
        # Reckoned with the message: what it would be too much with is dropped, and nobody is cut off for having been sent it.
        block_bytes = len(block)
        if not self.is_writable and self.behind_bytes + block_bytes > settings.messages_behind_bytes_max:
            return False
        if behind.would_exceed(block_bytes) and self.behind_bytes + block_bytes > behind.share_bytes:
            return False
        self._has_delivered = True
        connection.message(consumer.consumer_id, entry_id, partition, block)
        if connection.outgoing_bytes > settings.write_buffer_bytes:
            # Not at the end of the turn: many subscriptions of one client could make too much of it in one.
            self.flush()
            return True
        if connection.outgoing_bytes > _WRITTEN_AT_ONCE_BYTES:
            behind.hold(self, self.behind_bytes)
        self.soil()
        return True

    def confirm(self, receipt: Receipt) -> None:
        """Write one receipt to a producer."""
        producer = receipt.producer
        self.connection.receipt(producer.producer_id, receipt.sequence_id, receipt.highest_sequence_id, 0, receipt.entry_id)
        self.soil()

    def part_producer(self, producer: Producer, url: str | None) -> None:
        """Send a producer to `url`, or to ask where its topic is: it is not here any more."""
        if self.producers.pop(producer, None) is not None:
            self.connection.close_producer(producer.producer_id, url)
            self.soil()

    def part_consumer(self, consumer: Consumer, url: str | None) -> None:
        """As `part_producer`, of a consumer."""
        if self.consumers.pop(consumer, None) is not None:
            self.connection.close_consumer(consumer.consumer_id, url)
            self.soil()

    def drop_producer(self, producer: Producer, served: Served) -> None:
        """A producer is gone from its topic, which is not kept for nobody."""
        self.producers.pop(producer, None)
        self._service.forget_producers(served, (producer,))

    def drop_consumer(self, consumer: Consumer, served: Served) -> None:
        """As `drop_producer`, of a consumer; others may come in for it."""
        self.consumers.pop(consumer, None)
        tell_active(served.topic.remove_consumer(consumer))
        self._service.hosting.forget_if_idle(served)

    async def is_alive(self) -> bool:
        """Whether the client answers a PING soon."""
        # One that was asked already is not asked again: whoever wants its place could make it say PONG for ever.
        probe = self._probes[-1][1] if self._probes else self._probe()
        done, _ = await asyncio.wait([probe], timeout=self._server.settings.probe_ms / 1_000)
        return any(not probe.cancelled() for probe in done)

    def taken(self) -> asyncio.Future[None] | None:
        """Done, or cancelled with the connection, once the client has taken all messages written so far; None if it has.

        `taken_at_ms` is then when that was last found out, if it ever was: its program may have some of them still before it.
        """
        if self._has_delivered:
            return self._probe()
        return self._probes[-1][1] if self._probes else None

    def _probe(self) -> asyncio.Future[None]:
        """A PING behind all that was written; done once its PONG is here."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._has_left:
            answered.cancel()
            return answered
        self._probes.append((self.connection.probe(), answered))
        self._has_delivered = False
        self.soil()
        return answered

    def _answer_probes(self) -> None:
        while self._probes and self._probes[0][0] <= self.connection.pongs:
            _, answered = self._probes.pop(0)
            self.taken_at_ms = self._server.now_ms()
            if not answered.done():
                answered.set_result(None)

    @property
    def behind_bytes(self) -> int:
        """What waits for the client in this process."""
        return self.connection.outgoing_bytes + (0 if self._transport is None else self._transport.get_write_buffer_size())

    def _count_behind(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._server.behind.hold(self, self._transport.get_write_buffer_size())

    def _take(self, requests: list[Request]) -> None:
        for request in requests:
            try:
                if isinstance(request, Ended):
                    self._end(request)
                else:
                    self._answers.answer(request)
                    self.write_soon()
            except Exception:
                # One client's request must neither end the broker nor leave its connection in the midst of something.
                about = {"broker": self._server.broker_id, "client": self.address, "request": type(request).__name__}
                _logger.exception("a request of a Pulsar client failed", extra=about)
                self.abort()
            if self._has_left:
                return

    def _end(self, ended: Ended) -> None:
        self._server.broke_off(self, ended.counted_as, ended.problem)
        if ended.counted_as is Violation.NO_ANSWER:
            self.abort()
        else:
            self.close()

    def _leave(self) -> None:
        """Nothing comes of this connection any more, whether or not its socket is still open."""
        self.connection.end()
        if self._has_left:
            return
        self._has_left = True
        self._answers.end()
        for _, probe in self._probes:
            probe.cancel()
        # Topic by topic: hundreds of one topic leave it in one step, and one that is active after it is told once.
        for served, producers in _by_topic(self.producers).items():
            self._service.forget_producers(served, producers)
        self.producers.clear()
        leaving = _by_topic(self.consumers)
        self.consumers.clear()
        for served, consumers in leaving.items():
            tell_active(served.topic.remove_consumers(consumers))
            self._service.hosting.forget_if_idle(served)


def _by_topic(attached: Mapping[A, Served]) -> Mapping[Served, list[A]]:
    """What a client has here, of each topic."""
    found: defaultdict[Served, list[A]] = defaultdict(list)
    for thing, served in attached.items():
        found[served].append(thing)
    return found
