"""Keep one subscription: deliver, hold or drop entries for its consumers.

`brokers.pulsar.topics.topic` handles deadlines and receipts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from equipoise.brokers.pulsar.topics.arrivals import Arrivals, Entry, name_to_expect
from equipoise.brokers.pulsar.topics.dispatch import (
    ActiveChange,
    Consumer,
    Dispatcher,
    KeySharing,
    Refusal,
    dispatcher,
    wants_stripes,
)
from equipoise.brokers.pulsar.topics.keys import slot_of
from equipoise.brokers.pulsar.topics.rates import Meter
from equipoise.brokers.pulsar.topics.throttling import Bucket
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import Sent, SubscriptionKind


class Slots:
    """A cache of the slots of a topic's waiting entries, shared by all subscriptions so that each
    slot is computed once.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, entry: Entry) -> int:
        """Return the slot of an entry of this topic."""
        slot = self._known.get(entry.entry_id)
        if slot is None:
            slot = self._known[entry.entry_id] = slot_of(entry.block)
        return slot

    def clear(self) -> None:
        """Forget all slots. Call this once nothing waits."""
        self._known.clear()


class Lanes:
    """A queue of waiting entries for each consumer. No key has two consumers, so a slow consumer
    delays no other.
    """

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: dict[Consumer, deque[Entry]] = {}

    def __contains__(self, consumer: Consumer) -> bool:
        """Return whether anything waits for this consumer. New entries must then wait behind it."""
        return consumer in self._lanes

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, consumer: Consumer, entry: Entry) -> None:
        """Append an entry to its consumer's queue."""
        if consumer in self._lanes:
            self._lanes[consumer].append(entry)
        else:
            self._lanes[consumer] = deque((entry,))

    def ready(self) -> Iterable[tuple[Consumer, Entry]]:
        """Remove and yield entries while their consumers are ready. Charge each entry's permits
        before you take the next one.
        """
        for consumer, lane in list(self._lanes.items()):
            while lane and consumer.is_ready:
                yield consumer, lane.popleft()
            if not lane:
                del self._lanes[consumer]


Delivery = tuple[Consumer, Entry]


class Subscription:
    """The consumers that share one subscription name on a topic. The kind may change while none is
    connected.

    Each step appends its deliveries to the given `deliveries`, in the order in which to write them.
    """

    __slots__ = (
        "_dispatcher",
        "_lanes",
        "_partition",
        "_slots",
        "_topic_delivered",
        "arrivals",
        "bucket",
        "consumers",
        "delivered",
        "dropped",
        "is_awaited",
        "is_keyed",
        "is_sticky",
        "kind",
        "name",
    )

    def __init__(
        self,
        name: str,
        kind: SubscriptionKind,
        *,
        is_sticky: bool,
        partition: int,
        topic_delivered: Meter,
        slots: Slots,
        now_ms: int,
    ) -> None:
        """Start without consumers.

        `partition` is the topic's index or -1. All subscriptions of the topic share
        `topic_delivered` and `slots`.
        """
        self.name = name
        self.kind = kind
        self.is_keyed = kind is SubscriptionKind.KEY_SHARED
        self.is_sticky = is_sticky
        self.consumers: dict[Consumer, None] = {}  # In order of arrival.
        self.arrivals: Arrivals | None = None
        # `DispatchThrottle` keeps it here, because it ends with the subscription.
        self.bucket: Bucket | None = None
        # Whether producers may wait for permits: a consumer has become more ready since they last
        # waited in vain.
        self.is_awaited = False
        self.delivered = Meter(now_ms=now_ms)
        self.dropped = Meter(now_ms=now_ms)
        self._topic_delivered = topic_delivered
        self._partition = partition
        self._slots = slots
        # Key_Shared only: the queue of each consumer. None before the first release, and after
        # consumers change.
        self._lanes: Lanes | None = None
        self._dispatcher: Dispatcher = dispatcher(kind, is_sticky=is_sticky, partition=partition)

    @property
    def active(self) -> Consumer | None:
        """The consumer that gets everything, for an Exclusive or Failover subscription."""
        return self._dispatcher.active

    @property
    def is_over(self) -> bool:
        """Whether no consumer is present or expected. A non-persistent subscription ends with its
        last consumer.
        """
        return not self.consumers and self.arrivals is None

    def expect(self, arrivals: Arrivals) -> None:
        """Start to wait for the consumers from before a move. An Exclusive subscription needs only
        one.
        """
        self.arrivals = arrivals
        arrivals.needs_one = self.kind is SubscriptionKind.EXCLUSIVE

    def settle_for_one(self) -> None:
        """Stop waiting for absent consumers once one is present: the others may never return.

        Continue to wait for STICKY consumers, because no other consumer can take the entries of
        their slots.
        """
        if self.arrivals is not None and not self.is_sticky:
            self.arrivals.needs_one = True

    def add(self, consumer: Consumer, kind: SubscriptionKind) -> Refusal | list[ActiveChange]:
        """Add a consumer; see `Dispatcher.add`. Expected consumers reserve no place, because they
        may have died.
        """
        is_sticky = wants_stripes(consumer, kind)
        if kind is not self.kind or is_sticky is not self.is_sticky:
            if self.consumers:
                message = (
                    f"Subscription is of different type: {self.name} is"
                    f" {_kind_text(self.kind, is_sticky=self.is_sticky)}"
                )
                return Refusal(error=ServerError.CONSUMER_BUSY, message=message)
            self.kind, self.is_sticky = kind, is_sticky
            self.is_keyed = kind is SubscriptionKind.KEY_SHARED
            self._dispatcher = dispatcher(kind, is_sticky=is_sticky, partition=self._partition)
            if self.arrivals is not None:
                self.arrivals.needs_one = True  # Consumers of the former kind are now refused.
        changes = self._dispatcher.add(consumer)
        if isinstance(changes, Refusal):
            return changes
        self.consumers[consumer] = self._lanes = None
        if self.arrivals is not None:
            self.arrivals.subscribed(consumer)
        return changes

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """Remove consumers that are present; see `Dispatcher.remove`."""
        self._lanes = None
        for consumer in consumers:
            del self.consumers[consumer]
            if self.arrivals is not None:
                self.arrivals.left(consumer)
        return self._dispatcher.remove(consumers)

    def take(self, entry: Entry, slot: int, deliveries: list[Delivery]) -> int:
        """Deliver a new entry, hold it, or drop it. Return the number of dropped messages.

        `slot` matters only if the subscription `is_keyed`.
        """
        if self.arrivals is not None and not self._has_free_way(slot):
            return self._hold(self.arrivals, entry, slot)
        consumer = self._dispatcher.choose(slot)
        if consumer is None:
            return self.drop(entry)
        self._deliver(consumer, entry, deliveries)
        return 0

    def room_for(self, entries: Sequence[Sent], link: object) -> int:
        """Return how many of these entries need not wait for permits. `link` is the connection of
        their producer.

        None waits if all consumers use the same connection: their permits would wait behind the
        entries.
        """
        if self.arrivals is not None or not self.is_awaited:
            return len(entries)
        room = self._dispatcher.room_for(entries)
        if room < len(entries) and all(each.link is link for each in self.consumers):
            return len(entries)
        return room

    def release(self, deliveries: list[Delivery]) -> int:
        """Deliver waiting entries to ready consumers, once all needed ones are back. Return the
        number of dropped messages.

        * Entries stay in order: an entry whose consumer is not ready delays those behind it. In a
          Key_Shared subscription it delays only entries of the same consumer.
        * Entries whose slot no STICKY consumer takes are dropped.
        * Waiting ends when nothing is left.
        """
        arrivals = self.arrivals
        if arrivals is None or not arrivals.is_complete:
            return 0
        if isinstance(self._dispatcher, KeySharing):
            return self._release_lanes(arrivals, self._dispatcher, deliveries)
        while (entry := arrivals.first) is not None:
            consumer = self._dispatcher.choose(0)
            if consumer is None:
                return 0
            self._deliver(consumer, arrivals.take(entry.entry_id), deliveries)
        self.arrivals = None
        return 0

    def _release_lanes(
        self, arrivals: Arrivals, sharing: KeySharing, deliveries: list[Delivery]
    ) -> int:
        """Release a Key_Shared subscription; see `release`."""
        dropped = 0
        if not self.consumers:
            self.arrivals = arrivals if len(arrivals) else None
            return 0
        if self._lanes is None:
            self._lanes = Lanes()
            for entry in arrivals.entries:
                consumer = sharing.consumer_of(self._slots.of(entry))
                if consumer is None:
                    dropped += self.drop(arrivals.take(entry.entry_id))
                else:
                    self._lanes.add(consumer, entry)
        began = len(deliveries)
        for consumer, entry in self._lanes.ready():
            self._deliver(consumer, arrivals.take(entry.entry_id), deliveries)
        deliveries[began:] = sorted(deliveries[began:], key=_entry_id_of)
        if not self._lanes:
            self.arrivals = self._lanes = None
        return dropped

    def _has_free_way(self, slot: int) -> bool:
        """Return whether nothing waits for the consumer of this slot, so that a new entry can pass
        the queue.
        """
        if self._lanes is None or not isinstance(self._dispatcher, KeySharing):
            return False
        consumer = self._dispatcher.consumer_of(slot)
        return consumer is None or consumer not in self._lanes

    def _hold(self, arrivals: Arrivals, entry: Entry, slot: int) -> int:
        """Append a new entry to those that wait. Return the number of dropped messages."""
        if not arrivals.hold(entry):
            return self.drop(entry)
        if self._lanes is not None and isinstance(self._dispatcher, KeySharing):
            consumer = self._dispatcher.consumer_of(slot)
            assert consumer is not None, "only what waits behind something has no free way"
            self._lanes.add(consumer, entry)
        return 0

    def give_up_waiting(self, deliveries: list[Delivery]) -> int:
        """Stop waiting: deliver waiting entries to ready consumers and drop the rest. Return the
        number of dropped messages.
        """
        arrivals, self.arrivals, self._lanes = self.arrivals, None, None
        if arrivals is None:
            return 0
        return sum(
            self.take(entry, self._slots.of(entry) if self.is_keyed else 0, deliveries)
            for entry in arrivals.entries
        )

    def forget(self, entry_ids: Collection[int]) -> None:
        """Remove waiting entries by id."""
        if self.arrivals is not None:
            self.arrivals.forget(entry_ids)
            self._lanes = None

    def names_to_expect(self) -> Sequence[str]:
        """Return the sorted names of the consumers that the next owner should wait for.

        These are the consumers here that have ever granted permits, and those still awaited. A
        consumer that never grants permits would only delay the others.
        """
        arrivals = self.arrivals
        here = [
            name_to_expect(each)
            for each in self.consumers
            if each.has_flowed or (arrivals is not None and arrivals.is_awaited(each))
        ]
        return sorted([*here, *(arrivals.missing if arrivals is not None else ())])

    def _deliver(self, consumer: Consumer, entry: Entry, deliveries: list[Delivery]) -> None:
        _, block, messages = entry
        size = len(block)
        consumer.permits -= messages
        for meter in (consumer.delivered, self.delivered, self._topic_delivered):
            meter.messages += messages
            meter.bytes += size
        self._topic_delivered.entries += 1
        deliveries.append((consumer, entry))

    def take_back(self, consumer: Consumer, entry: Entry) -> None:
        """Undo a delivery that was not written, and drop the entry."""
        consumer.permits += entry.messages
        for meter in (consumer.delivered, self.delivered, self._topic_delivered):
            meter.messages -= entry.messages
            meter.bytes -= len(entry.block)
        self._topic_delivered.entries -= 1
        self.drop(entry)

    def drop(self, entry: Entry) -> int:
        """Count an entry that no consumer gets. Return the number of its messages."""
        self.dropped.messages += entry.messages
        self.dropped.bytes += len(entry.block)
        return entry.messages


def _entry_id_of(delivery: Delivery) -> int:
    return delivery[1].entry_id


def _kind_text(kind: SubscriptionKind, *, is_sticky: bool) -> str:
    return f"{kind.name.lower()}{' (sticky)' if is_sticky else ''}"
