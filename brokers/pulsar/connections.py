"""Count the client connections of one broker and the bytes that they hold, refuse those that are
too many, and log why one ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Generic, Protocol, TypeVar

from equipoise.brokers.http.answers import raw_answer
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics.names import PULSAR
from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.connection import REFUSABLE
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.pulsar.wire.requests import Ended, Violation
from equipoise.brokers.runtime.service import own_http
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.identity import Refusal, Surface
from equipoise.brokers.security.limits import Limit

_logger: Final = logging.getLogger(__name__)

# Time for clients to read the last answers at shutdown. Sessions cut off slower clients earlier.
_CLOSE_S: Final = 2.0

# How long a client that is not admitted has to read why, and how many have that at once: each uses
# a file of the reserve.
_REJECTED_S: Final = 1.0
_REJECTED_MAX: Final = 16


@dataclass(slots=True)
class Counts:
    """The counters of all connections since the start. `brokers.pulsar.server` exports them."""

    accepted: int = 0
    refused: int = 0
    damaged: int = 0
    acknowledgements: int = 0
    redirected: int = 0
    violations: Tally[Violation] = field(default_factory=Tally)
    turned_away: Tally[str] = field(default_factory=lambda: Tally(dict.fromkeys(REFUSABLE, 0)))


H = TypeVar("H")


class Pool(Generic[H]):
    """Bytes of one kind, by holder. It only counts; the caller enforces the bound."""

    __slots__ = ("_held", "bytes", "bytes_max")

    def __init__(self, *, bytes_max: int) -> None:
        """Start empty, with a bound of `bytes_max`."""
        self._held: dict[H, int] = {}
        self.bytes = 0
        self.bytes_max = bytes_max

    @property
    def is_exceeded(self) -> bool:
        """Whether the holders together exceed the bound."""
        return self.bytes > self.bytes_max

    @property
    def share_bytes(self) -> int:
        """An equal share of the bound for each current holder."""
        return self.bytes_max // max(len(self._held), 1)

    @property
    def oldest_above_share(self) -> H | None:
        """The longest holder of those above their share, or None. If the bound is exceeded there is
        always one.
        """
        share_bytes = self.share_bytes
        return next((holder for holder, bytes_ in self._held.items() if bytes_ > share_bytes), None)

    def would_exceed(self, bytes_: int) -> bool:
        """Return whether `bytes_` more would exceed the bound."""
        return self.bytes + bytes_ > self.bytes_max

    def held_by(self, holder: H) -> int:
        """Return the bytes of one holder."""
        return self._held.get(holder, 0)

    def hold(self, holder: H, bytes_: int) -> None:
        """Set the bytes of one holder."""
        self.bytes += bytes_ - self._held.get(holder, 0)
        if bytes_:
            self._held[holder] = bytes_
        else:
            self._held.pop(holder, None)


class Client(Protocol):
    """A connection, as its accounts see it."""

    address: str
    identities: list[str]

    def abort(self) -> None:
        """Close the connection at once."""
        ...

    def close(self) -> None:
        """Write pending bytes and close."""
        ...


C = TypeVar("C", bound=Client)


class Connections(Generic[C]):
    """All client connections of one broker."""

    def __init__(self, worker: Worker, settings: Settings) -> None:
        """`worker` has the limits, and the gate that clients pass."""
        config = worker.config
        self.broker_id = worker.broker_id
        self.settings = settings
        self.counts = Counts()
        self.limits = Limits(
            message_bytes_max=config.pulsar_message_bytes_max,
            keep_alive_ms=config.pulsar_keep_alive_ms,
        )
        self.gate = worker.access.gate
        self.identity_limits = worker.access.limits
        self.behind = Pool[C](bytes_max=settings.all_messages_behind_bytes_max)
        self.unfinished = Pool[C](bytes_max=settings.all_unfinished_bytes_max)
        self._worker = worker
        self._connections_max = config.pulsar_connections_max
        self._clients: dict[C, None] = {}
        self._rejected = 0
        self._emptied: asyncio.Future[None] | None = None

    @property
    def count(self) -> int:
        """The number of connected clients."""
        return len(self._clients)

    def all(self) -> Sequence[C]:
        """Return the connected clients."""
        return tuple(self._clients)

    def admit(self, client: C) -> str | None:
        """Count a new client. Return the problem if there are too many, in total or from its
        address.
        """
        limits, problem = self.identity_limits, None
        if len(self._clients) >= self._connections_max:
            problem = (
                f"the broker has {self._connections_max} connections open (setting"
                " pulsar_connections_max)"
            )
        elif not limits.connect(Surface.PULSAR, client.identities[0]):
            problem = limits.problem(Limit.CONNECTIONS, client.identities[0])
        if problem is not None:
            self.counts.refused += 1
            self._log(
                "refused a Pulsar client", client, reason="too many connections", problem=problem
            )
            return problem
        self.counts.accepted += 1
        self._clients[client] = None
        if len(self._clients) >= self._connections_max:
            bound = "setting pulsar_connections_max, or fewer where ulimit -n is low"
            self._worker.client_problems[PULSAR] = (
                f"it accepts no more Pulsar clients: {self._connections_max} are connected"
                f" ({bound})"
            )
        return None

    def reject(self, transport: asyncio.Transport, problem: str) -> None:
        """Send a client that is not admitted the reason, and disconnect it soon. Clients try again
        after a pause.
        """
        if self._rejected >= _REJECTED_MAX:
            transport.abort()
            return
        self._rejected += 1
        transport.write(replies.error(replies.MINUS_ONE, ServerError.TooManyRequests, problem))
        # If the socket were closed with an unread CONNECT, the system would drop the answer.
        if transport.can_write_eof():  # TLS cannot.
            transport.write_eof()
        asyncio.get_running_loop().call_later(_REJECTED_S, self._disconnect, transport)

    def _disconnect(self, transport: asyncio.Transport) -> None:
        self._rejected -= 1
        transport.abort()

    def refused(self, client: C, refusal: Refusal) -> None:
        """Log that the credentials of a client are refused."""
        address = client.address.rpartition(":")[0]
        self._worker.access.audit.refused(
            Surface.PULSAR,
            what="CONNECT",
            why=refusal.problem,
            fault=refusal.fault.value,
            client=address,
        )

    def left(self, client: C) -> None:
        """Remove a client. Clients that were not admitted were never counted."""
        self.behind.hold(client, 0)
        self.unfinished.hold(client, 0)
        if client not in self._clients:
            return
        del self._clients[client]
        for identity in client.identities:
            self.identity_limits.disconnect(Surface.PULSAR, identity)
        self._worker.client_problems.pop(PULSAR, None)
        if not self._clients and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def note_unfinished(self, client: C, bytes_: int, *, came_bytes: int) -> None:
        """Note that `bytes_` of an unfinished frame are buffered for a client, after `came_bytes`
        arrived.

        If all clients together exceed the bound, disconnect those above their share, the longest
        unfinished first.
        """
        held_bytes = self.unfinished.held_by(client)
        if not bytes_ and not held_bytes:
            return
        if bytes_ != held_bytes + came_bytes:
            # The client finished a frame, so its current one began just now.
            self.unfinished.hold(client, 0)
        self.unfinished.hold(client, bytes_)
        while (
            self.unfinished.is_exceeded
            and (oldest := self.unfinished.oldest_above_share) is not None
        ):
            problem = (
                f"it sent only {self.unfinished.held_by(oldest)} bytes of a frame, and the memory"
                " for unfinished frames is full"
            )
            self.unfinished.hold(oldest, 0)
            self.disconnected(oldest, Violation.NO_ROOM, problem)
            oldest.abort()

    def note_behind(self, client: C, bytes_: int) -> Violation | None:
        """Note that `bytes_` wait for a client. Return the violation if that is too much, or
        None.
        """
        self.behind.hold(client, bytes_)
        if bytes_ > self.settings.behind_bytes_max:
            return Violation.NEVER_READS
        is_full = self.behind.bytes > self.settings.all_behind_bytes_max
        return Violation.NO_ROOM if is_full and bytes_ > self.behind.share_bytes else None

    def disconnected(self, client: C, violation: Violation, problem: str) -> None:
        """Count and log that a client is disconnected for a violation."""
        self.counts.violations[violation] += 1
        self._log("disconnected a Pulsar client", client, reason=violation.value, problem=problem)

    def last_answer(self, ended: Ended) -> bytes:
        """Return what to write to a client that is disconnected for speaking another protocol;
        empty for other reasons.
        """
        if ended.counted_as is Violation.HTTP:
            address = own_http(self._worker.profile.addresses) or "the HTTP port of a broker"
            reason = (
                f"this is the port of Pulsar's binary protocol on broker {self.broker_id}; send"
                f" HTTP requests to {address}"
            )
            return raw_answer(HTTPStatus.BAD_REQUEST, {"reason": reason, "error": "WrongPort"})
        if ended.counted_as is Violation.TLS:
            # Any bytes that are not TLS: clients then report that, and C++ gives up. After a broken
            # connection it would try for 30 s.
            return replies.error(
                replies.MINUS_ONE, ServerError.UnsupportedVersionError, ended.problem
            )
        return b""

    def _log(self, event: str, client: C, *, reason: str, problem: str) -> None:
        due = self._worker.access.audit.due(
            client.address.rpartition(":")[0], f"pulsar {reason}", shown=client.address
        )
        if due is not None:
            _logger.info(
                event, extra={"broker": self.broker_id, "reason": reason, "problem": problem, **due}
            )

    async def close_all(self) -> None:
        """Disconnect all clients, once they have read the last answers or time is up."""
        for client in self.all():
            client.close()
        if self._clients:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=_CLOSE_S)
