"""Accept Pulsar clients, check their connections, and answer questions about the cluster's
topics.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import socket
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Generic, TypeVar

from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.http.answers import raw_answer
from equipoise.brokers.pulsar.admission import Admission
from equipoise.brokers.pulsar.cluster_schemas import ClusterSchemas
from equipoise.brokers.pulsar.hosting import Served
from equipoise.brokers.pulsar.metrics import PulsarMetrics
from equipoise.brokers.pulsar.peers import Peers
from equipoise.brokers.pulsar.rights import Rights
from equipoise.brokers.pulsar.service import PulsarService, now_ms
from equipoise.brokers.pulsar.session import Session
from equipoise.brokers.pulsar.topics.arrivals import Arrivals
from equipoise.brokers.pulsar.topics.names import PULSAR, partitioned_name, partitions_in
from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.connection import REFUSABLE
from equipoise.brokers.pulsar.wire.errors import NotServed, ServerError, Violation
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.requests import Ended, TopicsMode
from equipoise.brokers.runtime.listening import listen
from equipoise.brokers.runtime.lookups import Lookups
from equipoise.brokers.runtime.service import WorkerEnded, own_http, pulsar_address
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.security.identity import Refusal, Surface
from equipoise.brokers.security.limits import Limit
from equipoise.channel.core.entries import NamespaceEntry
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.ranges import TopicName, topic_hash
from equipoise.channel.core.records import Document

_logger: Final = logging.getLogger(__name__)

# Connections waiting to be accepted: enough for all clients of a broker that died.
_BACKLOG: Final = 1_024

# Time for clients to read the last answers at shutdown. Sessions cut off slower clients earlier.
_CLOSE_S: Final = 2.0

# How long a client that is not admitted has to read why, and how many have that at once: each uses
# a file of the reserve.
_REJECTED_S: Final = 1.0
_REJECTED_MAX: Final = 16

# How long one wait for changes of policies takes. Any number will do.
_FOLLOW_MS: Final = 3_600_000

_NO_POLICIES: Final[Document] = {}

T = TypeVar("T")


@dataclass(slots=True)
class Counts:
    """The server's counters since its start. `brokers.pulsar.metrics` exports them."""

    accepted: int = 0
    refused: int = 0
    damaged: int = 0
    acknowledgements: int = 0
    redirected: int = 0
    violations: Tally[Violation] = field(default_factory=Tally)
    turned_away: Tally[str] = field(default_factory=lambda: Tally(dict.fromkeys(REFUSABLE, 0)))


H = TypeVar("H", bound=Hashable)


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


class Server:
    """All client connections of one broker."""

    def __init__(self, service: PulsarService, worker: Worker, lookups: Lookups) -> None:
        """Serve `service`, which `worker` runs. `lookups` answers its lookups."""
        self.service = service
        self.settings = service.settings
        self.broker_id = worker.broker_id
        self.counts = Counts()
        config = worker.config
        self.limits = Limits(
            message_bytes_max=config.pulsar_message_bytes_max,
            keep_alive_ms=config.pulsar_keep_alive_ms,
        )
        self.peers = Peers(
            worker,
            service.hosting,
            timeout_ms=self.settings.peer_ms,
            moving_ms=self.settings.moving_ms,
        )
        self.schemas = ClusterSchemas(service.schemas, self.peers)
        self.admission = Admission(self)
        self.behind = Pool[Session](bytes_max=self.settings.all_messages_behind_bytes_max)
        self.unfinished = Pool[Session](bytes_max=self.settings.all_unfinished_bytes_max)
        self._connections_max = config.pulsar_connections_max
        self._stats_ms = config.pulsar_stats_ms
        service.settle_ms = config.pulsar_settle_ms
        service.balancing = lambda: settings_in(worker.view, config.base_settings)
        service.policies.current = self.policies_of
        authorization = worker.access.authorization
        self.rights = (
            None if authorization is None else Rights(authorization, worker, lambda: self._sessions)
        )
        self.gate = worker.access.gate
        self.identity_limits = worker.access.limits
        self._worker = worker
        self._lookups = lookups
        self._sessions: dict[Session, None] = {}
        self._names = itertools.count(1)
        self._life = secrets.token_hex(4)
        self._rejected = 0
        self._encoded: tuple[Sequence[str], bytes] | None = None
        self._emptied: asyncio.Future[None] | None = None

    @asynccontextmanager
    async def serving(self, listening: socket.socket) -> AsyncIterator[None]:
        """Serve on a bound socket. On exit write pending answers and disconnect all clients."""
        loop = asyncio.get_running_loop()
        metrics = PulsarMetrics(self, broker=self.broker_id)
        self._worker.metrics.register(metrics)
        server = await listen(
            listening,
            lambda: Session(self),
            port=PULSAR,
            backlog=_BACKLOG,
            certificates=self._worker.access.certificates,
            handshakes=self._worker.access.handshakes,
        )
        sweeping = loop.create_task(self._sweep(), name="the sweep of Pulsar clients")
        following = loop.create_task(
            self._follow_policies(), name="the policies of Pulsar's namespaces"
        )
        tasks = [sweeping, following]
        if self.rights is not None:
            tasks.append(
                loop.create_task(self.rights.follow(), name="the rights of Pulsar clients")
            )
        try:
            async with self.peers.asking():
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            server.close()
            await self.service.all_redirected()
            await self._close_all()
            self._worker.metrics.unregister(metrics)

    async def _close_all(self) -> None:
        for session in list(self._sessions):
            session.close()
        if self._sessions:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=_CLOSE_S)

    @property
    def connections(self) -> int:
        """The number of connected clients."""
        return len(self._sessions)

    # --- connections ---

    def admit(self, session: Session) -> str | None:
        """Count a new client. Return the problem if there are too many, in total or from its
        address.
        """
        limits, problem = self.identity_limits, None
        if len(self._sessions) >= self._connections_max:
            problem = (
                f"the broker has {self._connections_max} connections open (setting"
                " pulsar_connections_max)"
            )
        elif not limits.connect(Surface.PULSAR, session.identities[0]):
            problem = limits.problem(Limit.CONNECTIONS, session.identities[0])
        if problem is not None:
            self.counts.refused += 1
            self._log(
                "refused a Pulsar client", session, reason="too many connections", problem=problem
            )
            return problem
        self.counts.accepted += 1
        self._sessions[session] = None
        if len(self._sessions) >= self._connections_max:
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
        transport.write(replies.error(replies.MINUS_ONE, ServerError.TOO_MANY_REQUESTS, problem))
        # If the socket were closed with an unread CONNECT, the system would drop the answer.
        if transport.can_write_eof():  # TLS cannot.
            transport.write_eof()
        asyncio.get_running_loop().call_later(_REJECTED_S, self._disconnect, transport)

    def _disconnect(self, transport: asyncio.Transport) -> None:
        self._rejected -= 1
        transport.abort()

    def refused(self, session: Session, refusal: Refusal) -> None:
        """Log that the credentials of a client are refused."""
        client = session.address.rpartition(":")[0]
        self._worker.access.audit.refused(
            Surface.PULSAR,
            what="CONNECT",
            why=refusal.problem,
            fault=refusal.fault.value,
            client=client,
        )

    def left(self, session: Session) -> None:
        """Remove a client. Clients that were not admitted were never counted."""
        self.behind.hold(session, 0)
        self.unfinished.hold(session, 0)
        if session not in self._sessions:
            return
        del self._sessions[session]
        for identity in session.identities:
            self.identity_limits.disconnect(Surface.PULSAR, identity)
        self._worker.client_problems.pop(PULSAR, None)
        if not self._sessions and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def keeps_unfinished(self, session: Session, bytes_: int, *, came_bytes: int) -> None:
        """Note that `bytes_` of an unfinished frame are buffered for a client, after `came_bytes`
        arrived.

        If all clients together exceed the bound, disconnect those above their share, the longest
        unfinished first.
        """
        held_bytes = self.unfinished.held_by(session)
        if not bytes_ and not held_bytes:
            return
        if bytes_ != held_bytes + came_bytes:
            # The client finished a frame, so its current one began just now.
            self.unfinished.hold(session, 0)
        self.unfinished.hold(session, bytes_)
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

    def is_behind(self, session: Session, bytes_: int) -> Violation | None:
        """Note that `bytes_` wait for a client. Return the violation if that is too much, or
        None.
        """
        self.behind.hold(session, bytes_)
        if bytes_ > self.settings.behind_bytes_max:
            return Violation.NEVER_READS
        is_full = self.behind.bytes > self.settings.all_behind_bytes_max
        return Violation.NO_ROOM if is_full and bytes_ > self.behind.share_bytes else None

    def disconnected(self, session: Session, violation: Violation, problem: str) -> None:
        """Count and log that a client is disconnected for a violation."""
        self.counts.violations[violation] += 1
        self._log("disconnected a Pulsar client", session, reason=violation.value, problem=problem)

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
            return replies.error(replies.MINUS_ONE, ServerError.UNSUPPORTED_VERSION, ended.problem)
        return b""

    def _log(self, event: str, session: Session, *, reason: str, problem: str) -> None:
        due = self._worker.access.audit.due(
            session.address.rpartition(":")[0], f"pulsar {reason}", shown=session.address
        )
        if due is not None:
            _logger.info(
                event, extra={"broker": self.broker_id, "reason": reason, "problem": problem, **due}
            )

    async def _sweep(self) -> None:
        rolled_ms = now_ms()
        while True:
            await asyncio.sleep(self.settings.tick_ms / 1_000)
            try:
                await self._for_each(list(self._sessions), self._tick)
                await self._relieve()
                if now_ms() - rolled_ms >= self._stats_ms:
                    rolled_ms = now_ms()
                    await self._for_each(
                        list(self.service.hosting.topics.values()),
                        lambda served: served.topic.roll(now_ms()),
                    )
            except Exception:  # One failing topic must not stop keep-alive.
                _logger.exception(
                    "a sweep of Pulsar clients failed", extra={"broker": self.broker_id}
                )

    async def _relieve(self) -> None:
        """If more waits after moves than `all_waiting_bytes_max`, stop waiting in the largest
        topics.
        """
        waiting = self.service.deadlines.waiting()
        # An upper bound: entries that several subscriptions wait for are stored once. The exact
        # size is computed only if needed.
        if (
            sum(arrivals.bytes for served in waiting for arrivals in _arrivals_of(served))
            <= self.settings.all_waiting_bytes_max
        ):
            return
        sizes: dict[Served, int] = {}
        for served in waiting:
            sizes[served] = _waiting_bytes(served)
            await asyncio.sleep(0)
        too_much_bytes = sum(sizes.values()) - self.settings.all_waiting_bytes_max
        for served in sorted(sizes, key=lambda each: (-sizes[each], each.name)):
            if too_much_bytes <= 0:
                break
            if served.ownership.is_good:
                too_much_bytes -= sizes[served]
                await self._wait_no_longer(served)

    async def _wait_no_longer(self, served: Served) -> None:
        """Stop waiting in one topic, one step per turn of the loop."""
        topic, limits = served.topic, self.settings.topics
        while topic.wake_at_ms is not None and not topic.is_fenced and served.ownership.is_good:
            self.service.carry_out(
                served, topic.tick(now_ms() + limits.receipt_wait_ms + limits.reconnect_wait_ms)
            )
            await asyncio.sleep(0)

    def _tick(self, session: Session) -> None:
        """Check one client. Abort it if that fails, so that the others are still checked."""
        try:
            session.tick(now_ms())
        except Exception:
            _logger.exception(
                "the sweep of a Pulsar client failed",
                extra={"broker": self.broker_id, "client": session.address},
            )
            session.abort()

    async def _for_each(self, things: Sequence[T], do: Callable[[T], None]) -> None:
        """Call `do` for each thing, and yield to the loop after each batch."""
        for start in range(0, len(things), self.settings.tick_batch):
            for thing in things[start : start + self.settings.tick_batch]:
                do(thing)
            await asyncio.sleep(0)

    def policies_of(self, namespace: str) -> Document:
        """Return the current policies of a namespace; none if it does not exist."""
        entry = self._worker.view.namespaces.get(namespace)
        return _NO_POLICIES if entry is None else entry.policies

    async def _follow_policies(self) -> None:
        """Apply changed policies to the topics that are served."""
        policies = self.service.policies
        while True:
            try:
                what, timeout_ms = "changes of policies", _FOLLOW_MS
                changed = await self._worker.until(
                    lambda _: policies.changed() or None, timeout_ms=timeout_ms, what=what
                )
            except WorkerEnded:
                return
            except EquipoiseError:  # Nothing changed for long, or too many callers wait.
                await asyncio.sleep(self.settings.tick_ms / 1_000)
                continue
            for namespace in changed:
                try:
                    self.service.hosting.limit(namespace, now_ms=now_ms())
                except Exception:  # Policies of other namespaces must still apply.
                    about = {"broker": self.broker_id, "namespace": namespace}
                    _logger.exception(
                        "the policies of a namespace could not be applied to its topics",
                        extra=about,
                    )

    def new_producer_name(self) -> str:
        """Return a name that is unique in the cluster, across restarts of this broker."""
        return f"{self._worker.config.cluster}-{self.broker_id}-{self._life}-{next(self._names)}"

    def new_consumer_name(self) -> str:
        """Return a name that is unique in the cluster; see `new_producer_name`."""
        return f"consumer-{self._life}-{next(self._names)}"

    # --- questions of clients ---

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
        if self._worker.service_of(namespace) is not self.service:
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
        return await self.peers.topics_of(namespace)

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
        if len(encoded) > self.limits.message_bytes_max:
            problem = (
                f"the names of the {len(names)} topics of namespace {namespace} are {len(encoded)}"
                f" bytes, and clients accept at most {self.limits.message_bytes_max}; ask over"
                " HTTP, or spread the topics over more namespaces"
            )
            raise NotServed(error=ServerError.NOT_ALLOWED, problem=problem)
        return encoded

    def _forget_encoded(self) -> None:
        self._encoded = None

    async def up_to_date(self) -> bool:
        """Read the log to its end, as `Worker.up_to_date` does."""
        return await self._worker.up_to_date(timeout_ms=self.settings.hold_ms)

    async def _namespace(self, name: str) -> NamespaceEntry:
        """Return a namespace. Raises `UnknownNamespace`, or `DeadlineExceeded` if this broker's
        view stays too old to deny it.
        """
        return await self._worker.known(
            name,
            lambda view: view.namespaces.get(name),
            timeout_ms=self.settings.hold_ms,
            what=f"namespace {name}",
        )


def _arrivals_of(served: Served) -> Iterator[Arrivals]:
    return (
        each.arrivals for each in served.topic.subscriptions.values() if each.arrivals is not None
    )


def _waiting_bytes(served: Served) -> int:
    """Return the bytes that wait in a topic. Entries that several subscriptions wait for count
    once.
    """
    return sum(
        {
            entry.entry_id: len(entry.block)
            for arrivals in _arrivals_of(served)
            for entry in arrivals.entries
        }.values()
    )
