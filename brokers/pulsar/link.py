"""Run one client connection on the asyncio loop: reading, bounded writing, keep-alive, and what the
client has opened.

It passes each request to its session (`brokers.pulsar.session`), and writes what topics have for
the client.
"""

from __future__ import annotations

import asyncio
import socket
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol, cast

from equipoise.brokers.pulsar.connections import Connections
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.topics.clients import Consumer, Producer, Receipt
from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.connection import Connection
from equipoise.brokers.pulsar.wire.requests import (
    Asked,
    Ended,
    PulsarProtocolError,
    Request,
    Violation,
)
from equipoise.brokers.security.gate import Certificate
from equipoise.brokers.security.identity import Credentials, Identity, Refusal, Surface
from equipoise.brokers.security.limits import Limit, of_role
from equipoise.brokers.security.rights import CONSUME, PRODUCE, Need
from equipoise.channel.system.clocks import now_ms

# The version prefix of Pulsar's Java client.
_JAVA: Final = "Pulsar-Java"

# Time for a closed client to read the last answers; it may read nothing at all.
_LAST_READ_S: Final = 1.0

# Deliveries up to this size count when the turn is written: the system buffers them for a client
# that keeps up. More counts at once. One turn may deliver to thousands of clients, and none can
# read before it ends.
_WRITTEN_AT_ONCE_BYTES: Final = 16 * 1024

# After this much of a client's input the other connections have a turn. Otherwise uvloop would read
# 32 chunks of 256 KiB from a producer before it reads the FLOW of a consumer.
_TURN_BYTES: Final = 64 * 1024

# How soon to try again what exceeds a rate of the client's identity: settings do not change, but a
# connection that is gone must not be kept.
_LIMITED_MS: Final = 10_000

# Linux only. Elsewhere acknowledgements are delayed as the system likes.
_QUICK_ACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)


class Requests(Protocol):
    """What handles the requests of one client."""

    def take(self, requests: Iterable[Request]) -> None:
        """Handle requests, behind those that wait."""
        ...

    def end(self) -> None:
        """Drop all that waits, because the connection is over."""
        ...


class ClientLink(asyncio.Protocol):
    """One connection. All methods run on the loop."""

    __slots__ = (
        "_certificate",
        "_connections",
        "_has_delivered",
        "_is_busy",
        "_is_write_due",
        "_probes",
        "_session",
        "_settle_ms",
        "_transport",
        "address",
        "client_version",
        "clients",
        "connection",
        "has_left",
        "identities",
        "is_throttled",
        "is_writable",
        "taken_at_ms",
    )

    def __init__(
        self,
        connections: Connections[ClientLink],
        session: Callable[[ClientLink], Requests],
        *,
        settle_ms: int,
    ) -> None:
        """Create the link of a connection that the server accepts. `session` handles its requests.

        `settle_ms` is the least time that a client's program has to read a message from its library
        before its consumer reconnects.
        """
        self._connections = connections
        self._settle_ms = settle_ms
        self._transport: asyncio.Transport | None = None
        self._is_busy = False
        self._is_write_due = False
        self._has_delivered = False
        self._probes: list[tuple[int, asyncio.Future[None]]] = []
        self._certificate: Certificate | None = None
        self.connection = Connection(
            limits=connections.limits,
            now_ms=now_ms(),
            authenticate=None if connections.gate is None else self._authenticate,
            admit=self._admit,
        )
        self.address = ""
        self.client_version = ""
        self.has_left = False
        self.identities: list[str] = []
        """Those among whose connections this one counts: of the address, then of the role. What the
        client takes counts for the last."""
        self.is_throttled = False
        """Whether reading is paused by the publish rate of a topic, or by a rate of the client's
        identity."""
        self.is_writable = True
        self.clients: dict[Producer | Consumer, Served] = {}
        self.taken_at_ms: int | None = None
        self._session = session(self)

    # --- transport callbacks ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or refuse it if there are too many."""
        # Not `isinstance`: uvloop's transports do not inherit from asyncio's.
        self._transport = transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self._certificate = transport.get_extra_info("peercert")
        self.identities.append(
            self._connections.identity_limits.of_address(self.address.rpartition(":")[0])
        )
        transport.set_write_buffer_limits(high=self._connections.settings.write_buffer_bytes)
        problem = self._connections.admit(self)
        if problem is not None:
            self._leave()
            self._connections.reject(transport, problem)

    def data_received(self, data: bytes) -> None:
        """Handle the complete frames, in order. Leave the rest of a large batch to the next
        turn.
        """
        now, asked = now_ms(), self.connection.asked
        self._session.take(self.connection.receive(data, now))
        self._connections.identity_limits.took(
            self.identities[-1],
            now,
            requests=self.connection.asked - asked,
            received_bytes=len(data),
        )
        if self._probes:
            self._answer_probes()
        self.write_soon()
        reader = self.connection.reader
        # Whole frames that are left for later are no unfinished frame. They are one read of the
        # transport at most.
        self._connections.note_unfinished(
            self, 0 if reader.has_more else reader.pending_bytes, came_bytes=len(data)
        )
        if self.connection.is_held:
            self._set_busy(is_busy=True)
            return
        self._rest()
        if reader.has_more or len(data) >= _TURN_BYTES:
            self.pause(0)
        elif data and reader.pending_bytes:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledge the bytes read now, not in 40 ms: a client without TCP_NODELAY sends the rest
        of its frame only then.
        """
        # The system soon returns to delays, so set the option each time.
        if self._transport is not None and _QUICK_ACK is not None:
            with suppress(OSError):  # The client may have reset the connection.
                self._transport.get_extra_info("socket").setsockopt(
                    socket.IPPROTO_TCP, _QUICK_ACK, 1
                )

    def pause(self, ms: int) -> None:
        """Pause reading until this time has passed, so that at most one chunk of the transport
        accumulates.
        """
        if not self._is_busy:
            asyncio.get_running_loop().call_later(ms / 1_000, self._go_on)
            self._set_busy(is_busy=True)

    def _go_on(self) -> None:
        """Handle the requests that waited, and more of the bytes read."""
        self._is_busy = self.is_throttled = False
        if self._rest():
            return
        self._session.take(())
        if not self._is_busy:
            self.data_received(b"")
        if not self._is_busy:
            self._set_busy(is_busy=False)

    def _rest(self) -> bool:
        """Pause reading if the client exceeds a rate. Return whether it does; False while reading
        is paused already.

        It is no error: a refused request would fail in the client's program, and a refused message
        would be lost.
        """
        if self.has_left or self._is_busy:
            return False
        excess = self._connections.identity_limits.excess(
            Surface.PULSAR, self.identities[-1], now_ms()
        )
        if excess is None:
            return False
        self.is_throttled = True
        self.pause(min(excess.wait_ms, _LIMITED_MS))
        return True

    def _set_busy(self, *, is_busy: bool) -> None:
        self._is_busy = is_busy
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if is_busy else self._transport.resume_reading)()

    def pause_writing(self) -> None:
        """Note that the client reads too slowly. Messages for its consumers are now dropped and
        counted.
        """
        # Only set the flag: the transport calls this during a write.
        self.is_writable = False
        for consumer, served in self.clients.items():
            if isinstance(consumer, Consumer):
                served.topic.writable(consumer, is_writable=False)

    def resume_writing(self) -> None:
        """Note that the client reads again."""
        self._count_behind()
        self.is_writable = True
        for consumer, served in list(self.clients.items()):
            if isinstance(consumer, Consumer):
                served.resume(consumer)

    def eof_received(self) -> None:
        """Close the connection after the client's end of stream. It may read nothing either, so its
        socket must not stay open.
        """
        self.close()

    # The reason changes nothing.
    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Remove the client and all its producers and consumers."""
        self._leave()
        self._connections.left(self)

    # --- authentication ---

    def _authenticate(self, credentials: Credentials | None) -> Identity | Refusal | None:
        """Return who the client is, why it is refused, or None if a hash must be computed: then
        `check_credentials` follows.
        """
        assert self._connections.gate is not None, "otherwise nothing is asked"
        return self._noted(
            self._connections.gate.check(Surface.PULSAR, credentials, self._certificate)
        )

    def _noted(self, checked: Identity | Refusal | None) -> Identity | Refusal | None:
        if isinstance(checked, Refusal):
            self._connections.refused(self, checked)
        return checked

    def _admit(self, identity: Identity) -> None:
        """Count the connection for its role. Raise `PulsarProtocolError` if that has too many."""
        limits, role = self._connections.identity_limits, of_role(identity.role)
        if not limits.connect(Surface.PULSAR, role):
            raise PulsarProtocolError(
                Violation.TOO_MANY_CONNECTIONS, limits.problem(Limit.CONNECTIONS, role)
            )
        self.identities.append(role)

    async def check_credentials(self, credentials: Credentials | None) -> None:
        """Compute the hash of a password, and go on with what the client sent meanwhile."""
        assert self._connections.gate is not None, "otherwise nothing is asked"
        checked = await self._connections.gate.checked(
            Surface.PULSAR, credentials, self._certificate, client=self.identities[0]
        )
        self._noted(checked)
        self._session.take(self.connection.authenticated(checked, now_ms()))
        if not self.has_left:
            self._go_on()

    # --- calls by the server and the service ---

    def write_at_end_of_turn(self) -> None:
        """Schedule a write at the end of this turn of the loop, with everything added until
        then.
        """
        if not self._is_write_due:
            self._is_write_due = True
            asyncio.get_running_loop().call_soon(self.flush)

    def write_soon(self) -> None:
        """Write answers at the end of this turn, or at once if they are large, since many could
        accumulate.
        """
        if self.connection.outgoing_bytes > self._connections.settings.write_buffer_bytes:
            self.flush()
        elif self.connection.outgoing_bytes:
            self.write_at_end_of_turn()

    def flush(self) -> None:
        """Write pending bytes. Disconnect a client that keeps asking and never reads."""
        self._is_write_due = False
        transport = self._transport
        outgoing = self.connection.take_outgoing()
        if not outgoing or transport is None or transport.is_closing():
            return
        transport.write(outgoing)
        behind_bytes = transport.get_write_buffer_size()
        violation = self._connections.note_behind(self, behind_bytes)
        if violation is not None:
            self._connections.disconnected(
                self, violation, f"it does not read: {behind_bytes} bytes wait for it"
            )
            self.abort()

    def tick(self, now_ms: int) -> None:
        """Send a keep-alive, or abort a silent connection. A throttled one only fails if its client
        has closed it.
        """
        self._session.take(self.connection.tick(now_ms, is_read=not self.is_throttled))
        self.write_soon()
        self._count_behind()

    def close(self) -> None:
        """Write pending bytes and close. A client that does not read is soon cut off."""
        self.flush()
        self._leave()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            asyncio.get_running_loop().call_later(_LAST_READ_S, self._transport.abort)

    def abort(self) -> None:
        """Close the connection at once, because the client is dead or does not read."""
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def deliver(self, consumer: Consumer, entry_id: int, partition: int, block: bytes) -> bool:
        """Write a message to a consumer. Return False if too much already waits for its client."""
        connection, settings, behind = (
            self.connection,
            self._connections.settings,
            self._connections.behind,
        )
        # Count this message too: drop it rather than disconnect the client for receiving it.
        block_bytes = len(block)
        if (
            not self.is_writable
            and self.behind_bytes + block_bytes > settings.messages_behind_bytes_max
        ):
            return False
        if (
            behind.would_exceed(block_bytes)
            and self.behind_bytes + block_bytes > behind.share_bytes
        ):
            return False
        self._has_delivered = True
        connection.send(replies.message_head(consumer.id, entry_id, partition, block_bytes), block)
        if connection.outgoing_bytes > settings.write_buffer_bytes:
            # Do not wait for the end of the turn: many subscriptions of one client could accumulate
            # too much in it.
            self.flush()
            return True
        if connection.outgoing_bytes > _WRITTEN_AT_ONCE_BYTES:
            behind.hold(self, self.behind_bytes)
        self.write_at_end_of_turn()
        return True

    def confirm(self, producer: Producer, receipts: Iterable[Receipt]) -> None:
        """Write receipts to a producer."""
        send, producer_id = self.connection.send, producer.id
        for _, sequence_id, highest_sequence_id, entry_id in receipts:
            send(replies.receipt(producer_id, sequence_id, highest_sequence_id, entry_id))
        self.write_at_end_of_turn()

    def activate(self, consumer: Consumer, *, is_active: bool) -> None:
        """Send a consumer of a Failover subscription whether it is the active one."""
        self.connection.active(consumer.id, is_active=is_active)
        self.write_at_end_of_turn()

    def revoke(self, has: Callable[[Need, str], bool]) -> None:
        """End producers and consumers of topics for which the client lost its right."""
        for client, served in tuple(self.clients.items()):
            if not has(PRODUCE if isinstance(client, Producer) else CONSUME, served.name):
                self.redirect(client, None)
                self.drop(client, served)

    def redirect(self, client: Producer | Consumer, url: str | None) -> None:
        """Redirect a producer or consumer to `url`, or make it look its topic up again if that is
        None.
        """
        if self.clients.pop(client, None) is not None:
            asked = Asked.PRODUCER if isinstance(client, Producer) else Asked.CONSUMER
            self.connection.close(asked, client.id, url)
            self.write_at_end_of_turn()

    def drop(self, client: Producer | Consumer, served: Served) -> None:
        """Remove a producer or consumer from its topic, and the topic if it is then idle. Other
        consumers may become active.
        """
        self.clients.pop(client, None)
        served.remove((client,))

    async def is_alive(self) -> bool:
        """Return whether the client answers a PING in time, or cannot because nothing is read from
        it.
        """
        was_throttled = self.is_throttled
        # Reuse a pending PING: otherwise a client that wants its place could make it answer
        # forever.
        probe = self._probes[-1][1] if self._probes else self._probe()
        await asyncio.wait([probe], timeout=self._connections.settings.probe_ms / 1_000)
        return not self.has_left and (probe.done() or was_throttled or self.is_throttled)

    async def settled(self) -> None:
        """Wait until the client has received its messages and its program has had time to read
        them.

        A client that answers slowly lacks CPU, so its program gets as much time again.
        """
        settings = self._connections.settings
        began_ms, settle_ms = now_ms(), self._settle_ms
        taken = self.taken()
        if taken is not None:
            await asyncio.wait([taken], timeout=settings.drain_wait_ms / 1_000)
        if self.client_version.startswith(_JAVA) and (
            taken is not None or self.taken_at_ms is not None
        ):
            # The client may have answered a moment ago for another bundle; its program may still be
            # reading those messages.
            passed_ms = (
                0 if taken is not None or self.taken_at_ms is None else began_ms - self.taken_at_ms
            )
            settle_ms = max(settle_ms, settings.settle_java_ms - passed_ms)
        await asyncio.sleep(max(settle_ms, now_ms() - began_ms) / 1_000)

    def taken(self) -> asyncio.Future[None] | None:
        """Return a future that is done once the client has received everything written, or None if
        it already has.

        The future is cancelled with the connection. `taken_at_ms` is when receipt was last
        confirmed, or None; the client's program may not have read those messages yet.
        """
        if self._has_delivered:
            return self._probe()
        return self._probes[-1][1] if self._probes else None

    def _probe(self) -> asyncio.Future[None]:
        """Send a PING behind everything written. Return a future that is done when its PONG
        arrives.
        """
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.has_left:
            answered.cancel()
            return answered
        self._probes.append((self.connection.probe(), answered))
        self._has_delivered = False
        self.write_at_end_of_turn()
        return answered

    def _answer_probes(self) -> None:
        while self._probes and self._probes[0][0] <= self.connection.pongs:
            _, answered = self._probes.pop(0)
            self.taken_at_ms = now_ms()
            if not answered.done():
                answered.set_result(None)

    @property
    def identity(self) -> Identity | None:
        """Who the client is, once it has proved that."""
        return self.connection.identity

    @property
    def behind_bytes(self) -> int:
        """The bytes that wait for the client in this process."""
        return self.connection.outgoing_bytes + (
            0 if self._transport is None else self._transport.get_write_buffer_size()
        )

    def _count_behind(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._connections.behind.hold(self, self._transport.get_write_buffer_size())

    def end(self, ended: Ended) -> None:
        """Disconnect the client, once it has its last answer."""
        self._connections.disconnected(self, ended.counted_as, ended.problem)
        last_answer = self._connections.last_answer(ended)
        if last_answer and self._transport is not None:
            self._transport.write(last_answer)
        if ended.counted_as is Violation.NO_ANSWER:
            self.abort()
        else:
            self.close()

    def _leave(self) -> None:
        """Clean up. The socket may still be open."""
        self.connection.end()
        self._session.end()
        if self.has_left:
            return
        self.has_left = True
        for _, probe in self._probes:
            probe.cancel()
        # Leave topic by topic: hundreds of consumers of one topic leave in one step, and its new
        # active consumer is notified once.
        leaving = defaultdict[Served, list[Producer | Consumer]](list)
        for client, served in self.clients.items():
            leaving[served].append(client)
        self.clients.clear()
        for served, of_topic in leaving.items():
            served.remove(of_topic)
