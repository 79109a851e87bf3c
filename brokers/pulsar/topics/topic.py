"""Keep the state of one topic, and compute the deliveries and receipts of each step.

This module is pure. Times are milliseconds of a monotonic clock. Results are returned as an
`Outcome`; connections are opaque links.

Theory of operation: a topic moves like this.

1. The source calls `fence`, writes the receipts in the outcome, takes `state`, and drops the topic.
2. The destination creates a topic with that state as `expected`.
3. Each subscription waits for its former consumers. It queues new messages behind those that the
   source had not delivered.
4. After `absent_wait_ms` a subscription with at least one consumer stops waiting for the others.
   After `reconnect_wait_ms` every subscription stops waiting.

The topic is *holding* until all consumers are back, for at most `receipt_wait_ms`. A holding topic
delivers nothing and sends no receipts:

* A producer without a receipt sends its message again if this broker dies or the bundle moves on.
* A message delivered before its receipt could then be delivered twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from equipoise.brokers.pulsar.topics.arrivals import Arrivals, Entry
from equipoise.brokers.pulsar.topics.clients import (
    ActiveChange,
    Consumer,
    Meter,
    Producer,
    Producers,
    Receipt,
    Refusal,
)
from equipoise.brokers.pulsar.topics.dispatch import (
    PERMITS_MAX,
    Delivery,
    Subscription,
    wants_stripes,
)
from equipoise.brokers.pulsar.topics.throttling import Bucket, Patience, Rate, Turns
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.pulsar.wire.requests import Sent, SubscriptionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """The bounds of one topic, and how long it waits for clients after a move.

    * `waiting_entries_max`, `waiting_bytes_max`: the backlog of one subscription; 10 s of 1,000
      entries/s of 800 bytes. The topic stores an entry once, however many subscriptions wait for
      it. With larger messages the bytes bind; one entry of the largest size (5 MiB) always fits.
    * `subscription_consumers_max`: a publish looks at all 500 consumers if none is ready (30 us).
      Adding or removing one costs 0.2 ms at most (Key_Shared, whose ring then has 50,000 points).
    """

    producers_max: int = 10_000
    subscriptions_max: int = 1_000
    consumers_max: int = 10_000
    subscription_consumers_max: int = 500
    waiting_entries_max: int = 10_000
    waiting_bytes_max: int = 8 * 1024 * 1024
    # One step delivers or drops at most this many waiting entries, or all entries of one
    # subscription. Takes about 10 ms.
    step_entries_max: int = 1_000
    receipt_wait_ms: int = 100
    # How long producers wait for permits before messages are dropped, at once and per second: the
    # longest pause of a healthy consumer's program, a full collection of Java's garbage. Longer
    # waits would make all consumers as slow as the slowest one.
    permits_wait_ms: int = 100
    # How long consumers that are back wait for a missing one, which may have closed during the move
    # and never return.
    absent_wait_ms: int = 1_000
    reconnect_wait_ms: int = 10_000
    # Policies of the namespace. None: no limit.
    kinds: frozenset[SubscriptionKind] | None = None
    publish_rate: Rate | None = None
    dispatch_rate: Rate | None = None
    subscription_dispatch_rate: Rate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionState:
    """A subscription in a handover.

    * `expected`: sorted names of the consumers to wait for.
    * `waiting`: ids of the entries that it has not delivered.
    """

    name: str
    kind: SubscriptionKind
    is_sticky: bool = False
    expected: tuple[str, ...] = ()
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic in a handover. `entries` are those that some subscription has not delivered, by
    rising id.
    """

    last_entry_id: int = 0
    subscriptions: tuple[SubscriptionState, ...] = ()
    entries: tuple[Entry, ...] = ()


class Outcome:
    """The result of a step, to be written in this order: deliveries, then receipts. `dropped`
    counts messages.
    """

    __slots__ = ("deliveries", "dropped", "receipts")

    def __init__(self) -> None:
        """Start empty."""
        self.deliveries: list[Delivery] = []
        self.receipts: list[Receipt] = []
        self.dropped = 0


class Topic:
    """One non-persistent topic. Every method may be called at any time; after `fence` none delivers
    or sends receipts.
    """

    __slots__ = (
        "_absent_deadline_ms",
        "_dispatch_bucket",
        "_held",
        "_holding",
        "_homes",
        "_limits",
        "_noted",
        "_patience",
        "_producers",
        "_receipt_deadline_ms",
        "_reconnect_deadline_ms",
        "_subscriptions",
        "_turns",
        "delivered",
        "is_fenced",
        "last_entry_id",
        "name",
        "partition",
        "publish_bucket",
        "published",
    )

    def __init__(
        self,
        name: str,
        *,
        partition: int,
        limits: TopicLimits,
        now_ms: int,
        expected: TopicState | None = None,
    ) -> None:
        """Create a topic, from the former owner's `state` if `expected` is given.

        `partition` is the index at the end of `name`, or -1. Entry ids continue from the former
        owner's, because Go's client treats an id that it has just seen as a duplicate.
        """
        self.name = name
        self.partition = partition
        self.published = Meter(now_ms=now_ms)
        self.delivered = Meter(now_ms=now_ms)
        self.is_fenced = False
        self.last_entry_id = 0
        self._limits = limits
        self._producers = Producers(name, count_max=limits.producers_max)
        self._subscriptions: dict[str, Subscription] = {}
        self._homes: dict[Consumer, Subscription] = {}
        # Subscriptions to release at the next `tick`, in order.
        self._noted: dict[Subscription, None] = {}
        self._patience = Patience(wait_ms=limits.permits_wait_ms, now_ms=now_ms)
        self._held: list[Receipt] = []
        self._holding = False
        self._receipt_deadline_ms = now_ms + limits.receipt_wait_ms
        # None: present consumers do not wait for absent ones.
        self._absent_deadline_ms: int | None = None
        # None: no subscription waits for consumers, permanently.
        self._reconnect_deadline_ms: int | None = None
        # None: no limit of the rate at which producers publish, and at which subscriptions deliver.
        self.publish_bucket: Bucket | None = None
        self._turns = Turns()
        self._dispatch_bucket: Bucket | None = None
        self._limit_publishing(now_ms)
        self._limit_dispatch(now_ms)
        if expected is not None:
            self._expect(expected, now_ms)

    def limit(self, limits: TopicLimits, now_ms: int) -> None:
        """Apply other limits from now on. Clients that are connected stay, also if there are too
        many of them now.
        """
        former, self._limits = self._limits, limits
        self._producers.count_max = limits.producers_max
        # A new bucket is full, so the buckets of a rate that stays the same stay, too.
        if limits.publish_rate != former.publish_rate:
            self._limit_publishing(now_ms)
        if (limits.dispatch_rate, limits.subscription_dispatch_rate) != (
            former.dispatch_rate,
            former.subscription_dispatch_rate,
        ):
            self._limit_dispatch(now_ms)

    def _limit_publishing(self, now_ms: int) -> None:
        rate = self._limits.publish_rate
        self.publish_bucket = None if rate is None else Bucket(rate, now_ms=now_ms)

    def _limit_dispatch(self, now_ms: int) -> None:
        rate = self._limits.dispatch_rate
        self._dispatch_bucket = None if rate is None else Bucket(rate, now_ms=now_ms)
        for subscription in self._subscriptions.values():
            subscription.buckets = self._buckets(now_ms)

    def _buckets(self, now_ms: int) -> Sequence[Bucket]:
        """Return the buckets of a subscription: that of the topic, and its own."""
        rate = self._limits.subscription_dispatch_rate
        own = None if rate is None else Bucket(rate, now_ms=now_ms)
        return [bucket for bucket in (self._dispatch_bucket, own) if bucket is not None]

    @property
    def producers(self) -> Mapping[str, Producer]:
        """The producers by name."""
        return self._producers.by_name

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """The subscriptions by name. Some may have only expected consumers."""
        return MappingProxyType(self._subscriptions)

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers of all subscriptions."""
        return tuple(self._homes)

    @property
    def consumer_count(self) -> int:
        """The number of consumers of all subscriptions."""
        return len(self._homes)

    @property
    def is_idle(self) -> bool:
        """Whether the topic has no clients and expects none, so that it can be dropped."""
        return not self._producers and not self._subscriptions

    @property
    def wake_at_ms(self) -> int | None:
        """When to call `tick` next, or None if there is nothing to do."""
        if self._holding:
            return self._receipt_deadline_ms
        if self._noted:
            return 0
        deadlines = (self._absent_deadline_ms, self._reconnect_deadline_ms)
        return min(
            (deadline_ms for deadline_ms in deadlines if deadline_ms is not None), default=None
        )

    def add_producer(self, producer: Producer) -> Refusal | Producer | None:
        """Add a producer. Return the former one if it replaces one: its client reconnected before
        the broker saw that close. If a refusal has a `holder`, probe its link, remove it if dead,
        and try again.
        """
        if self.is_fenced:
            return self._moving()
        answer = self._producers.add(producer)
        if isinstance(answer, Producer):
            self._forget_held({answer})
        return answer

    def remove_producers(self, producers: Collection[Producer]) -> None:
        """Remove producers and their entries with held receipts, in one step.

        Unknown producers are ignored. Producers send these entries again when they reconnect, so
        the entries must be neither delivered nor handed over.
        """
        self._forget_held(self._producers.remove(producers))

    def _forget_held(self, gone: Collection[Producer]) -> None:
        for producer in gone:
            self._turns.forget(producer)
        forgotten = {receipt.entry_id for receipt in self._held if receipt.producer in gone}
        self._held = [receipt for receipt in self._held if receipt.producer not in gone]
        self.forget(forgotten)

    def forget(self, entry_ids: Collection[int]) -> None:
        """Remove waiting entries that get no receipt, because their producers send them again."""
        if entry_ids:
            for subscription in self._subscriptions.values():
                subscription.forget(entry_ids)

    def subscribe(
        self, consumer: Consumer, subscription: str, kind: SubscriptionKind, *, now_ms: int
    ) -> Refusal | list[ActiveChange]:
        """Add a consumer. Return the changes of active consumers to send, or a refusal; for one
        with a `holder` see `add_producer`.

        The consumer gets nothing before its first `flow`.
        """
        if self.is_fenced:
            return self._moving()
        if self._limits.kinds is not None and kind not in self._limits.kinds:
            allowed = ", ".join(sorted(each.name.title() for each in self._limits.kinds))
            message = (
                f"Topic {self.name} does not support {kind.name.title()} subscriptions; the policy"
                f" of its namespace allows {allowed}"
            )
            return Refusal(error=ServerError.NotAllowedError, message=message)
        if len(self._homes) >= self._limits.consumers_max:
            return Refusal(
                error=ServerError.ConsumerBusy,
                message=f"Topic {self.name} reached max consumers limit",
            )
        home = self._subscriptions.get(subscription)
        if home is not None and len(home.consumers) >= self._limits.subscription_consumers_max:
            return Refusal(
                error=ServerError.ConsumerBusy,
                message=f"Subscription {subscription} reached max consumers limit",
            )
        if home is None:
            if len(self._subscriptions) >= self._limits.subscriptions_max:
                return Refusal(
                    error=ServerError.NotAllowedError,
                    message=f"Exceed the maximum number of subscriptions of the topic {self.name}",
                )
            is_sticky = wants_stripes(consumer, kind)
            home = self._subscription(subscription, kind, is_sticky=is_sticky, now_ms=now_ms)
            if self._holding:
                home.expect(self._arrivals(()))
        changes = home.add(consumer, kind)
        if isinstance(changes, Refusal):
            return changes
        self._subscriptions[subscription] = home
        self._homes[consumer] = home
        return changes

    def remove_consumers(self, consumers: Iterable[Consumer]) -> list[ActiveChange]:
        """Remove consumers, and subscriptions left empty, in one step. Return the active-consumer
        changes to send.

        Unknown consumers are ignored. A fenced topic returns no changes: its clients have moved on,
        and may have reused the consumer ids.
        """
        going: defaultdict[Subscription, list[Consumer]] = defaultdict(list)
        for consumer in consumers:
            home = self._homes.pop(consumer, None)
            if home is not None:
                going[home].append(consumer)
        changes = []
        for home, of_home in going.items():
            changes += home.remove(of_home)
            if home.is_over:
                del self._subscriptions[home.name]
        return [] if self.is_fenced else changes

    def kind_of(self, consumer: Consumer) -> SubscriptionKind | None:
        """Return the kind of a consumer's subscription, or None if the consumer is unknown."""
        home = self._homes.get(consumer)
        return None if home is None else home.kind

    def unsubscribe(self, consumer: Consumer, *, is_forced: bool) -> Refusal | Sequence[Consumer]:
        """Delete a consumer's subscription with its backlog. Return its other consumers, which the
        caller must disconnect.

        Refused if the consumer is unknown, or if others are connected and `is_forced` is False.
        """
        home = self._homes.get(consumer)
        if home is None or (len(home.consumers) > 1 and not is_forced):
            return Refusal(
                error=ServerError.MetadataError,
                message="Unconnected or shared consumer attempting to unsubscribe",
            )
        return [each for each in self.delete_subscription(home.name) if each is not consumer]

    def delete_subscription(self, name: str) -> Sequence[Consumer]:
        """Delete a subscription with its backlog, if there is one. Return its consumers, which the
        caller must disconnect.
        """
        home = self._subscriptions.pop(name, None)
        consumers = () if home is None else tuple(home.consumers)
        for consumer in consumers:
            del self._homes[consumer]
        return consumers

    def room_for(
        self, producer: Producer, entries: Sequence[Sent], of_connection: Patience, now_ms: int
    ) -> int:
        """Return how many of these entries to publish now. If 0, call this again in a moment or
        after `rest_ms`, until it returns more.

        * Entries above the publish rate wait.
        * Entries wait for consumers without permits, but not long: the topic and the producer's
          connection each have a `Patience`. Then they are published, and dropped for these
          consumers.
        """
        if self.is_fenced:
            return len(entries)
        room, lacking = len(entries), list[Subscription]()
        if self.publish_bucket is not None:
            self.publish_bucket.refill(now_ms)
            room = self._turns.take(producer, self.publish_bucket.room_for(entries), now_ms)
        for subscription in self._subscriptions.values() if room else ():
            fitting = subscription.room_for(entries, producer.link)
            if fitting:
                room = min(room, fitting)
            else:
                lacking.append(subscription)
        if lacking and self._patience.wait(now_ms) and of_connection.wait(now_ms):
            return 0
        self._patience.stop(now_ms)
        of_connection.stop(now_ms)
        for subscription in lacking:
            subscription.is_awaited = False
        return room

    @property
    def rest_ms(self) -> int:
        """How long nothing may be published here, as far as the last `room_for` knows; 0 if the
        publish rate allows more now.
        """
        return (
            0
            if self.publish_bucket is None
            else max(self.publish_bucket.wait_ms, int(self._turns.are_awaited))
        )

    def publish(self, producer: Producer, entries: Sequence[Sent], now_ms: int) -> Outcome:
        """Publish entries of one producer, in order. Receipts are in this outcome or a later one; a
        fenced topic ignores the entries.
        """
        outcome = Outcome()
        if self.is_fenced:
            return outcome
        if self._reconnect_deadline_ms is not None:
            self._pass_deadlines(now_ms, outcome)
        homes = self._subscriptions.values()
        for subscription in homes:
            for bucket in subscription.buckets:
                bucket.refill(now_ms)
        total_messages = total_bytes = 0
        for sequence_id, highest_sequence_id, messages, block in entries:
            self.last_entry_id = entry_id = self.last_entry_id + 1
            total_messages += messages
            total_bytes += len(block)
            entry = Entry(entry_id, block, messages)
            for subscription in homes:
                outcome.dropped += subscription.take(entry, outcome.deliveries)
            receipts = self._held if self._holding else outcome.receipts
            receipts.append(Receipt(producer, sequence_id, highest_sequence_id, entry_id))
            if self._holding and len(self._held) > self._limits.waiting_entries_max:
                self._stop_holding(outcome)
        if self.publish_bucket is not None:
            self.publish_bucket.spend(total_messages, total_bytes)
        for meter in (producer.published, self.published):
            meter.messages += total_messages
            meter.bytes += total_bytes
        self.published.entries += len(entries)
        return outcome

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Add to a consumer's permits. The next `tick` returns the deliveries that this allows."""
        consumer.permits = min(consumer.permits + permits, PERMITS_MAX)
        consumer.has_flowed = consumer.has_flowed or permits > 0
        home = self._homes.get(consumer)
        if home is not None and consumer.permits > 0:
            home.is_awaited = True
            if home.arrivals is not None:
                home.arrivals.flowed(consumer)
        self._note(home)

    def writable(self, consumer: Consumer, *, is_writable: bool) -> None:
        """Set whether a consumer's connection can be written to; see `flow`."""
        consumer.is_writable = is_writable
        home = self._homes.get(consumer)
        if is_writable and home is not None:
            home.is_awaited = True
            self._note(home)

    def _note(self, home: Subscription | None) -> None:
        if home is not None and home.arrivals is not None:
            self._noted[home] = None

    def take_back(self, consumer: Consumer, entry: Entry) -> None:
        """Undo the delivery of an entry that could not be written. Drop it and restore the
        consumer's permits.
        """
        home = self._homes.get(consumer)
        if home is not None:
            home.take_back(consumer, entry)

    def release_receipts(self) -> Outcome:
        """Stop holding early, because an answer that must follow the receipts cannot wait."""
        outcome = Outcome()
        if self._holding:
            self._stop_holding(outcome)
        return outcome

    def tick(self, now_ms: int) -> Outcome:
        """Handle passed deadlines and noted changes. See `wake_at_ms`; early and late calls do no
        harm.
        """
        outcome = Outcome()
        if not self.is_fenced:
            self._pass_deadlines(now_ms, outcome)
            if not self._holding:
                self._release_noted(outcome)
            elif self._noted:
                self._noted.clear()
                self._stop_holding_if_complete(outcome)
        return outcome

    def fence(self) -> Outcome:
        """Stop permanently because the bundle moves. Return the receipts of entries that are handed
        over undelivered.
        """
        outcome = Outcome()
        if not self.is_fenced:
            outcome.receipts, self._held = self._held, []
            self._holding = False
            self.is_fenced = True
        return outcome

    def state(self) -> TopicState:
        """Return the state for the next owner. Call this after `fence`, before consumers are
        removed.
        """
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
        """Close a window of all rates of the topic. The service calls this every period."""
        for meter in (self.published, self.delivered):
            meter.roll(now_ms)
        for producer in self._producers.by_name.values():
            producer.published.roll(now_ms)
        for subscription in self._subscriptions.values():
            for meter in (
                subscription.delivered,
                subscription.dropped,
                *(each.delivered for each in subscription.consumers),
            ):
                meter.roll(now_ms)

    def _expect(self, expected: TopicState, now_ms: int) -> None:
        self.last_entry_id = expected.last_entry_id
        by_id = {entry.entry_id: entry for entry in expected.entries}
        for each in expected.subscriptions[: self._limits.subscriptions_max]:
            if not each.expected and not each.waiting:
                continue
            home = self._subscription(each.name, each.kind, is_sticky=each.is_sticky, now_ms=now_ms)
            home.expect(self._arrivals(each.expected))
            for entry_id in each.waiting:
                if entry_id in by_id:
                    home.take(by_id[entry_id], [])
            self._subscriptions[each.name] = home
            self._absent_deadline_ms = now_ms + self._limits.absent_wait_ms
            self._reconnect_deadline_ms = now_ms + self._limits.reconnect_wait_ms
            self._holding = True

    def _arrivals(self, names: Sequence[str]) -> Arrivals:
        return Arrivals(
            names,
            entries_max=self._limits.waiting_entries_max,
            bytes_max=self._limits.waiting_bytes_max,
        )

    def _subscription(
        self, name: str, kind: SubscriptionKind, *, is_sticky: bool, now_ms: int
    ) -> Subscription:
        subscription = Subscription(
            name,
            kind,
            is_sticky=is_sticky,
            partition=self.partition,
            topic_delivered=self.delivered,
            now_ms=now_ms,
        )
        subscription.buckets = self._buckets(now_ms)
        return subscription

    def _moving(self) -> Refusal:
        return Refusal(
            error=ServerError.ServiceNotReady,
            message=f"Topic {self.name} is temporarily unavailable: it is moving to another broker",
        )

    def _stop_holding_if_complete(self, outcome: Outcome) -> None:
        if all(
            each.arrivals is None or each.arrivals.is_complete
            for each in self._subscriptions.values()
        ):
            self._stop_holding(outcome)

    def _release_noted(self, outcome: Outcome) -> None:
        """Release noted subscriptions, bounded per step: 1,000 subscriptions may hold 10,000
        entries each.
        """
        entries = 0
        while self._noted:
            home = next(iter(self._noted))
            waiting = 0 if home.arrivals is None else len(home.arrivals)
            if entries and entries + waiting > self._limits.step_entries_max:
                break
            entries += waiting
            del self._noted[home]
            if self._subscriptions.get(home.name) is home:
                outcome.dropped += home.release(outcome.deliveries)
                if home.is_over:
                    del self._subscriptions[home.name]
        self._settle()

    def _pass_deadlines(self, now_ms: int, outcome: Outcome) -> None:
        """End holding and waiting whose deadlines have passed."""
        if self._holding and now_ms >= self._receipt_deadline_ms:
            self._stop_holding(outcome)
        if (
            self._absent_deadline_ms is not None
            and now_ms >= self._absent_deadline_ms
            and not self._holding
        ):
            self._absent_deadline_ms = None
            self._settle_for_one(tuple(SubscriptionKind), outcome)
        if self._reconnect_deadline_ms is not None and now_ms >= self._reconnect_deadline_ms:
            self._give_up_waiting(outcome)

    def _give_up_waiting(self, outcome: Outcome) -> None:
        """Stop waiting for all consumers, in bounded steps: 1,000 subscriptions may be waiting.
        Each later call takes the next step.
        """
        entries = 0
        for subscription in [*self._subscriptions.values()]:
            if subscription.arrivals is None:
                continue
            waiting = len(subscription.arrivals)
            if entries and entries + waiting > self._limits.step_entries_max:
                return
            entries += waiting
            outcome.dropped += subscription.give_up_waiting(outcome.deliveries)
            if subscription.is_over:
                del self._subscriptions[subscription.name]
        self._settle()

    def _stop_holding(self, outcome: Outcome) -> None:
        """Stop holding: send all held receipts, and the first waiting entries.

        A Shared subscription stops waiting for absent consumers, because any consumer may get what
        it holds.
        """
        self._holding = False
        self._settle_for_one((SubscriptionKind.SHARED,), outcome)
        outcome.receipts += self._held
        self._held = []

    def _settle_for_one(self, kinds: Collection[SubscriptionKind], outcome: Outcome) -> None:
        """Make subscriptions of these kinds stop waiting for absent consumers once one is present.
        Release all subscriptions.
        """
        for subscription in self._subscriptions.values():
            if subscription.kind in kinds:
                subscription.settle_for_one()
            self._note(subscription)
        self._release_noted(outcome)

    def _settle(self) -> None:
        """Clear the deadlines once no subscription waits."""
        if all(subscription.arrivals is None for subscription in self._subscriptions.values()):
            self._absent_deadline_ms = self._reconnect_deadline_ms = None
