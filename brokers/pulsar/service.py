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
(`brokers.pulsar.topics.topic`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from equipoise.brokers.balancing.splitting.split_points import SplitQuestion, split_points
from equipoise.brokers.pulsar.deadlines import Deadlines
from equipoise.brokers.pulsar.hosting import Hosting, Served
from equipoise.brokers.pulsar.parted import Left, Parted
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics import handover as handovers
from equipoise.brokers.pulsar.topics.dispatch import ActiveChange, Consumer
from equipoise.brokers.pulsar.topics.handover import HandoverDamaged
from equipoise.brokers.pulsar.topics.names import PULSAR
from equipoise.brokers.pulsar.topics.outcomes import Outcome, Producer, Receipt
from equipoise.brokers.pulsar.topics.schemas import Schemas
from equipoise.brokers.pulsar.topics.subscription import Delivery
from equipoise.brokers.pulsar.topics.topic import TopicState
from equipoise.brokers.pulsar.traffic import Totals, load_of, topic_loads, totals_of
from equipoise.brokers.pulsar.wire.errors import NotServed, ServerError
from equipoise.brokers.pulsar.wire.requests import Published
from equipoise.brokers.runtime.service import Bundle, Ownership, OwnershipLost, Peer, Service
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.ranges import TopicName, topic_hash
from equipoise.channel.system.deadline import Deadline
from equipoise.shedder.bundle_load import BundleLoad

if TYPE_CHECKING:
    from equipoise.brokers.pulsar.session import Session

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
    consumers_forgotten: int = 0
    receipts_withheld: int = 0


class PulsarService(Service):
    """One instance serves all bundles of its broker; `brokers.pulsar.server` brings it the clients."""

    def __init__(self, settings: Settings | None = None) -> None:
        """With the default settings unless others are given."""
        self.settings = settings or Settings()
        # How long a client's program has at least, after its library took a message, to take it out before its consumer connects
        # anew: an operator's setting, which the server brings.
        self.settle_ms = 0
        self.hosting = Hosting(limits=self.settings.topics, topics_max=self.settings.topics_max)
        self.schemas = Schemas()
        self.counts = Counts()
        self._warming: dict[str, tuple[Bundle, asyncio.Future[None]]] = {}
        self._parted = Parted(bytes_max=self.settings.parted_bytes_max, kept_ms=self.settings.parted_ms, on_lost=self._lost)
        self._parting: set[asyncio.Task[None]] = set()
        self._deadlines = Deadlines(self._pass_deadline, now_ms=now_ms)
        self._counted: Mapping[str, Totals] = {}
        self._counted_since = time.monotonic()

    @property
    def topics_waiting(self) -> int:
        """How many topics wait for clients that were there before a move."""
        return len(self._deadlines.waiting())

    def topics_that_wait(self) -> Sequence[Served]:
        """Those topics."""
        return self._deadlines.waiting()

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
            states = await self._states(ownership, handover)
            self._parted.forget(ownership.bundle)
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
        hosted = self.hosting.bundles.get(bundle.name)
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
        return None if hosted is None else self._left(hosted.ownership, states, is_moving=moved_to is not None)  # 3.

    async def fetch(self, bundle: Bundle, token: int) -> bytes | None:  # noqa: ARG002 - one state is kept for each bundle
        """What did not fit into the handover, and the messages that were not delivered."""
        left = self._parted.get(bundle.name)
        if left is None:
            return None
        fetchable = await asyncio.to_thread(handovers.fetchable, left.states)
        self._parted.fetched(left)
        return fetchable

    def _left(self, ownership: Ownership, states: Mapping[str, TopicState], *, is_moving: bool) -> bytes | None:
        """The handover of a bundle that is closed here. What is to be fetched is kept, and all if the bundle is not on its way.

        It may be this broker that opens these points next: a merge that finds one of the two just being opened closes both.
        """
        left = Left(bundle=ownership.bundle, token=ownership.token)
        if any(state.subscriptions for state in states.values()):
            encoded = handovers.encode(states)
            self.counts.dropped += encoded.dropped
            self.counts.consumers_forgotten += encoded.forgotten
            is_awaited = is_moving and not encoded.is_complete
            left = replace(left, handover=encoded.handover, states=encoded.states, is_awaited=is_awaited)
        if left.is_awaited or not is_moving:
            self._parted.keep(left)
        return left.handover

    def _lost(self, left: Left) -> None:
        """Nobody has fetched what a bundle left, and it is kept no longer."""
        self.counts.dropped += left.messages
        about = {"broker": self.host.broker_id, "bundle": left.bundle.name, "token": left.token}
        _logger.warning(
            "%d messages and the names of %d topics were not fetched, and are lost", left.messages, len(left.states), extra=about
        )

    def split(self, parent: Bundle, children: Sequence[Ownership]) -> None:
        """The topics of `parent` are filed under the children; nobody notices."""
        self.hosting.reshape([parent], children)

    async def split_points(self, bundle: Bundle, algorithm: str, positions: Sequence[int] | None) -> Sequence[int]:
        """Where to cut a bundle, by the topics in it. What an operator names is cut, even with too few topics to divide."""
        hosted = self.hosting.bundles.get(bundle.name)
        topics = () if hosted is None else topic_loads(hosted.topics.values())
        return split_points(algorithm, SplitQuestion(low=bundle.low, high=bundle.high, topics=topics, positions=positions, force=True))

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
            self._withhold(served, producer, is_closed=lost.is_closed)
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

    def flow(self, served: Served, consumer: Consumer, permits: int) -> None:
        """A consumer takes so many messages more. Without the right to the bundle that is noted, and nothing is delivered."""
        if served.ownership.is_good:
            self.carry_out(served, served.topic.flow(consumer, permits, now_ms()))
        else:
            served.topic.note_flow(consumer, permits)
            self._deadlines.put_off(served)

    def resume(self, served: Served, consumer: Consumer) -> None:
        """A consumer's client takes again what is written to it; as `flow`."""
        if served.ownership.is_good:
            self.carry_out(served, served.topic.writable(consumer, is_writable=True, now_ms=now_ms()))
        else:
            served.topic.note_writable(consumer)
            self._deadlines.put_off(served)

    def carry_out(self, served: Served, outcome: Outcome) -> None:
        """Write what a step of a topic came to: messages first, then the receipts that promise them.

        Second checks come before all of it. What does not pass is delivered to nobody, and writing may lead back to this topic.
        """
        topic, counts = served.topic, self.counts
        deliveries: Sequence[Delivery] = outcome.deliveries
        receipts: Sequence[Receipt] = outcome.receipts
        if receipts:
            refused = self._refused(served, receipts)
            if refused:
                deliveries, receipts = self._without(served, outcome, refused)
        for consumer, entry in deliveries:
            entry_id, block, messages = entry
            if session_of(consumer).deliver(consumer, entry_id, topic.partition, block):
                counts.delivered += messages
                counts.delivered_bytes += len(block)
            else:
                topic.take_back(consumer, entry)
                counts.dropped += messages
        counts.dropped += outcome.dropped
        for receipt in receipts:
            session_of(receipt.producer).confirm(receipt)
        if topic.wake_at_ms is not None:
            self._deadlines.watch(served)

    def release_receipts(self, served: Served, producer: Producer) -> bool:
        """Give the receipts that are held ahead of their time, for the sake of an answer to `producer` that must come behind them.

        False: the right to give them is lost, and the producer has to connect anew, without that answer.
        """
        try:
            served.ownership.begin(served.name)
        except OwnershipLost as lost:
            self._withhold(served, producer, is_closed=lost.is_closed)
            return False
        self.carry_out(served, served.topic.release_receipts())
        return True

    def forget_producers(self, served: Served, producers: Collection[Producer]) -> None:
        """Producers are gone, and their entries without a receipt with them; their topic is not kept for nobody."""
        served.forget_works(served.topic.remove_producers(producers))
        self.hosting.forget_if_idle(served)

    @staticmethod
    def _refused(served: Served, receipts: Sequence[Receipt]) -> Mapping[Receipt, bool]:
        """Let the works of receipts pass their second check. Which do not, and whether their bundle is closed here already."""
        refused: dict[Receipt, bool] = {}
        for receipt in receipts:
            work = served.works.pop(receipt.entry_id, None)
            if work is None:
                refused[receipt] = False
                continue
            try:
                work.finish(message=f"{receipt.producer.name}:{receipt.sequence_id}" if work.is_witnessed else None)
            except OwnershipLost as lost:
                refused[receipt] = lost.is_closed
        return refused

    def _without(self, served: Served, outcome: Outcome, refused: Mapping[Receipt, bool]) -> tuple[Sequence[Delivery], Sequence[Receipt]]:
        """What may still be written of an outcome, some of whose receipts were refused: all but the entries that are sent again.

        What has no receipt in it got one before, here or from the former owner, and must not be lost with those.
        """
        topic = served.topic
        again = {receipt.entry_id for receipt in refused}
        for consumer, entry in outcome.deliveries:
            if entry.entry_id in again:
                topic.take_back(consumer, entry)
                self.counts.dropped += entry.messages
        topic.forget(again)
        for receipt, is_closed in refused.items():
            self._withhold(served, receipt.producer, is_closed=is_closed)
        deliveries = [delivery for delivery in outcome.deliveries if delivery[1].entry_id not in again]
        return deliveries, [receipt for receipt in outcome.receipts if receipt not in refused]

    def _withhold(self, served: Served, producer: Producer, *, is_closed: bool) -> None:
        """A message gets no receipt. Nor may a later one of its producer, who has to connect anew and send it again.

        If the bundle is closed here already, its `close` sends the producer to where it goes.
        """
        self.counts.receipts_withheld += 1
        if not is_closed:
            session_of(producer).part_producer(producer, None)
            self.forget_producers(served, (producer,))

    async def all_fetched(self) -> None:
        """Wait until next owners have fetched what was left for them: for as long as one does so now and then, and bounded."""
        deadline = Deadline.after(timeout_ms=self.settings.all_fetched_ms)
        is_fetching = True
        while is_fetching and self._parted.awaited and deadline.remaining_ms():
            is_fetching = await self._parted.next_fetch(timeout_ms=min(self.settings.next_fetch_ms, deadline.remaining_ms()))
        if self._parted.awaited:
            about = {"broker": self.host.broker_id}
            _logger.warning("what %d bundles left here was not fetched, and ends with this broker", self._parted.awaited, extra=about)

    async def all_parted(self) -> None:
        """Wait until all consumers of bundles that were closed here have been told where to go; that is bounded."""
        if self._parting:
            await asyncio.wait(self._parting)

    # --- coming and going ---

    async def _states(self, ownership: Ownership, handover: bytes | None) -> Mapping[str, TopicState]:
        """What the former owner told of the topics. What cannot be had or read costs messages, never the bundle."""
        if handover is None:
            return self._states_left_here(ownership)
        try:
            if ownership.fetch is None:  # It comes back to this broker, perhaps, because its destination died.
                states = self._parted.belonging_to(ownership.bundle.name, handover)
                if states is not None:
                    return states
            if handovers.is_complete(handover):
                return handovers.decode(handover, None)
            return await self._fetched(ownership, handover)
        except EquipoiseError as error:
            self.counts.handovers_damaged += 1
            about = {"broker": self.host.broker_id, "bundle": ownership.bundle.name, "token": ownership.token}
            _logger.warning("topics begin anew: %s", error, extra=about)
        try:
            return handovers.decode(handover, None)
        except EquipoiseError:
            return {}

    async def _fetched(self, ownership: Ownership, handover: bytes) -> Mapping[str, TopicState]:
        """What the handover does not say. If that fails soon it is tried once more, for it may cost 32 MiB of receipted messages.

        Raises `HandoverDamaged`, and whatever keeps the former owner from being asked.
        """
        again_by = Deadline.after(timeout_ms=self.settings.fetch_again_ms)
        try:
            return await self._fetched_once(ownership, handover)
        except EquipoiseError as error:
            if not again_by.remaining_ms():
                raise
            about = {"broker": self.host.broker_id, "bundle": ownership.bundle.name, "token": ownership.token}
            _logger.info("asking once more for what a bundle left: %s", error, extra=about)
        return await self._fetched_once(ownership, handover)

    @staticmethod
    async def _fetched_once(ownership: Ownership, handover: bytes) -> Mapping[str, TopicState]:
        fetched = None if ownership.fetch is None else await ownership.fetch()
        if fetched is None:
            raise HandoverDamaged(what="fetched state", problem="its former owner is gone, or has it no more")
        return await asyncio.to_thread(handovers.decode, handover, fetched)

    def _states_left_here(self, ownership: Ownership) -> Mapping[str, TopicState]:
        """What this broker knows itself of topics that nobody told of: it closed them a moment ago, and nobody had them since."""
        states: dict[str, TopicState] = {}
        for left in self._parted.of_ownership(ownership.bundle, ownership.token):
            states |= left.states
        return states

    async def _part_consumers(self, session: Session, consumers: Sequence[Consumer], url: str | None) -> None:
        """Wait until a client has taken what it was sent, and a moment longer for its program to take it out; then send it on.

        A client that was slow to answer is short of CPU, and its program will be as slow: so it gets as long again.
        """
        began_ms, settle_ms = now_ms(), self.settle_ms
        taken = session.taken()
        if taken is not None:
            await asyncio.wait([taken], timeout=self.settings.drain_wait_ms / 1_000)
        if session.client_version.startswith(_JAVA) and (taken is not None or session.taken_at_ms is not None):
            # It may have been asked a moment ago, for another bundle, and its program is still at what it took then.
            passed_ms = 0 if taken is not None or session.taken_at_ms is None else began_ms - session.taken_at_ms
            settle_ms = max(settle_ms, self.settings.settle_java_ms - passed_ms)
        await asyncio.sleep(max(settle_ms, now_ms() - began_ms) / 1_000)
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
        if not served.ownership.is_good:
            self._deadlines.put_off(served)
            return
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
    served.topic.forget({receipt.entry_id for receipt in served.topic.fence().receipts})
    served.works.clear()
    return served.topic.state()
