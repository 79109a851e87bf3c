"""Compare a topic with its slow model over any interleaving of what clients and moves may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import shake_128

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.brokers.pulsar.topics.arrivals import Entry
from equipoise.brokers.pulsar.topics.clients import Consumer, Producer, Refusal
from equipoise.brokers.pulsar.topics.handover import decode, encode, fetchable
from equipoise.brokers.pulsar.topics.keys import POINTS_PER_CONSUMER, SLOTS, slot_of
from equipoise.brokers.pulsar.topics.topic import Outcome, Topic, TopicLimits
from equipoise.brokers.pulsar.wire.requests import Sent, SubscriptionKind
from tests.pulsar.topics import NAME, flowed, keyed, make_consumer, make_producer

LIMITS = TopicLimits(
    subscriptions_max=3,
    consumers_max=6,
    subscription_consumers_max=2,
    waiting_entries_max=5,
    waiting_bytes_max=150,
    step_entries_max=6,
    receipt_wait_ms=5,
    absent_wait_ms=15,
    reconnect_wait_ms=30,
)
BLOCKS = tuple(keyed(key) for key in "abcd")
NAMES = ("x", "y", "z")
# Each subscription name has one kind, so that most consumers are accepted.
KINDS = {
    "s0": SubscriptionKind.EXCLUSIVE,
    "s1": SubscriptionKind.FAILOVER,
    "s2": SubscriptionKind.SHARED,
    "s3": SubscriptionKind.KEY_SHARED,
}


@dataclass
class ModelSubscription:
    kind: SubscriptionKind
    consumers: list[Consumer] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    coming: list[Consumer] = field(default_factory=list)
    backlog: list[Entry] = field(default_factory=list)
    # The consumers that have been granted permits since the topic moved here.
    ready: list[Consumer] = field(default_factory=list)
    is_waiting: bool = False
    # Key_Shared: entries were released since the consumers last changed. A slow consumer then
    # delays no other.
    is_released: bool = False
    needs_one: bool = False

    def is_complete(self) -> bool:
        return (not self.missing and not self.coming) or (self.needs_one and bool(self.ready))


@dataclass
class Model:
    """The slow and obvious counterpart of a topic."""

    opened_ms: int = 0
    is_holding: bool = False
    is_absence_over: bool = True
    subscriptions: dict[str, ModelSubscription] = field(default_factory=dict)
    permits: dict[Consumer, int] = field(default_factory=dict)
    blocked: list[Consumer] = field(default_factory=list)
    flowed: list[Consumer] = field(default_factory=list)
    held: list[tuple[Producer, int]] = field(default_factory=list)
    # Subscriptions to release in later steps, because one step is bounded.
    noted: list[str] = field(default_factory=list)
    # Deliveries of the real topic that the model has not made yet.
    unexplained: list[tuple[Consumer, Entry]] = field(default_factory=list)
    receipts: list[tuple[Producer, int]] = field(default_factory=list)
    dropped: int = 0

    def allowed(self, subscription: ModelSubscription, entry: Entry) -> list[Consumer]:
        """Return the consumers that may get this entry now: at most one, except in a Shared
        subscription.
        """
        ready = [
            each
            for each in subscription.consumers
            if self.permits[each] > 0 and each not in self.blocked
        ]
        match subscription.kind:
            case SubscriptionKind.SHARED:
                return ready
            case SubscriptionKind.KEY_SHARED:
                chosen = key_holder(subscription.consumers, entry.block)
            case _:
                chosen = min(subscription.consumers, key=lambda each: each.name, default=None)
        return [chosen] if chosen in ready and chosen is not None else []

    def deliver(self, subscription: ModelSubscription, entry: Entry) -> bool:
        """Match the next real delivery with this entry. Return False if no consumer may get it."""
        allowed = self.allowed(subscription, entry)
        if not allowed:
            return False
        assert self.unexplained, f"no consumer got {entry}"
        consumer, delivered = self.unexplained.pop(0)
        assert consumer in allowed
        assert entry == delivered
        self.permits[consumer] -= entry.messages
        return True

    def publish(self, producer: Producer, entry: Entry, now_ms: int) -> None:
        self.pass_time(now_ms)
        for subscription in self.subscriptions.values():
            if subscription.is_waiting and not self.has_free_way(subscription, entry):
                size = sum(len(each.block) for each in subscription.backlog) + len(entry.block)
                if (
                    len(subscription.backlog) < LIMITS.waiting_entries_max
                    and size <= LIMITS.waiting_bytes_max
                ):
                    subscription.backlog.append(entry)
                    continue
            elif self.deliver(subscription, entry):
                continue
            self.dropped += entry.messages
        self.held.append((producer, entry.entry_id))
        if not self.is_holding:
            self.give_receipts()
        elif len(self.held) > LIMITS.waiting_entries_max:
            self.stop_holding()

    def readier(self, name: str, now_ms: int) -> None:
        """A consumer of this subscription has more permits, or can be written to again."""
        subscription = self.subscriptions.get(name)
        if subscription is not None and subscription.is_waiting and name not in self.noted:
            self.noted.append(name)
        self.tick(now_ms)

    def release(self, subscription: ModelSubscription) -> None:
        """Deliver waiting entries to ready consumers, once all needed consumers are back."""
        if subscription.is_waiting and subscription.is_complete():
            subscription.is_released = subscription.kind is SubscriptionKind.KEY_SHARED and bool(
                subscription.consumers
            )
            behind: list[Consumer | None] = []
            for entry in list(subscription.backlog):
                holder = (
                    key_holder(subscription.consumers, entry.block)
                    if subscription.is_released
                    else None
                )
                if holder not in behind and self.deliver(subscription, entry):
                    subscription.backlog.remove(entry)
                else:
                    behind.append(holder)
            subscription.is_waiting = bool(subscription.backlog)
            if not subscription.is_waiting:
                subscription.missing, subscription.coming = [], []

    def has_free_way(self, subscription: ModelSubscription, entry: Entry) -> bool:
        """Return whether nothing waits for the consumer of this entry."""
        holders = [key_holder(subscription.consumers, each.block) for each in subscription.backlog]
        return (
            subscription.is_released
            and key_holder(subscription.consumers, entry.block) not in holders
        )

    def stop_holding(self) -> None:
        """Stop holding, and send the receipts."""
        self.is_holding = False
        self.settle_for_one([SubscriptionKind.SHARED])
        self.give_receipts()

    def settle_for_one(self, kinds: list[SubscriptionKind]) -> None:
        """Stop waiting for absent consumers where one is present."""
        for name, subscription in list(self.subscriptions.items()):
            subscription.needs_one = subscription.needs_one or subscription.kind in kinds
            if subscription.is_waiting and name not in self.noted:
                self.noted.append(name)
        self.release_noted()

    def release_noted(self) -> None:
        """Release noted subscriptions, bounded per step."""
        entries = 0
        while self.noted:
            name = self.noted[0]
            subscription = self.subscriptions.get(name, ModelSubscription(KINDS[name]))
            if entries and entries + len(subscription.backlog) > LIMITS.step_entries_max:
                return
            entries += len(subscription.backlog)
            self.noted.remove(name)
            self.release(subscription)
            if not subscription.consumers and not subscription.is_waiting:
                self.subscriptions.pop(name, None)

    def tick(self, now_ms: int) -> None:
        """Handle passed deadlines and noted subscriptions."""
        self.pass_time(now_ms)
        if not self.is_holding:
            self.release_noted()
        elif self.noted:
            self.noted.clear()
            if all(
                not each.is_waiting or each.is_complete() for each in self.subscriptions.values()
            ):
                self.stop_holding()

    def pass_time(self, now_ms: int) -> None:
        if self.is_holding and now_ms >= self.opened_ms + LIMITS.receipt_wait_ms:
            self.stop_holding()
        if (
            self.anybody_waits()
            and not self.is_absence_over
            and not self.is_holding
            and now_ms >= self.opened_ms + LIMITS.absent_wait_ms
        ):
            self.is_absence_over = True
            self.settle_for_one(list(SubscriptionKind))
        if not self.anybody_waits() or now_ms < self.opened_ms + LIMITS.reconnect_wait_ms:
            return
        entries = 0
        for name, subscription in list(self.subscriptions.items()):
            if entries and entries + len(subscription.backlog) > LIMITS.step_entries_max:
                return  # A step is bounded.
            entries += len(subscription.backlog)
            for entry in subscription.backlog:
                if not self.deliver(subscription, entry):
                    self.dropped += entry.messages
            subscription.is_waiting, subscription.backlog = False, []
            subscription.missing, subscription.coming = [], []
            if not subscription.consumers:
                del self.subscriptions[name]

    def anybody_waits(self) -> bool:
        return any(each.is_waiting for each in self.subscriptions.values())

    def give_receipts(self) -> None:
        self.receipts += self.held
        self.held = []

    def join(self, name: str, consumer: Consumer) -> None:
        subscription = self.subscriptions.setdefault(
            name, ModelSubscription(KINDS[name], is_waiting=self.is_holding)
        )
        subscription.consumers.append(consumer)
        subscription.is_released = False
        self.permits[consumer] = 0
        if consumer.name in subscription.missing:
            subscription.missing.remove(consumer.name)
            subscription.coming.append(consumer)

    def leave(self, name: str, consumer: Consumer) -> None:
        subscription = self.subscriptions[name]
        subscription.consumers.remove(consumer)
        subscription.is_released = False
        subscription.ready = [each for each in subscription.ready if each is not consumer]
        if consumer in subscription.coming:
            subscription.coming.remove(consumer)
            subscription.missing.append(consumer.name)
        if not subscription.consumers and not subscription.is_waiting:
            del self.subscriptions[name]

    def move(self, now_ms: int) -> None:
        for subscription in self.subscriptions.values():
            back = [
                each.name
                for each in subscription.consumers
                if each in self.flowed or each in subscription.coming
            ]
            subscription.missing += back
            subscription.consumers, subscription.coming, subscription.ready = [], [], []
            subscription.needs_one = subscription.kind is SubscriptionKind.EXCLUSIVE
            subscription.is_released = False
            subscription.is_waiting = bool(subscription.missing or subscription.backlog)
        self.subscriptions = {
            name: each for name, each in self.subscriptions.items() if each.is_waiting
        }
        self.opened_ms = now_ms
        self.is_absence_over = False
        self.is_holding = self.anybody_waits()
        self.blocked, self.flowed, self.noted = [], [], []


def key_holder(consumers: list[Consumer], block: bytes) -> Consumer | None:
    """Return the consumer with the nearest point at or after the slot."""
    slot = slot_of(block)
    points = []
    for place, consumer in enumerate(consumers):
        # The number is always 0, because names are unique in a subscription of these tests.
        digest = shake_128(f"{consumer.name}\0{0}".encode()).digest(2 * POINTS_PER_CONSUMER)
        for index in range(POINTS_PER_CONSUMER):
            point = int.from_bytes(digest[2 * index : 2 * index + 2], "big")
            points.append(((point - slot) % SLOTS, consumer.name, place))
    return consumers[min(points)[2]] if points else None


class Pair:
    """A real topic and its model, and the clients of both."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.topic = Topic(NAME, partition=-1, limits=LIMITS, now_ms=0)
        self.model = Model()
        self.producers = [make_producer("p"), make_producer("q")]
        self.homes: dict[Consumer, str] = {}
        self.published: dict[Producer, list[int]] = {producer: [] for producer in self.producers}
        self.receipted: dict[Producer, list[int]] = {producer: [] for producer in self.producers}
        # Key_Shared: by key, too, because entries of other keys may overtake those of a slow
        # consumer.
        self.delivered: dict[tuple[str, bytes], list[int]] = {}
        for producer in self.producers:
            self.topic.add_producer(producer)

    def compare(self, outcome: Outcome) -> None:
        """Check that the topic did exactly what the model did."""
        assert [] == self.model.unexplained
        assert self.model.receipts == [
            (receipt.producer, receipt.entry_id) for receipt in outcome.receipts
        ]
        assert self.model.dropped == outcome.dropped
        self.model.receipts, self.model.dropped = [], 0
        for receipt in outcome.receipts:
            self.receipted[receipt.producer].append(receipt.entry_id)
        for consumer, entry in outcome.deliveries:
            name = self.homes[consumer]
            key = entry.block if KINDS[name] is SubscriptionKind.KEY_SHARED else b""
            self.delivered.setdefault((name, key), []).append(entry.entry_id)
            assert self.model.permits[consumer] == consumer.permits
        for name, subscription in self.topic.subscriptions.items():
            waiting = subscription.arrivals
            assert self.model.subscriptions[name].backlog == list(
                waiting.entries if waiting is not None else ()
            )

    def step(self, what: str, which: int, amount: int) -> None:
        """Take one step. Numbers choose it, so that hypothesis can shrink them."""
        consumers = list(self.homes)
        match what:
            case "publish":
                # One to three entries at once, as a chunk of a connection brings them.
                self.publish(
                    self.producers[which % 2],
                    [
                        Sent(0, 0, 1 + (amount + each) % 3, BLOCKS[(amount + each) % 4])
                        for each in range(1 + which % 3)
                    ],
                )
            case "join":
                self.join(f"s{which % 4}", NAMES[amount % 3])
                self.step("flow", len(self.homes) - 1, amount)
            case "return":
                missing = [
                    (name, each)
                    for name, subscription in self.model.subscriptions.items()
                    for each in subscription.missing
                ]
                if missing:
                    self.join(*missing[which % len(missing)])
                    self.step("flow", len(self.homes) - 1, amount)
            case "wait":
                self.now_ms += amount
                outcome = self.topic.tick(self.now_ms)
                self.model.unexplained = list(outcome.deliveries)
                self.model.tick(self.now_ms)
                self.compare(outcome)
            case "move":
                self.move()
            case _ if consumers:
                self.step_of(what, consumers[which % len(consumers)], amount)

    def step_of(self, what: str, consumer: Consumer, amount: int) -> None:
        """Take one step of a present consumer."""
        name = self.homes[consumer]
        is_readier = what == "flow" or bool(amount % 2)
        if what == "leave":
            self.topic.remove_consumers([consumer])
            self.model.leave(name, consumer)
            del self.homes[consumer]
            return
        if what == "flow":
            outcome = flowed(self.topic, consumer, amount, self.now_ms)
            self.model.permits[consumer] += amount
            self.model.flowed += [consumer] if amount else []
            home = self.model.subscriptions[name]
            if self.model.permits[consumer] > 0:
                home.coming = [each for each in home.coming if each is not consumer]
                home.ready.append(consumer)
        else:
            self.topic.writable(consumer, is_writable=is_readier)
            outcome = self.topic.tick(self.now_ms) if is_readier else Outcome()
            self.model.blocked = [each for each in self.model.blocked if each is not consumer] + (
                [] if is_readier else [consumer]
            )
        self.model.unexplained = list(outcome.deliveries)
        if is_readier:
            self.model.readier(name, self.now_ms)
        self.compare(outcome)

    def publish(self, producer: Producer, sent: list[Sent]) -> None:
        before = self.topic.last_entry_id
        outcome = self.topic.publish(producer, sent, self.now_ms)
        self.model.unexplained = list(outcome.deliveries)
        for entry_id, each in enumerate(sent, before + 1):
            self.published[producer].append(entry_id)
            self.model.publish(producer, Entry(entry_id, each.block, each.messages), self.now_ms)
        self.compare(outcome)

    def join(self, name: str, consumer_name: str) -> None:
        if any(self.homes[each] == name and each.name == consumer_name for each in self.homes):
            return
        consumer = make_consumer(consumer_name)
        answer = self.topic.subscribe(consumer, name, KINDS[name], now_ms=self.now_ms)
        connected = (
            self.model.subscriptions[name].consumers if name in self.model.subscriptions else []
        )
        is_refused = (
            len(self.homes) >= LIMITS.consumers_max
            or (
                name not in self.model.subscriptions
                and len(self.model.subscriptions) >= LIMITS.subscriptions_max
            )
            or (name == "s0" and bool(connected))
            or len(connected) >= LIMITS.subscription_consumers_max
        )
        assert is_refused == isinstance(answer, Refusal)
        if not is_refused:
            self.model.join(name, consumer)
            self.homes[consumer] = name

    def move(self) -> None:
        outcome = self.topic.fence()
        delivered = {entry_id for entry_ids in self.delivered.values() for entry_id in entry_ids}
        assert not delivered & {receipt.entry_id for receipt in outcome.receipts}, (
            "an entry that its producer sends again was delivered"
        )
        self.model.give_receipts()
        self.compare(outcome)
        encoded = encode({NAME: self.topic.state()})
        state = decode(
            encoded.handover, None if encoded.is_complete else fetchable(encoded.states)
        )[NAME]
        assert state == self.topic.state()
        self.model.move(self.now_ms)
        self.homes = {}
        self.topic = Topic(NAME, partition=-1, limits=LIMITS, now_ms=self.now_ms, expected=state)
        for producer in self.producers:
            self.topic.add_producer(producer)

    def finish(self) -> None:
        """Let all deadlines pass. Check that every publish has one receipt and no subscription got
        an entry twice or out of order.
        """
        for _ in KINDS:
            self.step("wait", 0, LIMITS.reconnect_wait_ms)
        assert self.published == self.receipted
        for order, entry_ids in self.delivered.items():
            assert entry_ids == sorted(set(entry_ids)), order
        assert self.topic.wake_at_ms is None


# Enough consumers join and return after a move for waiting to end.
WEIGHTS = {
    "publish": 6,
    "join": 4,
    "return": 6,
    "flow": 5,
    "writable": 2,
    "leave": 1,
    "wait": 1,
    "move": 1,
}
STEP_NAMES = [what for what, weight in WEIGHTS.items() for _ in range(weight)]
STEPS = st.lists(
    st.tuples(st.sampled_from(STEP_NAMES), st.integers(0, 11), st.integers(0, 12)),
    min_size=20,
    max_size=80,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_a_topic_equals_its_model(steps: list[tuple[str, int, int]]) -> None:
    """Each publish gets one receipt, in order, and nothing is delivered twice."""
    pair = Pair()
    for what, which, amount in steps:
        pair.step(what, which, amount)
    pair.finish()
