"""The port that Pulsar's clients connect to.

May live here: who is let in, when connections are looked at, and what a client may learn of the cluster: where a topic is,
which topics there are, how many partitions one has.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import socket
import time
from collections import Counter as Tally
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from brokers.lookups import Lookups
from brokers.metrics import LookupOutcome
from brokers.pulsar.errors import NotServed, ServerError, Violation
from brokers.pulsar.limits import Limits
from brokers.pulsar.metrics import PulsarMetrics
from brokers.pulsar.names import PULSAR, partitioned_name
from brokers.pulsar.partitions import partitions_in
from brokers.pulsar.peers import Peers
from brokers.pulsar.requests import TopicsMode
from brokers.pulsar.service import PulsarService, now_ms
from brokers.pulsar.session import Session
from brokers.whereabouts import Located
from brokers.worker import Worker
from channel.entries import NamespaceEntry
from channel.errors import Overloaded, UnknownNamespace
from channel.ranges import TopicName, topic_hash

_logger: Final = logging.getLogger(__name__)

# Connections that wait to be accepted: a stampede of clients after a death of their broker.
_BACKLOG: Final = 1_024

# At its end the server waits so long for its clients to take their last words; sessions cut off those that do not before that.
_CLOSE_S: Final = 2.0

# What is told of clients in one tick; of more only the number, since clients must not be able to fill a disk.
_LINES_PER_TICK_MAX: Final = 20

T = TypeVar("T")


@dataclass(slots=True)
class Counts:
    """What the server counts since its start; `brokers.pulsar.metrics` tells it."""

    accepted: int = 0
    refused: int = 0
    damaged: int = 0
    acknowledgements: int = 0
    violations: Tally[Violation] = field(default_factory=Tally)
    turned_away: Tally[str] = field(default_factory=Tally)


class Server:
    """All connections of one broker."""

    def __init__(self, service: PulsarService, worker: Worker, lookups: Lookups) -> None:
        """`worker` runs `service`, and `lookups` answers for it."""
        self.service = service
        self.settings = service.settings
        self.broker_id = worker.broker_id
        self.counts = Counts()
        config = worker.config
        self.limits = Limits(message_bytes_max=config.pulsar_message_bytes_max, keep_alive_ms=config.pulsar_keep_alive_ms)
        self.peers = Peers(worker, timeout_ms=self.settings.peer_ms)
        self._connections_max = config.pulsar_connections_max
        self._connections_per_address_max = config.pulsar_connections_per_address_max
        self._stats_ms = config.pulsar_stats_ms
        self._worker = worker
        self._lookups = lookups
        self._sessions: dict[Session, None] = {}
        self._addresses = Tally[str]()
        self._names = itertools.count(1)
        self._life = secrets.token_hex(4)
        self._lines = 0
        self._emptied: asyncio.Future[None] | None = None

    @asynccontextmanager
    async def serving(self, listening: socket.socket) -> AsyncIterator[None]:
        """Serve on a bound socket; at the end clients are disconnected, after what was written to them."""
        loop = asyncio.get_running_loop()
        metrics = PulsarMetrics(self, broker=self.broker_id)
        self._worker.metrics.register(metrics)
        server = await loop.create_server(lambda: Session(self), sock=listening, backlog=_BACKLOG)
        sweeping = loop.create_task(self._sweep(), name="the sweep of Pulsar's clients")
        try:
            async with self.peers.asking():
                yield
        finally:
            sweeping.cancel()
            await asyncio.wait([sweeping])
            server.close()
            await self.service.all_parted()
            await self._part_with_all()
            self._worker.metrics.unregister(metrics)

    async def _part_with_all(self) -> None:
        for session in list(self._sessions):
            session.close()
        if self._sessions:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=_CLOSE_S)

    def now_ms(self) -> int:
        """The clock of connections."""
        return now_ms()

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._sessions)

    # --- connections ---

    def admit(self, session: Session) -> bool:
        """Whether one more client, or one more from its address, may stay."""
        host = _host_of(session)
        if len(self._sessions) >= self._connections_max or self._addresses[host] >= self._connections_per_address_max:
            self.counts.refused += 1
            self._tell("a Pulsar client is turned away", session, reason="too many connections")
            return False
        self.counts.accepted += 1
        self._sessions[session] = None
        self._addresses[host] += 1
        return True

    def left(self, session: Session) -> None:
        """A client is gone; one that was not admitted was never counted."""
        if session not in self._sessions:
            return
        del self._sessions[session]
        host = _host_of(session)
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]
        if not self._sessions and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def broke_off(self, session: Session, violation: Violation, problem: str) -> None:
        """A client is disconnected for what it did, or did not do."""
        self.counts.violations[violation] += 1
        self._tell("a Pulsar client is disconnected", session, reason=violation.value, problem=problem)

    def _tell(self, event: str, session: Session, **about: str) -> None:
        self._lines += 1
        if self._lines <= _LINES_PER_TICK_MAX:
            _logger.info(event, extra={"broker": self.broker_id, "client": session.address, **about})

    async def _sweep(self) -> None:
        rolled_ms = now_ms()
        while True:
            await asyncio.sleep(self.settings.tick_ms / 1_000)
            try:
                if self._lines > _LINES_PER_TICK_MAX:
                    untold = self._lines - _LINES_PER_TICK_MAX
                    _logger.warning("more Pulsar clients went than are told", extra={"broker": self.broker_id, "untold": untold})
                self._lines = 0
                await self._for_each(list(self._sessions), lambda session: session.tick(now_ms()))
                if now_ms() - rolled_ms >= self._stats_ms:
                    rolled_ms = now_ms()
                    await self._for_each(list(self.service.hosting.topics.values()), lambda served: served.topic.roll(now_ms()))
            except Exception:  # Keep-alive goes on whatever one connection or topic has come to.
                _logger.exception("a sweep of Pulsar's clients failed", extra={"broker": self.broker_id})

    async def _for_each(self, things: Sequence[T], do: Callable[[T], None]) -> None:
        """Do something for each of many, letting others have the loop in between."""
        for start in range(0, len(things), self.settings.tick_batch):
            for thing in things[start : start + self.settings.tick_batch]:
                do(thing)
            await asyncio.sleep(0)

    def new_producer_name(self) -> str:
        """A name that no other producer of the cluster has, in this life of the broker or another."""
        return f"{self._worker.config.cluster}-{self.broker_id}-{self._life}-{next(self._names)}"

    def new_consumer_name(self) -> str:
        """As `new_producer_name`."""
        return f"consumer-{self._life}-{next(self._names)}"

    # --- what a client may learn ---

    async def locate(self, topic: TopicName) -> str:
        """Where clients find the broker that serves a topic; held while that is being decided.

        Raises `UnknownNamespace`, `DeadlineExceeded`, `Overloaded`, and `NotServed` if that broker takes no clients of Pulsar.
        """
        located = await self._located(topic)
        url = located.broker.joined.addresses.get(PULSAR)
        if url is None:
            problem = f"broker {located.broker.broker}, which serves {topic.full}, takes no clients of Pulsar"
            raise NotServed(error=ServerError.NOT_ALLOWED, problem=problem)
        return url

    async def _located(self, topic: TopicName) -> Located:
        started_ns, outcome = time.monotonic_ns(), LookupOutcome.REFUSED
        point = topic_hash(topic.full)
        try:
            located = await self._lookups.at_once(topic.namespace, point)
            outcome = LookupOutcome.ANSWERED
            if located is None:
                outcome = LookupOutcome.TIMED_OUT
                located = await self._lookups.hold(topic.namespace, point)
                outcome = LookupOutcome.HELD
        except (UnknownNamespace, Overloaded):
            outcome = LookupOutcome.REFUSED
            raise
        else:
            return located
        finally:
            self._worker.metrics.lookup(outcome, started_ns=started_ns)

    async def partitions_of(self, topic: TopicName) -> int:
        """How many partitions a topic has; 0 if it is not partitioned, or is a partition itself. Raises `UnknownNamespace`."""
        namespace = await self._namespace(topic.namespace)
        if partitioned_name(topic.full) != topic.full:
            return 0
        return partitions_in(namespace.policies).get(topic.full, 0)

    async def topics_of(self, namespace: str, mode: TopicsMode) -> Sequence[str]:
        """The full names of a namespace's topics, at whichever broker.

        Raises `UnknownNamespace`, and `NotServed` if a broker does not answer: a list without its topics would make clients
        that follow a pattern drop them.
        """
        await self._namespace(namespace)
        if mode is TopicsMode.PERSISTENT:
            return ()
        told = await self.peers.topics_of(namespace)
        return sorted({*self.service.hosting.of_namespace(namespace), *told})

    async def _namespace(self, name: str) -> NamespaceEntry:
        """A namespace; raises `UnknownNamespace`."""
        namespace = self._worker.view.namespaces.get(name)
        if namespace is None:
            # It may stand in what this broker has not read yet.
            await self._worker.ready(timeout_ms=self.settings.hold_ms)
            namespace = self._worker.view.namespaces.get(name)
        if namespace is None:
            raise UnknownNamespace(namespace=name)
        return namespace


def _host_of(session: Session) -> str:
    return session.address.rpartition(":")[0]
