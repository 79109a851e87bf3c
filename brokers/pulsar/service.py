"""Serve Pulsar's non-persistent topics as a balanced `Service`: open, close, split and merge
bundles, and route each message.

Theory of operation: a bundle moves away like this.

1. The service fences its topics. They now ignore messages without a receipt, so producers send them
   again.
2. The service redirects the producers. The destination holds those that arrive before it owns the
   bundle.
3. The handover lists the subscriptions and the consumers to wait for. After it the bundle is gone
   here.
4. Meanwhile each client answers a PING behind all messages sent to it, which shows that it has
   received them. The service then redirects its consumers: a client discards messages that its
   program has not yet read when a consumer reconnects.

The destination creates the topics again, and holds receipts and messages until the former clients
are back (`brokers.pulsar.topics.topic`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.balancing.splitting.split_points import SplitQuestion, split_points
from equipoise.brokers.pulsar.closed import ClosedBundles, Left
from equipoise.brokers.pulsar.deadlines import Deadlines
from equipoise.brokers.pulsar.hosting import Hosting, Served
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics import handover as handovers
from equipoise.brokers.pulsar.topics.clients import ActiveChange, Consumer, Link, Producer, Receipt
from equipoise.brokers.pulsar.topics.dispatch import Delivery
from equipoise.brokers.pulsar.topics.policies import PolicyTable
from equipoise.brokers.pulsar.topics.schemas import Schemas
from equipoise.brokers.pulsar.topics.throttling import Patience
from equipoise.brokers.pulsar.topics.topic import Outcome, TopicState
from equipoise.brokers.pulsar.traffic import Totals, load_of, topic_loads, totals_of
from equipoise.brokers.pulsar.wire.errors import NotServed, ServerError
from equipoise.brokers.pulsar.wire.requests import Sent
from equipoise.brokers.runtime.service import (
    Bundle,
    Ownership,
    OwnershipLost,
    Peer,
    Service,
    Work,
    pulsar_address,
)
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.ranges import TopicName
from equipoise.channel.core.records import Document
from equipoise.channel.system.deadline import Deadline
from equipoise.shedder.bundle_load import BundleLoad

_logger: Final = logging.getLogger(__name__)

_NO_POLICIES: Final[Document] = {}


@dataclass(slots=True)
class Counts:
    """The service's counters since its start. `brokers.pulsar.metrics` exports them."""

    published: int = 0
    published_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    dropped: int = 0
    handovers_damaged: int = 0
    consumers_forgotten: int = 0
    receipts_withheld: int = 0


class PulsarService(Service):
    """The service of all bundles of one broker. `brokers.pulsar.server` connects clients to it."""

    def __init__(self, settings: Settings | None = None) -> None:
        """Use the default settings unless others are given."""
        self.settings = settings or Settings()
        self.policies = PolicyTable(self.settings.topics, self.policies_of)
        self.hosting = Hosting(
            limits=self.policies.limits_of,
            topics_max=self.settings.topics_max,
            tenant_topics_max=lambda: self._balancing().tenants.topics_max,
        )
        self.schemas = Schemas()
        self.counts = Counts()
        self._warming: dict[str, tuple[Bundle, asyncio.Future[None]]] = {}
        self._closed = ClosedBundles(
            bytes_max=self.settings.closed_bytes_max,
            kept_ms=self.settings.closed_ms,
            on_lost=self._lost,
        )
        self._redirecting: set[asyncio.Task[None]] = set()
        self.deadlines = Deadlines(self._pass_deadline, now_ms=now_ms)
        self._counted: Mapping[str, Totals] = {}
        self._counted_since = time.monotonic()

    @property
    def settle_ms(self) -> int:
        """The least time that a client's program has to read a message from its library before its
        consumer reconnects.
        """
        return self.host.config.pulsar_settle_ms if isinstance(self.host, Worker) else 0

    def policies_of(self, namespace: str) -> Document:
        """Return the current policies of a namespace; none if it does not exist."""
        view = self.host.view if isinstance(self.host, Worker) else None
        entry = None if view is None else view.namespaces.get(namespace)
        return _NO_POLICIES if entry is None else entry.policies

    def _balancing(self) -> BalancingSettings:
        """Return the settings in force."""
        if not isinstance(self.host, Worker):
            return BalancingSettings()
        return settings_in(self.host.view, self.host.config.base_settings)

    # --- calls by the worker ---

    # Clients are held by bundle.
    async def prepare(self, bundle: Bundle, source: Peer | None) -> None:  # noqa: ARG002
        """Hold clients that ask for this bundle from now on. The source redirects them here when it
        releases the bundle.
        """
        self._warming.setdefault(bundle.name, (bundle, asyncio.get_running_loop().create_future()))

    async def discard(self, bundle: Bundle) -> None:
        """Stop expecting the bundle, and send held clients back to its owner."""
        self._end_warming(bundle.name)

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Create the topics that the former owner handed over."""
        try:
            states = await self._states(ownership, handover)
            self._closed.forget(ownership.bundle)
            self._await_clients(self.hosting.open(ownership, states, now_ms=now_ms()))
        finally:
            self._end_warming(ownership.bundle.name)

    # It never waits.
    async def close(
        self,
        bundle: Bundle,
        moved_to: Peer | None,
        deadline: Deadline,  # noqa: ARG002
    ) -> bytes | None:
        """Close a bundle as the module docstring describes. Consumers are redirected after this
        returns.
        """
        url = None if moved_to is None else pulsar_address(moved_to.addresses)
        hosted = self.hosting.bundles.get(bundle.name)
        released = self.hosting.close(bundle.name)
        states = self._disconnect(released, url)  # 1., 2., 4.
        # 3.
        return (
            None
            if hosted is None
            else self._left(hosted.ownership, states, is_moving=moved_to is not None)
        )

    def _disconnect(self, released: Sequence[Served], url: str | None) -> Mapping[str, TopicState]:
        """Fence topics, and redirect their clients: producers now, consumers once they have their
        messages. Return the topics' states.
        """
        states = {served.name: _fenced(served) for served in released}
        producers = [
            producer for served in released for producer in served.topic.producers.values()
        ]
        consumers: defaultdict[Link, list[Consumer]] = defaultdict(list)
        for served in released:
            for consumer in served.topic.consumers:
                consumers[consumer.link].append(consumer)
        for producer in producers:
            producer.link.redirect_producer(producer, url)
        for link, of_link in consumers.items():
            self._in_background(_redirect_consumers(link, of_link, url))
        return states

    # One state is kept for each bundle.
    async def fetch(self, bundle: Bundle, token: int) -> bytes | None:  # noqa: ARG002
        """Return what did not fit into the handover, with all undelivered messages, or None if
        nothing is kept.
        """
        left = self._closed.get(bundle.name)
        if left is None:
            return None
        fetchable = await asyncio.to_thread(handovers.fetchable, left.states)
        self._closed.fetched(left)
        return fetchable

    def _left(
        self, ownership: Ownership, states: Mapping[str, TopicState], *, is_moving: bool
    ) -> bytes | None:
        """Return the handover of a bundle that closes here. Keep what must be fetched, or
        everything if the bundle has no destination.

        Without a destination this broker may reopen these points: a merge that finds one of its two
        bundles still opening closes both.
        """
        left = Left(bundle=ownership.bundle, token=ownership.token)
        if states:  # Also topics without subscriptions: the next owner must know that they exist.
            encoded = handovers.encode(states)
            self.counts.dropped += encoded.dropped
            self.counts.consumers_forgotten += encoded.forgotten
            is_awaited = is_moving and not encoded.is_complete
            left = replace(
                left, handover=encoded.handover, states=encoded.states, is_awaited=is_awaited
            )
        if left.is_awaited or not is_moving:
            self._closed.keep(left)
        return left.handover

    def _lost(self, left: Left) -> None:
        """Count and log the messages of a state that expired before it was fetched."""
        self.counts.dropped += left.messages
        about = {"broker": self.host.broker_id, "bundle": left.bundle.name, "token": left.token}
        _logger.warning(
            "lost %d messages and the names of %d topics: the next owner did not fetch them",
            left.messages,
            len(left.states),
            extra=about,
        )

    def split(self, parent: Bundle, children: Sequence[Ownership]) -> None:
        """Assign the topics of `parent` to its children. Clients are not affected."""
        self.hosting.reshape([parent], children)

    async def split_points(
        self, bundle: Bundle, algorithm: str, positions: Sequence[int] | None
    ) -> Sequence[int]:
        """Return where to split a bundle, by its topics. A split that an operator requests is made
        even with too few topics.
        """
        hosted = self.hosting.bundles.get(bundle.name)
        topics = () if hosted is None else topic_loads(hosted.topics.values())
        settings = self._balancing()
        question = SplitQuestion(
            low=bundle.low,
            high=bundle.high,
            topics=topics,
            positions=positions,
            force=True,
            limits=settings.limits,
            margin=settings.split_points.margin,
        )
        return split_points(algorithm, question)

    def merge(self, left: Bundle, right: Bundle, union: Ownership) -> None:
        """Assign the topics of both bundles to their union. Clients are not affected."""
        self.hosting.reshape([left, right], [union])
        for served in self.hosting.bundles[union.bundle.name].topics.values():
            # Renew works whose receipts are still held, because one of the two tokens ends here.
            with suppress(OwnershipLost):
                served.works = {entry_id: union.begin(served.name) for entry_id in served.works}

    def load(self) -> Mapping[str, BundleLoad]:
        """Return each bundle's load per second since the last call, and its connected clients."""
        now = time.monotonic()
        seconds, self._counted_since = max(now - self._counted_since, 0.001), now
        before, self._counted = (
            self._counted,
            {name: totals_of(served.topic) for name, served in self.hosting.topics.items()},
        )
        return {
            name: load_of(hosted.topics.values(), before, self._counted, seconds)
            for name, hosted in self.hosting.bundles.items()
        }

    # --- calls by sessions ---

    def served_now(self, topic: TopicName) -> Served | None:
        """Return a topic that is usable here at this moment, or None. Does not wait."""
        served = self.hosting.topics.get(topic.full)
        return (
            served
            if served is not None and not served.topic.is_fenced and served.ownership.is_good
            else None
        )

    async def serve(
        self, topic: TopicName, admit: Callable[[TopicName], AbstractAsyncContextManager[None]]
    ) -> Served | Peer:
        """Return the topic, created if necessary, or the peer that serves it. Wait while its bundle
        has no owner or is moving here.

        `admit` raises an error if the topic must not be created. It is entered once the bundle is
        open here, with what the former owner handed over, so that the topic is known not to exist.
        It is left once the topic is created.

        Raises `UnknownNamespace`, `DeadlineExceeded`, `NotServed` and `Overloaded`.
        """
        deadline = Deadline.after(timeout_ms=self.settings.hold_ms)
        is_admitted = False
        async with AsyncExitStack() as admitted:
            while True:
                await self._warmed(topic, deadline)
                routed = await self.host.route(
                    topic.namespace, topic.full, timeout_ms=deadline.remaining_ms()
                )
                if isinstance(routed, Peer):
                    return routed
                if not routed.is_good:
                    continue  # It was lost between the answer and this turn.
                if (
                    not is_admitted
                    and routed.bundle.name in self.hosting.bundles
                    and topic.full not in self.hosting.topics
                ):
                    await deadline.wait(
                        admitted.enter_async_context(admit(topic)),
                        what=f"room for topic {topic.full}",
                    )
                    is_admitted = True
                    continue  # The bundle may have moved meanwhile.
                served = self.hosting.topic(routed.bundle.name, topic.full, now_ms=now_ms())
                if served is not None:
                    return served
                raise NotServed(
                    error=ServerError.NOT_ALLOWED,
                    problem=f"namespace {topic.namespace} does not accept Pulsar clients",
                )

    # --- calls by operators ---

    def keep(self, served: Served) -> None:
        """Keep a topic without clients for `inactive_ms`, because it has just been created, or has
        come here without them.
        """
        served.is_kept = True
        asyncio.get_running_loop().call_later(
            self.settings.inactive_ms / 1_000, self._keep_no_longer, served
        )

    def _keep_no_longer(self, served: Served) -> None:
        served.is_kept = False
        self.hosting.forget_if_idle(served)

    def unload(self, served: Served) -> None:
        """Make the clients of one topic look it up again. It goes on here as after a move, so that
        no message is lost.
        """
        states = self._disconnect([served], None)
        self._await_clients([self.hosting.renew(served, states[served.name], now_ms=now_ms())])

    def delete(self, served: Served) -> None:
        """Delete a topic, and disconnect its clients."""
        self._disconnect([served], None)
        self.hosting.forget(served)

    def delete_subscription(self, served: Served, name: str) -> None:
        """Delete a subscription with its backlog, if there is one, and disconnect its consumers."""
        for consumer in served.topic.delete_subscription(name):
            consumer.link.redirect_consumer(consumer, None)
        self.hosting.forget_if_idle(served)

    def publish(
        self, served: Served, producer: Producer, entries: Sequence[Sent], patience: Patience
    ) -> Sequence[Sent]:
        """Publish entries of one producer, in order. Return those that must wait
        (`Topic.room_for`): publish them again. `patience` is that of its connection.

        Without a valid ownership they get no receipt, and the client sends them again. So it does
        if the producer was removed meanwhile.
        """
        topic = served.topic
        while entries and topic.producers.get(producer.name) is producer:
            room = topic.room_for(producer, entries, patience, now_ms())
            if not room:
                return entries
            self._publish(served, producer, entries[:room])
            entries = entries[room:]
        return ()

    def _publish(self, served: Served, producer: Producer, entries: Sequence[Sent]) -> None:
        topic = served.topic
        if topic.is_fenced:
            return
        try:
            # One work for all of them: nothing else runs between its two checks, unless receipts
            # are held.
            work = served.ownership.begin(served.name)
        except OwnershipLost as lost:
            self._withhold(served, producer, is_closed=lost.is_closed)
            return
        first_id = topic.last_entry_id + 1
        outcome = topic.publish(producer, entries, now_ms())
        served.works |= dict.fromkeys(range(first_id, topic.last_entry_id + 1), work)
        self.counts.published += sum(entry.messages for entry in entries)
        self.counts.published_bytes += sum(len(entry.block) for entry in entries)
        self.carry_out(served, outcome)

    def flow(self, served: Served, consumer: Consumer, permits: int) -> None:
        """Add to a consumer's permits and deliver. Without a valid ownership only note the
        permits.
        """
        if served.ownership.is_good:
            self.carry_out(served, served.topic.flow(consumer, permits, now_ms()))
        else:
            served.topic.note_flow(consumer, permits)
            self.deadlines.put_off(served)

    def resume(self, served: Served, consumer: Consumer) -> None:
        """Note that a consumer's connection is writable again, and deliver; see `flow`."""
        if served.ownership.is_good:
            self.carry_out(
                served, served.topic.writable(consumer, is_writable=True, now_ms=now_ms())
            )
        else:
            served.topic.note_writable(consumer)
            self.deadlines.put_off(served)

    def carry_out(self, served: Served, outcome: Outcome) -> None:
        """Write the outcome of a topic's step: messages first, then their receipts.

        All second checks run before anything is written, because writing may call this topic again.
        Entries that fail the check are not delivered.
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
            if consumer.link.deliver(consumer, entry_id, topic.partition, block):
                counts.delivered += messages
                counts.delivered_bytes += len(block)
            else:
                topic.take_back(consumer, entry)
                counts.dropped += messages
        counts.dropped += outcome.dropped
        for producer, of_producer in groupby(receipts, key=_producer_of):
            producer.link.confirm(producer, of_producer)
        if topic.wake_at_ms is not None:
            self.deadlines.watch(served)

    def release_receipts(self, served: Served, producer: Producer) -> bool:
        """Send held receipts early, so that an answer to `producer` can follow them.

        Return False if the ownership is lost: the producer must reconnect and gets no answer.
        """
        try:
            served.ownership.begin(served.name)
        except OwnershipLost as lost:
            self._withhold(served, producer, is_closed=lost.is_closed)
            return False
        self.carry_out(served, served.topic.release_receipts())
        return True

    def forget_producers(self, served: Served, producers: Collection[Producer]) -> None:
        """Remove producers and their entries without a receipt. Drop the topic if it is then
        idle.
        """
        served.forget_works(served.topic.remove_producers(producers))
        self.hosting.forget_if_idle(served)

    @staticmethod
    def _refused(served: Served, receipts: Sequence[Receipt]) -> Mapping[Receipt, bool]:
        """Run the second check of each receipt's work. Return the receipts that fail, and whether
        their bundle is already closed here.
        """
        refused: dict[Receipt, bool] = {}
        finished: Work | None = None
        for receipt in receipts:
            work = served.works.pop(receipt.entry_id, None)
            if work is None:
                refused[receipt] = False
                continue
            if work is finished:
                continue  # Entries that came together share their work.
            try:
                work.finish(
                    message=(
                        f"{receipt.producer.name}:{receipt.sequence_id}"
                        if work.is_recorded
                        else None
                    )
                )
                finished = None if work.is_recorded else work
            except OwnershipLost as lost:
                refused[receipt] = lost.is_closed
        return refused

    def _without(
        self, served: Served, outcome: Outcome, refused: Mapping[Receipt, bool]
    ) -> tuple[Sequence[Delivery], Sequence[Receipt]]:
        """Return the deliveries and receipts of an outcome without the refused ones, whose
        producers send them again.

        Deliveries whose entry has no receipt in this outcome stay: they got one before, here or
        from the former owner.
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
        deliveries = [
            delivery for delivery in outcome.deliveries if delivery[1].entry_id not in again
        ]
        return deliveries, [receipt for receipt in outcome.receipts if receipt not in refused]

    def _withhold(self, served: Served, producer: Producer, *, is_closed: bool) -> None:
        """Withhold a receipt, and make its producer reconnect so that it sends this and later
        messages again.

        If the bundle is already closed here, its `close` redirects the producer.
        """
        self.counts.receipts_withheld += 1
        if not is_closed:
            producer.link.redirect_producer(producer, None)
            self.forget_producers(served, (producer,))

    async def all_fetched(self) -> None:
        """Wait until next owners have fetched what they need. Stop at a deadline, or when no fetch
        happens for `next_fetch_ms`.
        """
        deadline = Deadline.after(timeout_ms=self.settings.all_fetched_ms)
        is_fetching = True
        while is_fetching and self._closed.awaited and deadline.remaining_ms():
            is_fetching = await self._closed.next_fetch(
                timeout_ms=min(self.settings.next_fetch_ms, deadline.remaining_ms())
            )
        if self._closed.awaited:
            about = {"broker": self.host.broker_id}
            _logger.warning(
                "lost the states of %d closed bundles: their next owners did not fetch them before"
                " this broker ended",
                self._closed.awaited,
                extra=about,
            )

    async def all_redirected(self) -> None:
        """Wait until all consumers of closed bundles are redirected. The wait is bounded."""
        if self._redirecting:
            await asyncio.wait(self._redirecting)

    # --- opening and closing bundles ---

    async def _states(
        self, ownership: Ownership, handover: bytes | None
    ) -> Mapping[str, TopicState]:
        """Return the topic states that the former owner handed over. Damaged or missing states cost
        messages, never the bundle.
        """
        if handover is None:
            return self._states_left_here(ownership)
        try:
            if ownership.fetch is None:  # The bundle may be back here because its destination died.
                states = self._closed.belonging_to(ownership.bundle.name, handover)
                if states is not None:
                    return states
            if handovers.is_complete(handover):
                return handovers.decode(handover, None)
            return await self._fetched(ownership, handover)
        except EquipoiseError as error:
            self.counts.handovers_damaged += 1
            about = {
                "broker": self.host.broker_id,
                "bundle": ownership.bundle.name,
                "token": ownership.token,
            }
            _logger.warning(
                "topics start without the state of their former owner: %s", error, extra=about
            )
        try:
            return handovers.decode(handover, None)
        except EquipoiseError:
            return {}

    async def _fetched(self, ownership: Ownership, handover: bytes) -> Mapping[str, TopicState]:
        """Fetch what the handover lacks. Try twice if the first try fails early: up to 32 MiB of
        receipted messages depend on it.

        Raises `PeerError`, and any error of the fetch.
        """
        again_by = Deadline.after(timeout_ms=self.settings.fetch_again_ms)
        try:
            return await self._fetched_once(ownership, handover)
        except EquipoiseError as error:
            if not again_by.remaining_ms():
                raise
            about = {
                "broker": self.host.broker_id,
                "bundle": ownership.bundle.name,
                "token": ownership.token,
            }
            _logger.info("fetching the state of a bundle again: %s", error, extra=about)
        return await self._fetched_once(ownership, handover)

    @staticmethod
    async def _fetched_once(ownership: Ownership, handover: bytes) -> Mapping[str, TopicState]:
        fetched = None if ownership.fetch is None else await ownership.fetch()
        if fetched is None:
            raise handovers.damaged("fetched state", "its former owner is gone or no longer has it")
        return await asyncio.to_thread(handovers.decode, handover, fetched)

    def _states_left_here(self, ownership: Ownership) -> Mapping[str, TopicState]:
        """Return the states that this broker kept when it closed these topics, if no other broker
        has owned them since.
        """
        states: dict[str, TopicState] = {}
        for left in self._closed.of_ownership(ownership.bundle, ownership.token):
            states |= left.states
        return states

    def _in_background(self, operation: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(operation)
        self._redirecting.add(task)
        task.add_done_callback(self._redirecting.discard)

    async def _warmed(self, topic: TopicName, deadline: Deadline) -> None:
        """Wait while the bundle of a topic is moving here, so that clients are not sent back to a
        source that is releasing it.
        """
        for bundle, arrived in list(self._warming.values()):
            if bundle.contains(topic.namespace, topic.full):
                timeout_s = min(self.settings.warming_hold_ms, deadline.remaining_ms()) / 1_000
                await asyncio.wait([arrived], timeout=timeout_s)

    def _end_warming(self, bundle: str) -> None:
        warming = self._warming.pop(bundle, None)
        if warming is not None:
            warming[1].set_result(None)

    def _pass_deadline(self, served: Served) -> None:
        if not served.ownership.is_good:
            self.deadlines.put_off(served)
            return
        self.carry_out(served, served.topic.tick(now_ms()))
        self.hosting.forget_if_idle(served)

    def _await_clients(self, opened: Sequence[Served]) -> None:
        """Wait until the clients of topics that came here are back."""
        for served in opened:
            self.deadlines.watch(served)
            if served.topic.is_idle:
                self.keep(served)  # Its producers are on the way, or nobody has used it yet.
        if opened:
            wait_s = self.settings.topics.reconnect_wait_ms / 1_000
            asyncio.get_running_loop().call_later(wait_s, self._forget_idle, opened)

    def _forget_idle(self, opened: Sequence[Served]) -> None:
        """Drop the topics of an opened bundle whose clients did not return. Call this when waiting
        is over.
        """
        for served in opened:
            self.hosting.forget_if_idle(served)


def send_active_changes(changes: Sequence[ActiveChange]) -> None:
    """Send consumers of Failover subscriptions, in any session, whether they are active."""
    for consumer, is_active in changes:
        consumer.link.activate(consumer, is_active=is_active)


async def _redirect_consumers(link: Link, consumers: Sequence[Consumer], url: str | None) -> None:
    """Redirect the consumers of one client once it has its messages."""
    await link.settled()
    for consumer in consumers:
        link.redirect_consumer(consumer, url)


def _producer_of(receipt: Receipt) -> Producer:
    return receipt.producer


def now_ms() -> int:
    """Return the monotonic clock of topics and connections in milliseconds."""
    return time.monotonic_ns() // 1_000_000


def _fenced(served: Served) -> TopicState:
    """Fence a topic and return its state.

    The ownership is void, so entries without a receipt are removed: they get none, and their
    producers send them again.
    """
    served.topic.forget({receipt.entry_id for receipt in served.topic.fence().receipts})
    served.works.clear()
    return served.topic.state()
