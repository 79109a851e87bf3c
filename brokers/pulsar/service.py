"""Pulsar's non-persistent topics as a `Service`: what is balanced when Pulsar's clients are what is served.

May live here: the way of bundles to and from this broker, and the way of each message through its topic. Connections are the
business of `brokers.pulsar.session`, topics decide for themselves.

How a bundle moves away
1. Its topics are fenced: from now on messages are ignored without a receipt, so that their producers send them again.
2. Producers are told where to go. The destination holds those who come before it owns the bundle.
3. The handover says which subscriptions there were, and whom to wait for. With it the bundle is gone.
4. Meanwhile each client answers a PING behind all that it was sent: it has taken what was receipted here. Then its consumers
   are told where to go, because a client throws away what its program has not yet taken out when a consumer connects anew.

How it comes: the destination makes the topics anew, and holds receipts and messages until those who were there are back
(`brokers.pulsar.topic`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from brokers.load import BundleLoad
from brokers.pulsar import handover as handovers
from brokers.pulsar.deadlines import Deadlines
from brokers.pulsar.dispatch import ActiveChange, Consumer
from brokers.pulsar.errors import NotServed, ServerError
from brokers.pulsar.hosting import Hosting, Served
from brokers.pulsar.names import PULSAR
from brokers.pulsar.parted import Parted
from brokers.pulsar.requests import Published
from brokers.pulsar.schemas import Schemas
from brokers.pulsar.settings import Settings
from brokers.pulsar.topic import Outcome, Producer, Receipt, TopicState
from brokers.pulsar.traffic import Totals, load_of, totals_of
from brokers.service import Bundle, Ownership, OwnershipLost, Peer, Service
from channel.deadline import Deadline
from channel.errors import EquipoiseError
from channel.ranges import TopicName, topic_hash

if TYPE_CHECKING:
    from brokers.pulsar.session import Session

_logger: Final = logging.getLogger(__name__)

# How Pulsar's client for Java says what it is.
_JAVA: Final = "Pulsar-Java"


@dataclass(slots=True)
class Counts:
    """What the service counts since its start; `brokers.pulsar.metrics` tells it."""

    published: int = 0
    published_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    dropped: int = 0
    handovers_damaged: int = 0
    receipts_withheld: int = 0


class PulsarService(Service):
    """One instance serves all bundles of its broker; `brokers.pulsar.server` brings it the clients."""

    def __init__(self, settings: Settings | None = None) -> None:
        """With the default settings unless others are given."""
        self.settings = settings or Settings()
        self.hosting = Hosting(limits=self.settings.topics, topics_max=self.settings.topics_max)
        self.schemas = Schemas()
        self.counts = Counts()
        self._warming: dict[str, tuple[Bundle, asyncio.Future[None]]] = {}
        self._parted = Parted(bytes_max=self.settings.parted_bytes_max, kept_ms=self.settings.parted_ms)
        self._parting: set[asyncio.Task[None]] = set()
        self._deadlines = Deadlines(self._pass_deadline, now_ms=now_ms)
        self._counted: Mapping[str, Totals] = {}
        self._counted_since = time.monotonic()

    @property
    def topics_waiting(self) -> int:
        """How many topics wait for clients that were there before a move."""
        return len(self._deadlines)

    # --- what the worker calls ---

    async def prepare(self, bundle: Bundle, source: Peer | None) -> None:  # noqa: ARG002 - it is the bundle that clients come for
        """From now on clients who come for this bundle are held: the source sends them as soon as it lets go."""
        self._warming.setdefault(bundle.name, (bundle, asyncio.get_running_loop().create_future()))

    async def discard(self, bundle: Bundle) -> None:
        """The bundle does not come: those who are held go back to who serves it."""
        self._come(bundle.name)

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Make the topics that the former owner told of."""
        try:
            self._parted.forget(ownership.bundle.name)
            states = await self._states(ownership, handover)
            opened = self.hosting.open(ownership, states, now_ms=now_ms())
            for served in opened:
                self._deadlines.watch(served)
            if opened:
                wait_s = self.settings.topics.reconnect_wait_ms / 1_000
                asyncio.get_running_loop().call_later(wait_s, self._forget_idle, opened)
        finally:
            self._come(ownership.bundle.name)

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None:  # noqa: ARG002 - waits for nobody
        """As the head of this module tells it; consumers are told where to go after this has returned."""
        url = None if moved_to is None else moved_to.addresses.get(PULSAR)
        parted = self.hosting.close(bundle.name)
        states = {served.name: _fenced(served) for served in parted}  # 1.
        producers = [producer for served in parted for producer in served.topic.producers.values()]
        consumers: defaultdict[Session, list[Consumer]] = defaultdict(list)
        for served in parted:
            for consumer in served.topic.consumers:
                consumers[session_of(consumer)].append(consumer)
        for producer in producers:
            session_of(producer).part_producer(producer, url)  # 2.
        for session, of_session in consumers.items():
            self._in_background(self._part_consumers(session, of_session, url))  # 4.
        if not any(state.subscriptions for state in states.values()):
            return None
        encoded = handovers.encode(states)  # 3.
        self.counts.dropped += encoded.dropped
        if encoded.fetched is not None:
            self._parted.keep(bundle.name, encoded.fetched)
        return encoded.handover

    async def fetch(self, bundle: Bundle, token: int) -> bytes | None:  # noqa: ARG002 - one state is kept for each bundle
        """What did not fit into the handover, and the messages that were not delivered."""
        return self._parted.get(bundle.name)

    def split(self, parent: Bundle, children: Sequence[Ownership]) -> None:
        """The topics of `parent` are filed under the children; nobody notices."""
        self.hosting.reshape([parent], children)

    def merge(self, left: Bundle, right: Bundle, union: Ownership) -> None:
        """The topics of both are filed under their union; nobody notices."""
        self.hosting.reshape([left, right], [union])
        for served in self.hosting.bundles[union.bundle.name].topics.values():
            # Their receipts are still to come, and one of the two tokens ends here.
            with suppress(OwnershipLost):
                served.works = {entry_id: union.begin(served.name) for entry_id in served.works}

    def load(self) -> Mapping[str, BundleLoad]:
        """What each bundle carried per second since this was asked last, and who is connected."""
        now = time.monotonic()
        seconds, self._counted_since = max(now - self._counted_since, 0.001), now
        before, self._counted = self._counted, {name: totals_of(served.topic) for name, served in self.hosting.topics.items()}
        return {name: load_of(hosted.topics.values(), before, self._counted, seconds) for name, hosted in self.hosting.bundles.items()}

    # --- what sessions call ---

    def served_now(self, topic: TopicName) -> Served | None:
        """The topic, if it is here and may be used at this moment; without a wait."""
        served = self.hosting.find(topic.full)
        return served if served is not None and not served.topic.is_fenced and served.ownership.is_good else None

    async def serve(self, topic: TopicName) -> Served | Peer:
        """The topic, made if need be, or who serves it; waits while nobody does, or while its bundle is on its way here.

        Raises `UnknownNamespace`, `DeadlineExceeded`, `NotServed` and `Overloaded`.
        """
        deadline = Deadline.after(timeout_ms=self.settings.hold_ms)
        point = topic_hash(topic.full)
        while True:
            await self._warmed(topic.namespace, point, deadline)
            routed = await self.host.route(topic.namespace, topic.full, timeout_ms=deadline.remaining_ms())
            if isinstance(routed, Peer):
                return routed
            served = self.hosting.topic(routed.bundle.name, topic.full, now_ms=now_ms())
            if served is not None:
                return served
            if routed.is_good:
                raise NotServed(error=ServerError.NOT_ALLOWED, problem=f"namespace {topic.namespace} is not served to clients of Pulsar")

    def publish(self, served: Served, producer: Producer, request: Published) -> None:
        """Take one entry of a producer, if it may be taken: otherwise there is no receipt, and the client sends it again."""
        topic = served.topic
        if topic.is_fenced:
            return
        try:
            work = served.ownership.begin(served.name)
        except OwnershipLost as lost:
            self._withhold(served, producer, lost)
            return
        outcome = topic.publish(
            producer,
            sequence_id=request.sequence_id,
            highest_sequence_id=request.highest_sequence_id,
            messages=request.messages,
            block=request.block,
            now_ms=now_ms(),
        )
        served.works[topic.last_entry_id] = work
        self.counts.published += request.messages
        self.counts.published_bytes += len(request.block)
        self.carry_out(served, outcome)

    def carry_out(self, served: Served, outcome: Outcome) -> None:
        """Write what a step of a topic came to: messages first, then the receipts that promise them."""
        topic, counts = served.topic, self.counts
        for consumer, entry in outcome.deliveries:
            entry_id, block, messages = entry
            if session_of(consumer).deliver(consumer, entry_id, topic.partition, block):
                counts.delivered += messages
                counts.delivered_bytes += len(block)
            else:
                topic.take_back(consumer, entry)
                counts.dropped += messages
        counts.dropped += outcome.dropped
        for receipt in outcome.receipts:
            self._confirm(served, receipt)
        if served.works and not topic.holds_receipts:
            # Those whose producer has left: nobody is owed a receipt for them any more.
            served.works.clear()
        if topic.wake_at_ms is not None:
            self._deadlines.watch(served)

    def release_receipts(self, served: Served) -> None:
        """Give the receipts that are held ahead of their time, for the sake of what must come behind them."""
        self.carry_out(served, served.topic.release_receipts())

    def _confirm(self, served: Served, receipt: Receipt) -> None:
        work = served.works.pop(receipt.entry_id, None)
        producer = receipt.producer
        if work is not None:
            try:
                work.finish(message=f"{producer.name}:{receipt.sequence_id}" if work.is_witnessed else None)
            except OwnershipLost as lost:
                self._withhold(served, producer, lost)
                return
        session_of(producer).confirm(receipt)

    def _withhold(self, served: Served, producer: Producer, lost: OwnershipLost) -> None:
        """A message gets no receipt. Nor may a later one of its producer, who has to connect anew and send it again.

        If the bundle is closed here already, its `close` sends the producer to where it goes.
        """
        self.counts.receipts_withheld += 1
        if not lost.is_closed:
            session_of(producer).part_producer(producer, None)
            served.topic.remove_producer(producer)
            self.hosting.forget_if_idle(served)

    async def all_parted(self) -> None:
        """Wait until all consumers of bundles that were closed here have been told where to go; that is bounded."""
        if self._parting:
            await asyncio.wait(self._parting)

    # --- coming and going ---

    async def _states(self, ownership: Ownership, handover: bytes | None) -> Mapping[str, TopicState]:
        """What the former owner told of the topics. What cannot be had or read costs messages, never the bundle."""
        if handover is None:
            return {}
        fetched = None
        try:
            if ownership.fetch is not None and not handovers.is_complete(handover):
                fetched = await ownership.fetch()
            return handovers.decode(handover, fetched)
        except EquipoiseError as error:
            self.counts.handovers_damaged += 1
            about = {"broker": self.host.broker_id, "bundle": ownership.bundle.name, "token": ownership.token}
            _logger.warning("topics begin anew: %s", error, extra=about)
        try:
            return handovers.decode(handover, None)
        except EquipoiseError:
            return {}

    async def _part_consumers(self, session: Session, consumers: Sequence[Consumer], url: str | None) -> None:
        """Wait until a client has taken what it was sent, and a moment longer for its program to take it out; then send it on.

        A client that was slow to answer is short of CPU, and its program will be as slow: so it gets as long again.
        """
        began, settle_ms = time.monotonic(), self.settings.settle_ms
        taken = session.taken()
        if taken is not None:
            await asyncio.wait([taken], timeout=self.settings.drain_wait_ms / 1_000)
            if session.client_version.startswith(_JAVA):
                settle_ms = self.settings.settle_java_ms
        await asyncio.sleep(max(settle_ms / 1_000, time.monotonic() - began))
        for consumer in consumers:
            session.part_consumer(consumer, url)

    def _in_background(self, operation: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(operation)
        self._parting.add(task)
        task.add_done_callback(self._parting.discard)

    async def _warmed(self, namespace: str, point: int, deadline: Deadline) -> None:
        """Wait while the bundle at `point` is on its way here, so that nobody is sent back to who is just letting go of it."""
        for bundle, come in list(self._warming.values()):
            if bundle.namespace == namespace and bundle.contains(point):
                timeout_s = min(self.settings.warming_hold_ms, deadline.remaining_ms()) / 1_000
                await asyncio.wait([come], timeout=timeout_s)

    def _come(self, bundle: str) -> None:
        warming = self._warming.pop(bundle, None)
        if warming is not None:
            warming[1].set_result(None)

    def _pass_deadline(self, served: Served) -> None:
        self.carry_out(served, served.topic.tick(now_ms()))
        self.hosting.forget_if_idle(served)

    def _forget_idle(self, opened: Sequence[Served]) -> None:
        """Of the topics that came with a bundle: those that nobody came back to, once nobody is waited for."""
        for served in opened:
            self.hosting.forget_if_idle(served)


def tell_active(changes: Sequence[ActiveChange]) -> None:
    """Tell consumers of Failover subscriptions, whichever session they are of, that they are active, or are no more."""
    for consumer, is_active in changes:
        session = session_of(consumer)
        session.connection.active(consumer.consumer_id, is_active=is_active)
        session.soil()


def session_of(thing: Producer | Consumer) -> Session:
    """Topics do not know what a link is; here it is always a session."""
    return cast("Session", thing.link)


def now_ms() -> int:
    """The clock of topics and connections: milliseconds that never go back."""
    return time.monotonic_ns() // 1_000_000


def _fenced(served: Served) -> TopicState:
    """The state of a topic that takes nothing more.

    The ownership is void, so that what has no receipt yet gets none: its producer sends it again, and it is not handed on.
    """
    unsettled = {receipt.entry_id for receipt in served.topic.fence().receipts}
    served.works.clear()
    state = served.topic.state()
    if not unsettled:
        return state
    subscriptions = tuple(
        replace(each, waiting=tuple(entry_id for entry_id in each.waiting if entry_id not in unsettled)) for each in state.subscriptions
    )
    return replace(state, subscriptions=subscriptions, entries=tuple(e for e in state.entries if e.entry_id not in unsettled))
