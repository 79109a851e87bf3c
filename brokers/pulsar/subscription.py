"""One subscription: its consumers, what goes to whom, and what waits for those who are coming back after a move.

May live here: the state of one subscription, and the steps that deliver, hold or drop. Times and receipts are the topic's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from brokers.pulsar.arrivals import Arrivals, Entry, name_to_expect
from brokers.pulsar.dispatch import ActiveChange, Consumer, Dispatcher, Refusal, dispatcher, wants_stripes
from brokers.pulsar.errors import ServerError
from brokers.pulsar.keys import slot_of
from brokers.pulsar.rates import Meter
from brokers.pulsar.requests import SubscriptionKind

Delivery = tuple[Consumer, Entry]


class Subscription:
    """The consumers of one name on one topic. Its kind is that of the consumers connected; without any, it may change.

    What a step delivers is appended to the `deliveries` that it is given, in the order in which it must be written.
    """

    __slots__ = (
        "_dispatcher",
        "_first",
        "_partition",
        "_topic_delivered",
        "arrivals",
        "consumers",
        "delivered",
        "dropped",
        "is_durable",
        "is_keyed",
        "is_sticky",
        "kind",
        "name",
    )

    def __init__(
        self, name: str, kind: SubscriptionKind, *, is_sticky: bool, is_durable: bool, partition: int, topic_delivered: Meter, now_ms: int
    ) -> None:
        """`partition` is the topic's index or -1; `topic_delivered` counts what all subscriptions of the topic deliver."""
        self.name = name
        self.kind = kind
        self.is_keyed = kind is SubscriptionKind.KEY_SHARED
        self.is_sticky = is_sticky
        self.is_durable = is_durable
        self.consumers: dict[Consumer, None] = {}  # In the order in which they came.
        self.arrivals: Arrivals | None = None
        self.delivered = Meter(now_ms=now_ms)
        self.dropped = Meter(now_ms=now_ms)
        self._topic_delivered = topic_delivered
        self._partition = partition
        self._first: tuple[Entry, int] | None = None  # What waits longest, and its slot.
        self._dispatcher: Dispatcher = dispatcher(kind, is_sticky=is_sticky, partition=partition)

    @property
    def active(self) -> Consumer | None:
        """The consumer that alone gets everything, of an Exclusive or Failover subscription."""
        return self._dispatcher.active

    @property
    def is_over(self) -> bool:
        """Whether nobody is here, and nobody is waited for: a non-persistent subscription ends with its last consumer."""
        return not self.consumers and self.arrivals is None

    def expect(self, arrivals: Arrivals) -> None:
        """Begin to wait for those who were here before a move. Of an Exclusive subscription nobody else can be here beside one."""
        self.arrivals = arrivals
        arrivals.needs_one = self.kind is SubscriptionKind.EXCLUSIVE

    def settle_for_one(self) -> None:
        """From now on nobody is waited for as long as anybody is here: the others may never come back.

        STICKY consumers are waited for all the same: what lies in the slots of one that is missing goes to no other.
        """
        if self.arrivals is not None and not self.is_sticky:
            self.arrivals.needs_one = True

    def add(self, consumer: Consumer, kind: SubscriptionKind, *, is_durable: bool) -> Refusal | list[ActiveChange]:
        """Let a consumer in; see `Dispatcher.add`. Who is only expected holds no place: it may have died on the way."""
        is_sticky = wants_stripes(consumer, kind)
        if kind is not self.kind or is_sticky is not self.is_sticky:
            if self.consumers:
                message = f"Subscription is of different type: {self.name} is {_spelled(self.kind, is_sticky=self.is_sticky)}"
                return Refusal(error=ServerError.CONSUMER_BUSY, message=message)
            self.kind, self.is_sticky, self.is_durable = kind, is_sticky, is_durable
            self.is_keyed = kind is SubscriptionKind.KEY_SHARED
            self._first = None
            self._dispatcher = dispatcher(kind, is_sticky=is_sticky, partition=self._partition)
            if self.arrivals is not None:
                self.arrivals.needs_one = True  # Those of the other kind cannot come in beside this one.
        changes = self._dispatcher.add(consumer)
        if isinstance(changes, Refusal):
            return changes
        self.consumers[consumer] = None
        if self.arrivals is not None:
            self.arrivals.subscribed(consumer)
        return changes

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """Let consumers go that are in; see `Dispatcher.remove`."""
        for consumer in consumers:
            del self.consumers[consumer]
            if self.arrivals is not None:
                self.arrivals.left(consumer)
        return self._dispatcher.remove(consumers)

    def take(self, entry: Entry, slot: int, deliveries: list[Delivery]) -> int:
        """Deliver a new entry, hold it, or drop it; returns the messages dropped. `slot` is its own if this is `is_keyed`."""
        if self.arrivals is not None:
            return 0 if self.arrivals.hold(entry) else self._drop(entry)
        consumer = self._dispatcher.choose(slot)
        if consumer is None:
            return self._drop(entry)
        self._deliver(consumer, entry, deliveries)
        return 0

    def release(self, deliveries: list[Delivery]) -> int:
        """Once nobody need be waited for: hand out what waited, as long as its consumers are ready; returns the messages dropped.

        Strictly in order: what comes behind an entry whose consumer is not ready waits with it. Dropped is only what nobody
        would get anyway: an entry whose hash no STICKY consumer takes. When nothing is left, waiting is over.
        """
        arrivals = self.arrivals
        if arrivals is None or not arrivals.is_complete:
            return 0
        dropped = 0
        while (entry := arrivals.first) is not None:
            slot = self._slot_of_first(entry)
            consumer = self._dispatcher.choose(slot)
            if consumer is not None:
                self._deliver(consumer, entry, deliveries)
            elif not self.consumers or self._dispatcher.serves(slot):
                return dropped
            else:
                dropped += self._drop(entry)
            arrivals.take_first()
        self.arrivals = self._first = None
        return dropped

    def give_up_waiting(self, deliveries: list[Delivery]) -> int:
        """The time is up: what waited goes to whoever is here and ready, or is dropped; returns the messages dropped."""
        arrivals, self.arrivals = self.arrivals, None
        if arrivals is None:
            return 0
        return sum(self.take(entry, slot_of(entry.block) if self.is_keyed else 0, deliveries) for entry in arrivals.entries)

    def forget(self, entry_ids: Collection[int]) -> None:
        """Let entries wait for nobody any more, as if they had never come."""
        if self.arrivals is not None:
            self.arrivals.forget(entry_ids)

    def names_to_expect(self) -> Sequence[str]:
        """Whom the next owner should wait for, after one more move: a name for each, sorted.

        That is who is here and has ever taken messages, and who is still waited for here. Who never granted a permit may
        never do so, and would keep the others waiting.
        """
        arrivals = self.arrivals
        here = [name_to_expect(each) for each in self.consumers if each.has_flowed or (arrivals is not None and arrivals.is_awaited(each))]
        return sorted([*here, *(arrivals.missing if arrivals is not None else ())])

    def _slot_of_first(self, entry: Entry) -> int:
        """The slot of what waits longest, made out once: every FLOW asks for it until its consumer is ready."""
        if self._first is None or self._first[0] is not entry:
            self._first = entry, slot_of(entry.block) if self.is_keyed else 0
        return self._first[1]

    def _deliver(self, consumer: Consumer, entry: Entry, deliveries: list[Delivery]) -> None:
        _, block, messages = entry
        size = len(block)
        consumer.permits -= messages
        for meter in (consumer.delivered, self.delivered, self._topic_delivered):
            meter.messages += messages
            meter.bytes += size
        deliveries.append((consumer, entry))

    def take_back(self, consumer: Consumer, entry: Entry) -> None:
        """What was delivered to a consumer was not written to it: it is dropped."""
        consumer.permits += entry.messages
        for meter in (consumer.delivered, self.delivered, self._topic_delivered):
            meter.messages -= entry.messages
            meter.bytes -= len(entry.block)
        self._drop(entry)

    def _drop(self, entry: Entry) -> int:
        self.dropped.messages += entry.messages
        self.dropped.bytes += len(entry.block)
        return entry.messages


def _spelled(kind: SubscriptionKind, *, is_sticky: bool) -> str:
    return f"{kind.name.lower()}{' (sticky)' if is_sticky else ''}"
