"""One topic: its producers and subscriptions, what a publish comes to, and how it comes and goes with its bundle.

May live here: the state of a topic, its bounds, and the steps that change it. Pure: times come in as milliseconds of any
clock that does not go back, what must be written comes out as an `Outcome`, and connections are opaque links.

The life of a topic that moves: the source calls `fence`, writes the receipts that come of it, takes `state`, and forgets the
topic. The destination makes a new one with that state as `expected`. Each subscription of it waits for the consumers that
were there, and holds what is published meanwhile behind what the source had not delivered. After `reconnect_wait_ms` nobody is
waited for any more.

Until all are back, but for at most `receipt_wait_ms`, the topic is *holding*: receipts wait, too, because a producer that is not
told "received" sends again if this broker dies, or if the bundle moves on. So that nobody gets twice what is then sent again,
nothing at all is delivered meanwhile: a message has its receipt by the time that anybody has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from brokers.pulsar.arrivals import Arrivals, Entry
from brokers.pulsar.dispatch import PERMITS_MAX, ActiveChange, Consumer, Refusal, wants_stripes
from brokers.pulsar.errors import ServerError
from brokers.pulsar.rates import Meter
from brokers.pulsar.requests import AccessMode, SubscriptionKind
from brokers.pulsar.subscription import Delivery, Subscription


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """The bounds of one topic, and how long it waits for clients after a move.

    What waits is held once however many subscriptions wait for it, and is bounded for each of them: 10 s of 1,000 entries/s
    of 800 bytes. Where messages are larger the bytes bind; one entry of the largest size (5 MiB) always fits.
    """

    producers_max: int = 10_000
    subscriptions_max: int = 1_000
    consumers_max: int = 10_000
    waiting_entries_max: int = 10_000
    waiting_bytes_max: int = 8 * 1024 * 1024
    receipt_wait_ms: int = 100
    reconnect_wait_ms: int = 10_000


@dataclass(slots=True, kw_only=True, eq=False)
class Producer:
    """One producer, as its topic sees it; compared by identity. The service makes it, and may set nothing in it afterwards."""

    name: str
    link: object
    producer_id: int
    published: Meter
    epoch: int = 0
    is_name_users: bool = False
    access_mode: AccessMode = AccessMode.SHARED
    properties: tuple[tuple[str, str], ...] = ()
    address: str = ""
    client_version: str = ""
    connected_since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A producer was let in, in the place of `former`, which is gone: the same client came again, and was quicker than the news."""

    former: Producer


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """A consumer was let in; `changes` says to whom ACTIVE_CONSUMER_CHANGE must be sent, and with what."""

    changes: list[ActiveChange]


class Receipt(NamedTuple):
    """One receipt to be written; the sequence ids are those of the SEND, `entry_id` the number of the entry in its topic."""

    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    entry_id: int


class Outcome:
    """What a step comes to: all to be written in the order in which it stands here; `dropped` counts messages."""

    __slots__ = ("deliveries", "dropped", "receipts")

    def __init__(self) -> None:
        """Nothing, to begin with."""
        self.deliveries: list[Delivery] = []
        self.receipts: list[Receipt] = []
        self.dropped = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """A subscription as the next owner needs it: whom to wait for (sorted names), and the ids of the entries not delivered."""

    name: str
    kind: SubscriptionKind
    is_sticky: bool = False
    is_durable: bool = True
    expected: tuple[str, ...] = ()
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic as the next owner needs it. `entries` are those that any subscription has not delivered, by rising id."""

    last_entry_id: int = 0
    subscriptions: tuple[SubscriptionState, ...] = ()
    entries: tuple[Entry, ...] = ()


class Topic:
    """One non-persistent topic. Every call may come at any time; after `fence` none delivers or gives receipts."""

    __slots__ = (
        "_held",
        "_holding",
        "_homes",
        "_limits",
        "_producers",
        "_receipt_deadline_ms",
        "_reconnect_deadline_ms",
        "_subscriptions",
        "delivered",
        "is_fenced",
        "last_entry_id",
        "name",
        "partition",
        "published",
    )

    def __init__(self, name: str, *, partition: int, limits: TopicLimits, now_ms: int, expected: TopicState | None = None) -> None:
        """`partition` is the index that `name` ends with, or -1; `expected` is what the former owner's `state` said.

        Entry ids go on from those of the former owner, because Go's client takes an id that it has just seen for a duplicate.
        """
        self.name = name
        self.partition = partition
        self.published = Meter(now_ms=now_ms)
        self.delivered = Meter(now_ms=now_ms)
        self.is_fenced = False
        self.last_entry_id = 0
        self._limits = limits
        self._producers: dict[str, Producer] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._homes: dict[Consumer, Subscription] = {}
        self._held: list[Receipt] = []
        self._holding = False
        self._receipt_deadline_ms = now_ms + limits.receipt_wait_ms
        # None: nobody is waited for, and that is for ever.
        self._reconnect_deadline_ms: int | None = None
        if expected is not None:
            self._expect(expected, now_ms)

    @property
    def producers(self) -> Mapping[str, Producer]:
        """By name."""
        return MappingProxyType(self._producers)

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """By name; some may have nobody but those who are expected."""
        return MappingProxyType(self._subscriptions)

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers of all subscriptions."""
        return tuple(self._homes)

    @property
    def is_idle(self) -> bool:
        """Whether nobody is here or expected: such a topic need not be kept."""
        return not self._producers and not self._subscriptions

    @property
    def holds_receipts(self) -> bool:
        """Whether a receipt is still to come."""
        return bool(self._held)

    @property
    def wake_at_ms(self) -> int | None:
        """When `tick` has something to do; None: never, as it stands."""
        return self._receipt_deadline_ms if self._holding else self._reconnect_deadline_ms

    def add_producer(self, producer: Producer) -> Refusal | Replaced | None:
        """Let a producer in. Refused with a `holder`: probe the link of that one, remove it if it is dead, and ask again."""
        if self.is_fenced:
            return self._moving()
        former = self._producers.get(producer.name)
        if former is not None:
            if former.link is producer.link and former.producer_id == producer.producer_id and former.epoch < producer.epoch:
                self.remove_producer(former)
                self._producers[producer.name] = producer
                return Replaced(former=former)
            message = f"Producer with name {producer.name!r} is already connected to topic {self.name}"
            return Refusal(error=ServerError.PRODUCER_BUSY, message=message, holder=former)
        refusal = self._access_refused(producer)
        if refusal is not None:
            return refusal
        if len(self._producers) >= self._limits.producers_max:
            return Refusal(error=ServerError.PRODUCER_BUSY, message=f"Topic {self.name} reached max producers limit")
        self._producers[producer.name] = producer
        return None

    def remove_producer(self, producer: Producer) -> None:
        """Forget a producer, and receipts held for it; one that is not here (any more) is nobody's loss."""
        if self._producers.get(producer.name) is producer:
            del self._producers[producer.name]
            self._held = [receipt for receipt in self._held if receipt.producer is not producer]

    def subscribe(
        self, consumer: Consumer, subscription: str, kind: SubscriptionKind, *, is_durable: bool, now_ms: int
    ) -> Refusal | Subscribed:
        """Let a consumer in, which gets nothing before its first `flow`. A `holder` in a refusal: as with `add_producer`."""
        if self.is_fenced:
            return self._moving()
        if len(self._homes) >= self._limits.consumers_max:
            return Refusal(error=ServerError.CONSUMER_BUSY, message=f"Topic {self.name} reached max consumers limit")
        home = self._subscriptions.get(subscription)
        if home is None:
            if len(self._subscriptions) >= self._limits.subscriptions_max:
                return Refusal(
                    error=ServerError.NOT_ALLOWED, message=f"Exceed the maximum number of subscriptions of the topic {self.name}"
                )
            is_sticky = wants_stripes(consumer, kind)
            home = self._subscription(subscription, kind, is_sticky=is_sticky, is_durable=is_durable, now_ms=now_ms)
            if self._holding:
                home.expect(self._arrivals(()))
        changes = home.add(consumer, kind, is_durable=is_durable)
        if isinstance(changes, Refusal):
            return changes
        self._subscriptions[subscription] = home
        self._homes[consumer] = home
        return Subscribed(changes=changes)

    def remove_consumer(self, consumer: Consumer) -> list[ActiveChange]:
        """Forget a consumer, and its subscription if it was the last; one that is not here is nobody's loss."""
        home = self._homes.pop(consumer, None)
        if home is None:
            return []
        changes = home.remove(consumer)
        if home.is_over:
            del self._subscriptions[home.name]
        return changes

    def kind_of(self, consumer: Consumer) -> SubscriptionKind | None:
        """The kind of a consumer's subscription; None if the consumer is not here."""
        home = self._homes.get(consumer)
        return None if home is None else home.kind

    def unsubscribe(self, consumer: Consumer) -> Refusal | None:
        """End a consumer's subscription, with all that waits in it; refused if the consumer is unknown, or others are connected."""
        home = self._homes.get(consumer)
        if home is None or len(home.consumers) > 1:
            return Refusal(error=ServerError.METADATA_ERROR, message="Unconnected or shared consumer attempting to unsubscribe")
        del self._homes[consumer], self._subscriptions[home.name]
        return None

    def publish(
        self, producer: Producer, *, sequence_id: int, highest_sequence_id: int, messages: int, block: bytes, now_ms: int
    ) -> Outcome:
        """Take one entry of a producer: its receipt is in the outcome, or comes later; on a fenced topic it is ignored."""
        outcome = Outcome()
        if self.is_fenced:
            return outcome
        if self._reconnect_deadline_ms is not None:
            self._pass_deadlines(now_ms, outcome)
        self.last_entry_id = entry_id = self.last_entry_id + 1
        size = len(block)
        # Spelled out twice: a loop over the two meters would cost each publish a twentieth more.
        meter = producer.published
        meter.messages += messages
        meter.bytes += size
        meter = self.published
        meter.messages += messages
        meter.bytes += size
        entry = Entry(entry_id, block, messages)
        deliveries = outcome.deliveries
        for subscription in self._subscriptions.values():
            outcome.dropped += subscription.take(entry, deliveries)
        receipts = self._held if self._holding else outcome.receipts
        receipts.append(Receipt(producer, sequence_id, highest_sequence_id, entry_id))
        if self._holding and len(self._held) > self._limits.waiting_entries_max:
            self._let_go(outcome)
        return outcome

    def flow(self, consumer: Consumer, permits: int, now_ms: int) -> Outcome:
        """A consumer takes so many messages more; what waited for it may come of that."""
        consumer.permits = min(consumer.permits + permits, PERMITS_MAX)
        consumer.has_flowed = consumer.has_flowed or permits > 0
        home = self._homes.get(consumer)
        if home is not None and home.arrivals is not None and consumer.permits > 0:
            home.arrivals.flowed(consumer)
        return self._released(home, now_ms)

    def writable(self, consumer: Consumer, is_writable: bool, now_ms: int) -> Outcome:  # noqa: FBT001 - it is the news
        """A consumer's connection has room again, and what waited for it may come of that; or none any more, and nothing does."""
        consumer.is_writable = is_writable
        return self._released(self._homes.get(consumer), now_ms) if is_writable else Outcome()

    def take_back(self, consumer: Consumer, entry: Entry) -> None:
        """An entry of an outcome could not be written to a consumer after all: it is dropped, and its permits are as they were."""
        home = self._homes.get(consumer)
        if home is not None:
            home.take_back(consumer, entry)

    def release_receipts(self) -> Outcome:
        """Hold no longer, ahead of time: an answer that must come behind the receipts cannot wait."""
        outcome = Outcome()
        if self._holding:
            self._let_go(outcome)
        return outcome

    def tick(self, now_ms: int) -> Outcome:
        """Do what time has come for; see `wake_at_ms`. Early or late calls are in order."""
        outcome = Outcome()
        if not self.is_fenced:
            self._pass_deadlines(now_ms, outcome)
        return outcome

    def fence(self) -> Outcome:
        """Stop for good, since the bundle moves away; the outcome has the receipts of what is handed over undelivered."""
        outcome = Outcome()
        if not self.is_fenced:
            outcome.receipts, self._held = self._held, []
            self._holding = False
            self.is_fenced = True
        return outcome

    def state(self) -> TopicState:
        """What the next owner needs to know; to be taken after `fence`, and before anybody is removed."""
        entries: dict[int, Entry] = {}
        subscriptions = []
        for subscription in self._subscriptions.values():
            waiting = subscription.arrivals.entries if subscription.arrivals is not None else ()
            entries.update((entry.entry_id, entry) for entry in waiting)
            subscriptions.append(
                SubscriptionState(
                    name=subscription.name,
                    kind=subscription.kind,
                    is_sticky=subscription.is_sticky,
                    is_durable=subscription.is_durable,
                    expected=tuple(subscription.names_to_expect()),
                    waiting=tuple(entry.entry_id for entry in waiting),
                )
            )
        return TopicState(
            last_entry_id=self.last_entry_id,
            subscriptions=tuple(subscriptions),
            entries=tuple(entries[entry_id] for entry_id in sorted(entries)),
        )

    def roll(self, now_ms: int) -> None:
        """Close a window of rates, of the topic and of all that is in it; the service does so every period."""
        for meter in (self.published, self.delivered):
            meter.roll(now_ms)
        for producer in self._producers.values():
            producer.published.roll(now_ms)
        for subscription in self._subscriptions.values():
            for meter in (subscription.delivered, subscription.dropped, *(each.delivered for each in subscription.consumers)):
                meter.roll(now_ms)

    def _expect(self, expected: TopicState, now_ms: int) -> None:
        self.last_entry_id = expected.last_entry_id
        by_id = {entry.entry_id: entry for entry in expected.entries}
        for each in expected.subscriptions[: self._limits.subscriptions_max]:
            if not each.expected and not each.waiting:
                continue
            home = self._subscription(each.name, each.kind, is_sticky=each.is_sticky, is_durable=each.is_durable, now_ms=now_ms)
            home.expect(self._arrivals(each.expected))
            for entry_id in each.waiting:
                if entry_id in by_id:
                    home.take(by_id[entry_id], [])
            self._subscriptions[each.name] = home
            self._reconnect_deadline_ms = now_ms + self._limits.reconnect_wait_ms
            self._holding = True

    def _arrivals(self, names: Sequence[str]) -> Arrivals:
        return Arrivals(names, entries_max=self._limits.waiting_entries_max, bytes_max=self._limits.waiting_bytes_max)

    def _subscription(self, name: str, kind: SubscriptionKind, *, is_sticky: bool, is_durable: bool, now_ms: int) -> Subscription:
        return Subscription(
            name,
            kind,
            is_sticky=is_sticky,
            is_durable=is_durable,
            partition=self.partition,
            topic_delivered=self.delivered,
            now_ms=now_ms,
        )

    def _moving(self) -> Refusal:
        return Refusal(
            error=ServerError.SERVICE_NOT_READY, message=f"Topic {self.name} is temporarily unavailable: it is moving to another broker"
        )

    def _access_refused(self, producer: Producer) -> Refusal | None:
        """Why a producer cannot have the access that it asks for, beside who is here; None if it can."""
        if producer.access_mode not in {AccessMode.SHARED, AccessMode.EXCLUSIVE}:
            return Refusal(
                error=ServerError.NOT_ALLOWED, message="Of the exclusive access modes only Exclusive is served; choose it or Shared"
            )
        owner = next((each for each in self._producers.values() if each.access_mode is AccessMode.EXCLUSIVE), None)
        if owner is not None:
            error = ServerError.PRODUCER_BUSY if producer.access_mode is AccessMode.SHARED else ServerError.PRODUCER_FENCED
            return Refusal(error=error, message=f"Topic has an existing exclusive producer: {owner.name}", holder=owner)
        if producer.access_mode is AccessMode.EXCLUSIVE and self._producers:
            return Refusal(error=ServerError.PRODUCER_FENCED, message="Topic has existing shared producers")
        return None

    def _released(self, home: Subscription | None, now_ms: int) -> Outcome:
        """What comes of a consumer of `home` being readier than before."""
        outcome = Outcome()
        if home is not None and self._reconnect_deadline_ms is not None and not self.is_fenced:
            self._pass_deadlines(now_ms, outcome)
            if not self._holding:
                outcome.dropped += home.release(outcome.deliveries)
                self._settle()
            elif all(each.arrivals is None or each.arrivals.is_complete for each in self._subscriptions.values()):
                self._let_go(outcome)
        return outcome

    def _pass_deadlines(self, now_ms: int, outcome: Outcome) -> None:
        """Hold no longer than receipts may wait, and wait no more for who was waited for long enough."""
        if self._holding and now_ms >= self._receipt_deadline_ms:
            self._let_go(outcome)
        if self._reconnect_deadline_ms is None or now_ms < self._reconnect_deadline_ms:
            return
        for subscription in [*self._subscriptions.values()]:
            outcome.dropped += subscription.give_up_waiting(outcome.deliveries)
            if subscription.is_over:
                del self._subscriptions[subscription.name]
        self._settle()

    def _let_go(self, outcome: Outcome) -> None:
        """Hold no more: those who are back get what waited for them, and every receipt goes out."""
        self._holding = False
        for subscription in [*self._subscriptions.values()]:
            outcome.dropped += subscription.release(outcome.deliveries)
            if subscription.is_over:
                del self._subscriptions[subscription.name]
        outcome.receipts += self._held
        self._held = []
        self._settle()

    def _settle(self) -> None:
        """Once no subscription waits any more the topic is like any other."""
        if all(subscription.arrivals is None for subscription in self._subscriptions.values()):
            self._reconnect_deadline_ms = None
