"""Serve one topic under the ownership of its bundle: publish, deliver, and answer what passes both
checks.

`brokers.pulsar.topics.topic` decides who gets what. `Served` checks the ownership before and after
each step, and writes its outcome to the links of the clients.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final, Protocol

from equipoise.brokers.pulsar.topics.clients import ActiveChange, Consumer, Producer
from equipoise.brokers.pulsar.topics.throttling import Patience
from equipoise.brokers.pulsar.topics.topic import Outcome, Topic, TopicState
from equipoise.brokers.pulsar.wire.requests import Sent
from equipoise.brokers.runtime.service import Ownership, OwnershipLost, Work
from equipoise.channel.system.clocks import now_ms

_logger: Final = logging.getLogger(__name__)

# Retry interval while the lease has expired: it may be renewed, or lost for good.
_AGAIN_MS: Final = 100

# All topics of a bundle are due in the same millisecond. One turn of the loop handles them for this
# long, plus one topic's step; the rest follow in the next turn.
_TURN_MS: Final = 20


@dataclass(slots=True)
class Counts:
    """The service's counters since its start. `brokers.pulsar.server` exports them."""

    published: int = 0
    published_bytes: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    dropped: int = 0
    handovers_damaged: int = 0
    consumers_forgotten: int = 0
    receipts_withheld: int = 0


class Host(Protocol):
    """The broker of a topic, as the topic sees it."""

    counts: Counts
    deadlines: Deadlines

    def forget_if_idle(self, served: Served) -> None:
        """Drop a topic that has no clients, expects none, and is not kept."""
        ...


class Served:
    """One topic that is served here, and its current ownership. A split or merge replaces the
    ownership.

    `work` is the latest publish. Receipts pass its second check when they are sent, also those that
    were held. `is_kept`: whether the topic exists without clients, because an operator has created
    it, or it has come here, a moment ago.
    """

    __slots__ = ("_host", "is_kept", "ownership", "topic", "work")

    def __init__(self, topic: Topic, ownership: Ownership, host: Host) -> None:
        """Serve a topic that `host` keeps."""
        self.topic = topic
        self.ownership = ownership
        self.work: Work | None = None
        self.is_kept = False
        self._host = host

    @property
    def name(self) -> str:
        """The full name of the topic, which is also its hash key."""
        return self.topic.name

    @property
    def is_usable(self) -> bool:
        """Whether clients may use it at this moment."""
        return not self.topic.is_fenced and self.ownership.is_good

    def continue_under(self, ownership: Ownership) -> None:
        """Go on under the ownership of a merged bundle. Receipts that are still held belong to it,
        because one of the two tokens ends here.
        """
        self.ownership = ownership
        if self.work is not None:
            try:
                self.work = ownership.begin(self.name)
            except OwnershipLost:
                return  # The second check of the former work fails, too.

    def fenced(self) -> TopicState:
        """Fence the topic and return its state.

        The ownership is void, so entries without a receipt are removed: they get none, and their
        producers send them again.
        """
        self.topic.forget({receipt.entry_id for receipt in self.topic.fence().receipts})
        return self.topic.state()

    def publish(
        self, producer: Producer, entries: Sequence[Sent], patience: Patience
    ) -> Sequence[Sent]:
        """Publish entries of one producer, in order. Return those that must wait
        (`Topic.room_for`): publish them again. `patience` is that of its connection.

        Without a valid ownership they get no receipt, and the client sends them again. So it does
        if the producer was removed meanwhile.
        """
        topic = self.topic
        while entries and topic.producers.get(producer.name) is producer:
            room = topic.room_for(producer, entries, patience, now_ms())
            if not room:
                return entries
            self._publish(producer, entries[:room])
            entries = entries[room:]
        return ()

    def _publish(self, producer: Producer, entries: Sequence[Sent]) -> None:
        if self.topic.is_fenced:
            return
        try:
            # One work for all of them: nothing else runs between its two checks, unless receipts
            # are held.
            self.work = self.ownership.begin(self.name)
        except OwnershipLost as lost:
            self._withhold(producer, lost)
            return
        counts = self._host.counts
        counts.published += sum(entry.messages for entry in entries)
        counts.published_bytes += sum(len(entry.block) for entry in entries)
        self.carry_out(self.topic.publish(producer, entries, now_ms()))

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add to a consumer's permits and deliver. Without a valid ownership only note the
        permits.
        """
        self.topic.flow(consumer, permits)
        self.pass_deadlines()

    def resume(self, consumer: Consumer) -> None:
        """Note that a consumer's connection is writable again, and deliver; see `flow`."""
        self.topic.writable(consumer, is_writable=True)
        self.pass_deadlines()

    def pass_deadlines(self) -> None:
        """Do what is due now, or put it off while the ownership is not valid."""
        if self.ownership.is_good:
            self.carry_out(self.topic.tick(now_ms()))
            self._host.forget_if_idle(self)
        else:
            self._host.deadlines.put_off(self)

    def carry_out(self, outcome: Outcome) -> None:
        """Write the outcome of a topic's step: messages first, then their receipts.

        All second checks run before anything is written, because writing may call this topic again.
        Entries that fail the check are not delivered.
        """
        topic, counts = self.topic, self._host.counts
        if outcome.receipts:
            self._check(outcome)
        for consumer, entry in outcome.deliveries:
            if consumer.link.deliver(consumer, entry.entry_id, topic.partition, entry.block):
                counts.delivered += entry.messages
                counts.delivered_bytes += len(entry.block)
            else:
                topic.take_back(consumer, entry)
                counts.dropped += entry.messages
        counts.dropped += outcome.dropped
        for producer, receipts in itertools.groupby(outcome.receipts, key=attrgetter("producer")):
            producer.link.confirm(producer, receipts)
        self._host.deadlines.watch(self)

    def _check(self, outcome: Outcome) -> None:
        """Run the second check of receipts. Remove those that fail it from the outcome, with the
        deliveries of their entries: their producers send them again.

        Deliveries whose entry has no receipt in this outcome stay: they got one before, here or
        from the former owner.
        """
        work, passed = self.work, 0
        assert work is not None, "what has receipts was published"
        try:
            if not work.is_recorded:
                work.finish()
                return
            for producer, sequence_id, _, _ in outcome.receipts:
                work.finish(message=f"{producer.name}:{sequence_id}")
                passed += 1
        except OwnershipLost as lost:
            refused, outcome.receipts = outcome.receipts[passed:], outcome.receipts[:passed]
            again = {receipt.entry_id for receipt in refused}
            deliveries, outcome.deliveries = outcome.deliveries, []
            for consumer, entry in deliveries:
                if entry.entry_id in again:
                    self.topic.take_back(consumer, entry)
                    self._host.counts.dropped += entry.messages
                else:
                    outcome.deliveries.append((consumer, entry))
            self.topic.forget(again)
            for receipt in refused:
                self._withhold(receipt.producer, lost)

    def _withhold(self, producer: Producer, lost: OwnershipLost) -> None:
        """Withhold a receipt, and make its producer reconnect so that it sends this and later
        messages again.

        If the bundle is already closed here, its `close` redirects the producer.
        """
        self._host.counts.receipts_withheld += 1
        if not lost.is_closed:
            producer.link.redirect(producer, None)
            self.remove((producer,))

    def release_receipts(self, producer: Producer) -> bool:
        """Send held receipts early, so that an answer to `producer` can follow them.

        Return False if the ownership is lost: the producer must reconnect and gets no answer.
        """
        try:
            self.ownership.begin(self.name)
        except OwnershipLost as lost:
            self._withhold(producer, lost)
            return False
        self.carry_out(self.topic.release_receipts())
        return True

    def remove(self, clients: Collection[Producer | Consumer]) -> None:
        """Remove producers, with their entries without a receipt, and consumers, in one step. Other
        consumers may become active. Drop the topic if it is then idle.
        """
        self.topic.remove_producers([each for each in clients if isinstance(each, Producer)])
        consumers = [each for each in clients if isinstance(each, Consumer)]
        send_active_changes(self.topic.remove_consumers(consumers))
        self._host.forget_if_idle(self)

    def delete_subscription(self, name: str) -> None:
        """Delete a subscription with its backlog, if there is one, and disconnect its consumers."""
        for consumer in self.topic.delete_subscription(name):
            consumer.link.redirect(consumer, None)
        self._host.forget_if_idle(self)


def send_active_changes(changes: Sequence[ActiveChange]) -> None:
    """Send consumers of Failover subscriptions, of any client, whether they are active."""
    for consumer, is_active in changes:
        consumer.link.activate(consumer, is_active=is_active)


class Deadlines:
    """One timer for all topics that wait for clients after a move. A due time may move closer."""

    def __init__(self) -> None:
        self._waiting: dict[Served, int] = {}
        # By time, then in order of insertion. An entry whose time differs from the table is
        # outdated.
        self._queue: list[tuple[int, int, Served]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0

    def waiting(self) -> Sequence[Served]:
        """Return the topics that still wait. Topics that stopped waiting are found by their
        state.
        """
        return [served for served in self._waiting if _waits(served)]

    def watch(self, served: Served) -> None:
        """Handle a topic at its `wake_at_ms`. No-op if it does not wait."""
        wake_at_ms = served.topic.wake_at_ms
        if wake_at_ms is not None:
            # Queue it behind those already due, so that a topic with much work takes turns with
            # them.
            self._schedule(served, max(wake_at_ms, now_ms()))

    def put_off(self, served: Served) -> None:
        """Handle a topic after `_AGAIN_MS`, because nothing may be done for it now. No-op if it
        does not wait.
        """
        if served.topic.wake_at_ms is not None:
            self._schedule(served, now_ms() + _AGAIN_MS)

    def _schedule(self, served: Served, due_ms: int) -> None:
        # An early call is harmless: it finds out the next due time.
        known_ms = self._waiting.get(served)
        if known_ms is not None and known_ms <= due_ms:
            return
        self._waiting[served] = due_ms
        heappush(self._queue, (due_ms, next(self._numbers), served))
        if self._timer is None or due_ms < self._due_ms:
            self._arm(due_ms)

    def _arm(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms = due_ms
        delay_ms = max(due_ms - now_ms(), 1)
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        began_ms = passed_ms = now_ms()
        while self._queue and self._queue[0][0] <= began_ms and passed_ms - began_ms < _TURN_MS:
            due_ms, _, served = heappop(self._queue)
            if self._waiting.get(served) == due_ms:
                del self._waiting[served]
                self._handle_due(served)
                passed_ms = now_ms()
        if self._queue:
            self._arm(self._queue[0][0])

    def _handle_due(self, served: Served) -> None:
        if not _waits(served):
            return
        try:
            served.pass_deadlines()
        except Exception:
            # A failing topic must not block the others.
            _logger.exception("a due topic failed", extra={"topic": served.name})


def _waits(served: Served) -> bool:
    return served.topic.wake_at_ms is not None and not served.topic.is_fenced
