"""Keep one subscription of a topic: choose which consumer gets an entry, deliver, hold or drop it.

`brokers.pulsar.topics.topic` handles deadlines and receipts. Nothing here sends: a consumer's
connection is its `link`, which only the service uses.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import ClassVar, Final, Protocol

from equipoise.brokers.pulsar.topics.arrivals import Arrivals, Entry, name_to_expect
from equipoise.brokers.pulsar.topics.clients import ActiveChange, Consumer, Meter, Refusal
from equipoise.brokers.pulsar.topics.keys import Holder, Ring, Stripes, slot_of
from equipoise.brokers.pulsar.topics.throttling import Bucket
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.pulsar.wire.requests import Sent, SubscriptionKind

# The most permits that a consumer may have outstanding; the excess is ignored. Java's counter has
# the same maximum.
PERMITS_MAX: Final = 2**31 - 1


class Dispatcher(Protocol):
    """One way to choose a consumer. A consumer is ready if it has permits and can be written to;
    `choose` returns only ready ones.
    """

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """Add a consumer. Return the changes of the active consumer to send, or a refusal."""
        ...

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """Remove consumers that are present, in one step. Return the changes of the active consumer
        to send.
        """
        ...

    def choose(self, entry: Entry) -> Consumer | None:
        """Return the consumer that gets an entry, or None if no eligible consumer is ready."""
        ...

    def room_for(self, entries: Sequence[Sent]) -> int:
        """Return how many of these entries, from the first one on, surely have a ready consumer. 0
        means that the first one has none.

        An entry of a slot that no consumer takes needs none.
        """
        ...

    @property
    def active(self) -> Consumer | None:
        """The one consumer that gets everything, or None if the kind has none."""
        ...


def wants_stripes(consumer: Consumer, kind: SubscriptionKind) -> bool:
    """Return whether a consumer names its own slots (STICKY). Only Key_Shared uses a consumer's key
    settings.
    """
    return (
        kind is SubscriptionKind.KEY_SHARED
        and consumer.key_shared is not None
        and consumer.key_shared.is_sticky
    )


def dispatcher(kind: SubscriptionKind, *, is_sticky: bool, partition: int) -> Dispatcher:
    """Create the dispatcher of a subscription. `partition` is the topic's index, or -1."""
    match kind:
        case SubscriptionKind.EXCLUSIVE:
            return Exclusive()
        case SubscriptionKind.FAILOVER:
            return Failover(partition)
        case SubscriptionKind.SHARED:
            return Shared()
        case SubscriptionKind.KEY_SHARED:
            return KeySharing(is_sticky=is_sticky)


class _OneActive:
    """Dispatch everything to the active consumer, if there is one."""

    __slots__ = ("active",)

    def __init__(self) -> None:
        self.active: Consumer | None = None

    def choose(self, entry: Entry) -> Consumer | None:  # noqa: ARG002 - as the protocol asks
        """See `Dispatcher`."""
        return self.active if self.active is not None and self.active.is_ready else None

    def room_for(self, entries: Sequence[Sent]) -> int:
        """See `Dispatcher`."""
        return _room_for(entries, (self.active,))


class Exclusive(_OneActive):
    """Dispatch to the only consumer. A second one is refused."""

    __slots__ = ()

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """See `Dispatcher`."""
        if self.active is not None:
            message = "Exclusive consumer is already connected"
            return Refusal(error=ServerError.ConsumerBusy, message=message, holder=self.active)
        self.active = consumer
        return []

    # It is the only one.
    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:  # noqa: ARG002
        """See `Dispatcher`."""
        self.active = None
        return []


class Failover(_OneActive):
    """Dispatch to one active consumer; the others stand by.

    * Only consumers of the best (lowest) priority can be active. The partition's index chooses one
      of them, sorted by name, so that the partitions of a topic spread over the same consumers.
      Source: AbstractDispatcherSingleActiveConsumer.
    * A change is sent to the new consumer, the active one and the former one. Pulsar notifies all
      consumers of each change, which costs hundreds of messages each when hundreds join or leave at
      once and gives standby consumers no information.
    """

    __slots__ = ("_consumers", "_index")

    def __init__(self, partition: int) -> None:
        """Use the partition's index, or 0 if `partition` is -1."""
        super().__init__()
        self._index = max(partition, 0)
        self._consumers: list[Consumer] = []

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """See `Dispatcher`."""
        insort(self._consumers, consumer, key=_rank)
        changes = self._choose_again()
        if all(each is not consumer for each, _ in changes):
            changes.append((consumer, False))
        return changes

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """See `Dispatcher`."""
        gone = set(consumers)
        self._consumers = [each for each in self._consumers if each not in gone]
        return [(each, is_active) for each, is_active in self._choose_again() if each not in gone]

    def _choose_again(self) -> list[ActiveChange]:
        """Choose the active consumer again. Return the changes for the new and the former one if
        they differ.
        """
        consumers, former = self._consumers, self.active
        active = None
        if consumers:
            best = bisect_left(consumers, (consumers[0].priority + 1, ""), key=_rank)
            active = consumers[self._index % best]
        if active is former:
            return []
        self.active = active
        return [(each, each is active) for each in (active, former) if each is not None]


class Shared:
    """Dispatch round-robin to ready consumers. A priority is used only if no consumer of a better
    (lower) one is ready.
    """

    __slots__ = ("_consumers", "_turns")

    active: ClassVar = None

    def __init__(self) -> None:
        self._consumers: dict[int, list[Consumer]] = {}  # By rising priority.
        self._turns: dict[int, int] = {}  # By priority: the index at which the next search begins.

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """See `Dispatcher`."""
        self._consumers.setdefault(consumer.priority, []).append(consumer)
        self._turns.setdefault(consumer.priority, 0)
        self._consumers = dict(sorted(self._consumers.items()))
        return []

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """See `Dispatcher`."""
        gone = set(consumers)
        for priority in sorted({each.priority for each in gone}):
            level = self._consumers[priority]
            self._turns[priority] -= sum(
                1 for each in level[: self._turns[priority]] if each in gone
            )
            self._consumers[priority] = [each for each in level if each not in gone]
            if not self._consumers[priority]:
                del self._consumers[priority], self._turns[priority]
        return []

    def choose(self, entry: Entry) -> Consumer | None:  # noqa: ARG002 - as the protocol asks
        """See `Dispatcher`."""
        for priority, level in self._consumers.items():
            turn = self._turns[priority]
            for step in range(turn, turn + len(level)):
                consumer = level[step % len(level)]
                if consumer.permits > 0 and consumer.is_writable:
                    self._turns[priority] = step % len(level) + 1
                    return consumer
        return None

    def room_for(self, entries: Sequence[Sent]) -> int:
        """See `Dispatcher`."""
        return _room_for(entries, chain.from_iterable(self._consumers.values()))


class KeySharing:
    """Dispatch all entries of a key to one consumer (Key_Shared). If it is not ready, no other
    consumer gets them.
    """

    __slots__ = ("_holder_of", "_holders", "_slots")

    active: ClassVar = None

    def __init__(self, *, is_sticky: bool) -> None:
        """Use the slots that consumers name (STICKY), or spread the slots over them
        (AUTO_SPLIT).
        """
        self._slots: Ring | Stripes = Stripes() if is_sticky else Ring()
        self._holders: dict[Holder, Consumer] = {}
        self._holder_of: dict[Consumer, Holder] = {}

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """See `Dispatcher`. A number separates consumers of the same name."""
        number = 0
        while (consumer.name, number) in self._holders:
            number += 1
        holder = (consumer.name, number)
        if isinstance(self._slots, Stripes):
            ranges = consumer.key_shared.ranges if consumer.key_shared is not None else ()
            conflict = self._slots.conflict(ranges)
            if conflict is not None:
                return Refusal(error=ServerError.ConsumerAssignError, message=conflict)
            self._slots.add(holder, ranges)
        else:
            self._slots.add(holder)
        self._holder_of[consumer] = holder
        self._holders[holder] = consumer
        return []

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """See `Dispatcher`."""
        gone = dict.fromkeys(self._holder_of.pop(consumer) for consumer in consumers)
        for holder in gone:
            del self._holders[holder]
        self._slots.remove(gone)
        return []

    def consumer_of(self, slot: int) -> Consumer | None:
        """Return the consumer of a slot, ready or not, or None if it has none."""
        holder = self._slots.holder(slot)
        return None if holder is None else self._holders[holder]

    def choose(self, entry: Entry) -> Consumer | None:
        """See `Dispatcher`."""
        consumer = self.consumer_of(entry.slot)
        return consumer if consumer is not None and consumer.is_ready else None

    def room_for(self, entries: Sequence[Sent]) -> int:
        """See `Dispatcher`. Slots are computed only if some consumer lacks permits for all of the
        entries.
        """
        messages = sum(entry.messages for entry in entries)
        if all(each.is_writable and each.permits >= messages for each in self._holders.values()):
            return len(entries)
        used = Counter[Consumer]()
        for place, entry in enumerate(entries):
            consumer = self.consumer_of(slot_of(entry.block))
            if consumer is not None:
                if not consumer.is_writable or consumer.permits <= used[consumer]:
                    return place
                used[consumer] += entry.messages
        return len(entries)


def _room_for(entries: Sequence[Sent], consumers: Iterable[Consumer | None]) -> int:
    """Return how many entries fit into the permits of these consumers. Each may take any entry."""
    messages, permits = sum(entry.messages for entry in entries), 0
    for each in consumers:
        if each is not None and each.is_ready:
            permits += each.permits
            if permits >= messages:  # The first of many consumers usually suffice.
                return len(entries)
    for place, entry in enumerate(entries):
        if permits <= 0:
            return place
        permits -= entry.messages
    return len(entries)


def _rank(consumer: Consumer) -> tuple[int, str]:
    """Return the sort key of a Failover consumer."""
    return consumer.priority, consumer.name


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
        "_topic_delivered",
        "arrivals",
        "buckets",
        "consumers",
        "delivered",
        "dropped",
        "is_awaited",
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
        now_ms: int,
    ) -> None:
        """Start without consumers.

        `partition` is the topic's index or -1. All subscriptions of the topic share
        `topic_delivered`.
        """
        self.name = name
        self.kind = kind
        self.is_sticky = is_sticky
        self.consumers: dict[Consumer, None] = {}  # In order of arrival.
        self.arrivals: Arrivals | None = None
        # Those of its topic, and its own. They limit what is delivered when it comes.
        self.buckets: Sequence[Bucket] = ()
        # Whether producers may wait for permits: a consumer has become more ready since they last
        # waited in vain.
        self.is_awaited = False
        self.delivered = Meter(now_ms=now_ms)
        self.dropped = Meter(now_ms=now_ms)
        self._topic_delivered = topic_delivered
        self._partition = partition
        # Key_Shared only: a queue for each consumer that entries wait for. No key has two
        # consumers, so a slow consumer delays no other. None before the first release, and after
        # consumers change.
        self._lanes: defaultdict[Consumer, deque[Entry]] | None = None
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
                kind_text = f"{self.kind.name.lower()}{' (sticky)' * self.is_sticky}"
                message = f"Subscription is of different type: {self.name} is {kind_text}"
                return Refusal(error=ServerError.ConsumerBusy, message=message)
            self.kind, self.is_sticky = kind, is_sticky
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

    def take(self, entry: Entry, deliveries: list[Delivery]) -> int:
        """Deliver a new entry, hold it, or drop it, also if it exceeds a dispatch rate. Return the
        number of dropped messages.

        What waits for consumers after a move is delivered without a limit.
        """
        if self.arrivals is not None and not self._has_free_way(entry):
            return self._hold(self.arrivals, entry)
        if self.arrivals is None and any(bucket.is_empty for bucket in self.buckets):
            return self.drop(entry)
        consumer = self._dispatcher.choose(entry)
        if consumer is None:
            return self.drop(entry)
        self._deliver(consumer, entry, deliveries)
        for bucket in self.buckets:
            bucket.spend(entry.messages, len(entry.block))
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
            consumer = self._dispatcher.choose(entry)
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
            self._lanes = defaultdict(deque)
            for entry in arrivals.entries:
                consumer = sharing.consumer_of(entry.slot)
                if consumer is None:
                    dropped += self.drop(arrivals.take(entry.entry_id))
                else:
                    self._lanes[consumer].append(entry)
        began = len(deliveries)
        for consumer, lane in list(self._lanes.items()):
            while lane and consumer.is_ready:
                self._deliver(consumer, arrivals.take(lane.popleft().entry_id), deliveries)
            if not lane:
                del self._lanes[consumer]
        deliveries[began:] = sorted(deliveries[began:], key=lambda each: each[1].entry_id)
        if not self._lanes:
            self.arrivals = self._lanes = None
        return dropped

    def _has_free_way(self, entry: Entry) -> bool:
        """Return whether nothing waits for the consumer of a new entry, so that it can pass the
        queue.
        """
        if self._lanes is None or not isinstance(self._dispatcher, KeySharing):
            return False
        consumer = self._dispatcher.consumer_of(entry.slot)
        return consumer is None or consumer not in self._lanes

    def _hold(self, arrivals: Arrivals, entry: Entry) -> int:
        """Append a new entry to those that wait. Return the number of dropped messages."""
        if not arrivals.hold(entry):
            return self.drop(entry)
        if self._lanes is not None and isinstance(self._dispatcher, KeySharing):
            consumer = self._dispatcher.consumer_of(entry.slot)
            assert consumer is not None, "only what waits behind something has no free way"
            self._lanes[consumer].append(entry)
        return 0

    def give_up_waiting(self, deliveries: list[Delivery]) -> int:
        """Stop waiting: deliver waiting entries to ready consumers and drop the rest. Return the
        number of dropped messages.
        """
        arrivals, self.arrivals, self._lanes = self.arrivals, None, None
        if arrivals is None:
            return 0
        return sum(self.take(entry, deliveries) for entry in arrivals.entries)

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
        messages, size = entry.messages, len(entry.block)
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
