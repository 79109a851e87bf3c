"""A topic at rest: who is let in, what a publish comes to, bounds, and fencing."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.topics.dispatch import PERMITS_MAX, Refusal
from equipoise.brokers.pulsar.topics.stats import kind_name
from equipoise.brokers.pulsar.topics.topic import Replaced, TopicLimits
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import AccessMode, Sent, SubscriptionKind
from tests.pulsar.topics import joined, make_consumer, make_producer, make_topic, produced, receipted, refused_as, send, sticky, told

SHARED, EXCLUSIVE, KEY_SHARED = SubscriptionKind.SHARED, SubscriptionKind.EXCLUSIVE, SubscriptionKind.KEY_SHARED


def test_a_publish_goes_to_every_subscription_and_is_receipted_at_once() -> None:
    """Each subscription gets the same entry, ids rise from 1, and the receipt repeats the ids of the SEND."""
    topic, producer = make_topic(), make_producer()
    assert topic.add_producer(producer) is None
    a, b = joined(topic, "a", "s1"), joined(topic, "b", "s2", SHARED)
    outcome = topic.publish(producer, [Sent(7, 9, 3, b"12345")], 1)
    assert [(a, (1, b"12345", 3)), (b, (1, b"12345", 3))] == outcome.deliveries
    assert [(producer, 7, 9, 1)] == outcome.receipts
    assert 0 == outcome.dropped
    assert [("a", 2), ("b", 2)] == told(send(topic, producer))
    assert (1000 - 4, 4, 10) == (a.permits, a.delivered.messages, a.delivered.bytes)
    assert (4, 10) == (producer.published.messages, topic.published.bytes)
    assert (8, 20) == (topic.delivered.messages, topic.delivered.bytes)


def test_what_nobody_can_take_is_dropped_and_counted_and_receipted_all_the_same() -> None:
    """No permits or no room: dropped for that subscription only; a batch may take the last permit below 0."""
    topic, producer = produced()
    poor, rich = joined(topic, "poor", "s1", permits=1), joined(topic, "rich", "s2")
    assert [("poor", 1), ("rich", 1)] == told(send(topic, producer, messages=5))
    assert -4 == poor.permits
    outcome = send(topic, producer, messages=5)
    assert ([("rich", 2)], [2], 5) == (told(outcome), receipted(outcome), outcome.dropped)
    topic.writable(rich, is_writable=False, now_ms=0)
    assert 2 == send(topic, producer).dropped
    assert (6, 1) == (topic.subscriptions["s1"].dropped.messages, topic.subscriptions["s2"].dropped.messages)
    topic.writable(rich, is_writable=True, now_ms=0)
    assert [("rich", 4)] == told(send(topic, producer))


def test_without_subscriptions_a_message_is_gone() -> None:
    """Nothing is delivered, nothing is kept for who comes later, and the producer has its receipt."""
    topic, producer = produced()
    assert [1] == receipted(send(topic, producer))
    consumer = make_consumer()
    topic.subscribe(consumer, "s", EXCLUSIVE, is_durable=True, now_ms=0)
    assert [] == told(topic.flow(consumer, 10, 0))


def test_permits_cannot_be_driven_to_absurdity() -> None:
    """However much a consumer grants, no more than Java's largest number is remembered."""
    topic = make_topic()
    consumer = joined(topic, permits=2**32 - 1)
    topic.flow(consumer, 2**32 - 1, 0)
    assert PERMITS_MAX == consumer.permits


def test_a_name_is_taken_until_its_holder_is_dead() -> None:
    """Another connection is refused with the holder to probe; once that is removed, the name is free."""
    topic = make_topic()
    here, there = object(), object()
    holder = make_producer(link=here)
    assert topic.add_producer(holder) is None
    again = make_producer(link=there, epoch=1)
    answer = topic.add_producer(again)
    assert isinstance(answer, Refusal)
    assert (ServerError.PRODUCER_BUSY, holder) == (answer.error, answer.holder)
    topic.remove_producers([again])  # Was never in: changes nothing.
    assert {"p": holder} == dict(topic.producers)
    topic.remove_producers([holder])
    assert topic.add_producer(again) is None


def test_the_same_producer_with_a_higher_epoch_takes_its_own_place() -> None:
    """Same connection, same id, higher epoch: replaced in silence; anything less is refused."""
    topic, link = make_topic(), object()
    former = make_producer(link=link, producer_id=3, epoch=1)
    topic.add_producer(former)
    assert ServerError.PRODUCER_BUSY is refused_as(topic.add_producer(make_producer(link=link, producer_id=3, epoch=1)))
    assert ServerError.PRODUCER_BUSY is refused_as(topic.add_producer(make_producer(link=link, producer_id=4, epoch=2)))
    successor = make_producer(link=link, producer_id=3, epoch=2)
    assert Replaced(former=former) == topic.add_producer(successor)
    assert {"p": successor} == dict(topic.producers)


def test_an_exclusive_producer_stays_alone() -> None:
    """It comes in only if nobody is there, and nobody comes in beside it; the other exclusive modes are not served."""
    topic = make_topic()
    first = make_producer("a")
    topic.add_producer(first)
    assert ServerError.PRODUCER_FENCED is refused_as(topic.add_producer(make_producer("b", access_mode=AccessMode.EXCLUSIVE)))
    topic.remove_producers([first])
    assert topic.add_producer(make_producer("b", access_mode=AccessMode.EXCLUSIVE)) is None
    assert ServerError.PRODUCER_BUSY is refused_as(topic.add_producer(make_producer("c")))
    assert ServerError.PRODUCER_FENCED is refused_as(topic.add_producer(make_producer("d", access_mode=AccessMode.EXCLUSIVE)))
    for mode in (AccessMode.WAIT_FOR_EXCLUSIVE, AccessMode.EXCLUSIVE_WITH_FENCING):
        assert ServerError.NOT_ALLOWED is refused_as(topic.add_producer(make_producer("e", access_mode=mode)))


def test_consumers_of_one_subscription_are_of_one_kind() -> None:
    """Another kind, or another mode of Key_Shared, is refused while anybody is connected, and taken once nobody is."""
    topic = make_topic()
    first = joined(topic, "a", kind=KEY_SHARED)
    other = make_consumer("b", key_shared=sticky((0, 9)))
    for kind in (SHARED, EXCLUSIVE, KEY_SHARED):
        assert ServerError.CONSUMER_BUSY is refused_as(topic.subscribe(other, "s", kind, is_durable=True, now_ms=0))
    assert [] == topic.remove_consumers([first])
    assert "s" not in topic.subscriptions
    assert [] == topic.subscribe(other, "s", KEY_SHARED, is_durable=True, now_ms=0)
    assert (other,) == topic.consumers


def test_wishes_about_keys_mean_nothing_to_other_kinds() -> None:
    """A Shared consumer may say what it likes about hashes: it is a Shared consumer."""
    topic = make_topic()
    joined(topic, "a", kind=SHARED)
    odd = make_consumer("b", key_shared=sticky((9, 0)))
    assert [] == topic.subscribe(odd, "s", SHARED, is_durable=True, now_ms=0)


def test_a_consumer_has_the_kind_of_its_subscription() -> None:
    """As long as it is here; and each kind has Pulsar's name."""
    topic = make_topic()
    consumer = joined(topic, kind=KEY_SHARED)
    assert "Key_Shared" == kind_name(topic.kind_of(consumer))
    topic.remove_consumers([consumer])
    assert "" == kind_name(topic.kind_of(consumer))


def test_a_refused_first_consumer_leaves_no_subscription_behind() -> None:
    """A subscription begins with a consumer that was let in."""
    topic = make_topic()
    answer = topic.subscribe(make_consumer(key_shared=sticky((9, 0))), "s", KEY_SHARED, is_durable=True, now_ms=0)
    assert ServerError.CONSUMER_ASSIGN_ERROR is refused_as(answer)
    assert topic.is_idle


def test_failover_changes_are_told_on_coming_and_going() -> None:
    """What the dispatcher says about being active comes out of both calls."""
    topic = make_topic()
    b, a = make_consumer("b"), make_consumer("a")
    assert [(b, True)] == topic.subscribe(b, "s", SubscriptionKind.FAILOVER, is_durable=True, now_ms=0)
    assert [(a, True), (b, False)] == topic.subscribe(a, "s", SubscriptionKind.FAILOVER, is_durable=True, now_ms=0)
    assert [(b, True)] == topic.remove_consumers([a])
    assert [] == topic.remove_consumers([a])


def test_a_consumer_unsubscribes_only_for_itself() -> None:
    """Refused beside others, and for one that is not here; else the subscription is gone at once."""
    topic = make_topic()
    a, b = joined(topic, "a", kind=SHARED), joined(topic, "b", kind=SHARED)
    assert ServerError.METADATA_ERROR is refused_as(topic.unsubscribe(a, is_forced=False))
    topic.remove_consumers([b])
    assert ServerError.METADATA_ERROR is refused_as(topic.unsubscribe(b, is_forced=True))
    assert [] == topic.unsubscribe(a, is_forced=False)
    assert topic.is_idle
    assert [] == topic.remove_consumers([a])
    assert [] == told(topic.flow(a, 10, 0))


def test_a_consumer_may_force_the_end_of_its_subscription() -> None:
    """The others of the subscription are told, and are in it no more; those of another one stay."""
    topic = make_topic()
    a, b, other = joined(topic, "a", kind=SHARED), joined(topic, "b", kind=SHARED), joined(topic, "c", "other")
    assert [b] == topic.unsubscribe(a, is_forced=True)
    assert ((other,), ["other"]) == (topic.consumers, list(topic.subscriptions))
    assert [] == topic.remove_consumers([a, b])


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        (TopicLimits(consumers_max=1), ServerError.CONSUMER_BUSY),
        (TopicLimits(subscriptions_max=1), ServerError.NOT_ALLOWED),
    ],
)
def test_consumers_and_subscriptions_are_bounded(limits: TopicLimits, error: ServerError) -> None:
    """Beyond the bound a consumer is refused, and nothing is left of it."""
    topic = make_topic(limits=limits)
    joined(topic, "a", "s1", SHARED)
    assert error is refused_as(topic.subscribe(make_consumer("b"), "s2", SHARED, is_durable=True, now_ms=0))
    assert ["s1"] == list(topic.subscriptions)
    assert 1 == len(topic.consumers)


def test_the_consumers_of_one_subscription_are_bounded() -> None:
    """Beyond the bound a consumer is refused there, and let in elsewhere."""
    topic = make_topic(limits=TopicLimits(subscription_consumers_max=2))
    joined(topic, "a", kind=SHARED)
    joined(topic, "b", kind=SHARED)
    assert ServerError.CONSUMER_BUSY is refused_as(topic.subscribe(make_consumer("c"), "s", SHARED, is_durable=True, now_ms=0))
    joined(topic, "c", "other", SHARED)


def test_consumers_that_leave_together_leave_in_one_step() -> None:
    """Of several subscriptions at once: those who stay are told once who is active, and nobody is told who leaves."""
    topic = make_topic()
    failover = [joined(topic, name, "f", SubscriptionKind.FAILOVER) for name in "abcd"]
    alone, shared = joined(topic, "x", "alone"), [joined(topic, name, "shared", SHARED) for name in "xy"]
    assert [(failover[3], True)] == topic.remove_consumers([*failover[:3], alone, shared[0], make_consumer("stranger")])
    assert ["f", "shared"] == list(topic.subscriptions)
    assert (failover[3], shared[1]) == topic.consumers


def test_the_slot_of_an_entry_is_made_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many Key_Shared subscriptions want it, and not at all where there is none; when it waited, once more for all of them."""
    asked: list[bytes] = []

    def slot_of(block: bytes) -> int:
        asked.append(block)
        return 7

    for module in ("topic", "subscription"):
        monkeypatch.setattr(f"equipoise.brokers.pulsar.topics.{module}.slot_of", slot_of)
    topic, producer = produced()
    joined(topic, "a", "shared", SHARED)
    send(topic, producer, b"1")
    for name in ("s1", "s2", "s3"):
        joined(topic, "a", name, KEY_SHARED)
    send(topic, producer, b"2")
    assert [b"2"] == asked
    topic.fence()
    moved = make_topic(topic.state())
    moved.add_producer(producer)
    send(moved, producer, b"3")
    asked.clear()
    moved.remove_consumers([joined(moved, "a", "shared", SHARED)])
    for name in ("s1", "s2", "s3"):
        consumer = joined(moved, "a", name, KEY_SHARED, permits=0)
        consumer.is_writable = False
        moved.flow(consumer, 5, 1)
        moved.flow(consumer, 5, 1)
    assert [b"3"] == asked


def test_producers_are_bounded() -> None:
    """Beyond the bound a producer is refused, one that takes its own place is not."""
    topic = make_topic(limits=TopicLimits(producers_max=1))
    assert topic.add_producer(make_producer("a")) is None
    assert ServerError.PRODUCER_BUSY is refused_as(topic.add_producer(make_producer("b")))
    assert isinstance(topic.add_producer(make_producer("a", epoch=1)), Replaced)


def test_a_fenced_topic_does_nothing_any_more() -> None:
    """No delivery, no receipt, no drop; who wants in is told to come back; leaving still works."""
    topic, producer = produced()
    consumer = joined(topic)
    assert ([], []) == (topic.fence().receipts, topic.fence().deliveries)
    assert topic.is_fenced
    for outcome in (
        send(topic, producer),
        topic.flow(consumer, 5, 0),
        topic.writable(consumer, is_writable=True, now_ms=0),
        topic.tick(10**6),
    ):
        assert ([], [], 0) == (outcome.deliveries, outcome.receipts, outcome.dropped)
    assert (0, 0) == (producer.published.messages, topic.subscriptions["s"].dropped.messages)
    assert ServerError.SERVICE_NOT_READY is refused_as(topic.add_producer(make_producer("q")))
    assert ServerError.SERVICE_NOT_READY is refused_as(topic.subscribe(make_consumer(), "s", EXCLUSIVE, is_durable=True, now_ms=0))
    topic.remove_consumers([consumer])
    topic.remove_producers([producer])
    assert topic.is_idle


def test_a_topic_without_expectations_never_wakes() -> None:
    """Nothing has a deadline on a topic that did not just move."""
    topic = make_topic()
    joined(topic)
    assert topic.wake_at_ms is None
    assert [] == topic.tick(10**9).deliveries


def test_nobody_is_told_who_is_active_on_a_fenced_topic() -> None:
    """A consumer that leaves it makes room for one that has gone on, and may have given its id to another consumer."""
    topic = make_topic()
    active, other = joined(topic, "a", kind=SubscriptionKind.FAILOVER), joined(topic, "b", kind=SubscriptionKind.FAILOVER)
    topic.fence()
    assert [] == topic.remove_consumers([active])
    assert [] == topic.remove_consumers([other])
