"""Test a topic at rest: admission, publishing, bounds and fencing."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.topics.clients import Refusal
from equipoise.brokers.pulsar.topics.dispatch import PERMITS_MAX
from equipoise.brokers.pulsar.topics.stats import kind_name
from equipoise.brokers.pulsar.topics.topic import Replaced, TopicLimits
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import AccessMode, Sent, SubscriptionKind
from tests.pulsar.topics import (
    delivered,
    joined,
    make_consumer,
    make_producer,
    make_topic,
    produced,
    receipted,
    refused_as,
    send,
    sticky,
)

SHARED, EXCLUSIVE, KEY_SHARED = (
    SubscriptionKind.SHARED,
    SubscriptionKind.EXCLUSIVE,
    SubscriptionKind.KEY_SHARED,
)


def test_each_subscription_gets_an_entry_and_its_producer_a_receipt() -> None:
    """Entry ids rise from 1. The receipt repeats the ids of the SEND."""
    topic, producer = make_topic(), make_producer()
    assert topic.add_producer(producer) is None
    a, b = joined(topic, "a", "s1"), joined(topic, "b", "s2", SHARED)
    outcome = topic.publish(producer, [Sent(7, 9, 3, b"12345")], 1)
    assert [(a, (1, b"12345", 3)), (b, (1, b"12345", 3))] == outcome.deliveries
    assert [(producer, 7, 9, 1)] == outcome.receipts
    assert 0 == outcome.dropped
    assert [("a", 2), ("b", 2)] == delivered(send(topic, producer))
    assert (1000 - 4, 4, 10) == (a.permits, a.delivered.messages, a.delivered.bytes)
    assert (4, 10) == (producer.published.messages, topic.published.bytes)
    assert (8, 20) == (topic.delivered.messages, topic.delivered.bytes)


def test_an_entry_without_a_ready_consumer_is_dropped_and_receipted() -> None:
    """It is dropped for that subscription only. A batch may take the last permit below 0."""
    topic, producer = produced()
    poor, rich = joined(topic, "poor", "s1", permits=1), joined(topic, "rich", "s2")
    assert [("poor", 1), ("rich", 1)] == delivered(send(topic, producer, messages=5))
    assert -4 == poor.permits
    outcome = send(topic, producer, messages=5)
    assert ([("rich", 2)], [2], 5) == (delivered(outcome), receipted(outcome), outcome.dropped)
    topic.writable(rich, is_writable=False, now_ms=0)
    assert 2 == send(topic, producer).dropped
    assert (6, 1) == (
        topic.subscriptions["s1"].dropped.messages,
        topic.subscriptions["s2"].dropped.messages,
    )
    topic.writable(rich, is_writable=True, now_ms=0)
    assert [("rich", 4)] == delivered(send(topic, producer))


def test_a_message_without_subscriptions_is_not_kept() -> None:
    topic, producer = produced()
    assert [1] == receipted(send(topic, producer))
    consumer = make_consumer()
    topic.subscribe(consumer, "s", EXCLUSIVE, now_ms=0)
    assert [] == delivered(topic.flow(consumer, 10, 0))


def test_permits_are_bounded() -> None:
    topic = make_topic()
    consumer = joined(topic, permits=2**32 - 1)
    topic.flow(consumer, 2**32 - 1, 0)
    assert PERMITS_MAX == consumer.permits


def test_a_producer_name_is_refused_until_its_holder_is_removed() -> None:
    """The refusal names the holder, which the caller probes."""
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


def test_a_producer_with_a_higher_epoch_replaces_its_former_self() -> None:
    """It must have the same connection and id."""
    topic, link = make_topic(), object()
    former = make_producer(link=link, producer_id=3, epoch=1)
    topic.add_producer(former)
    assert ServerError.PRODUCER_BUSY is refused_as(
        topic.add_producer(make_producer(link=link, producer_id=3, epoch=1))
    )
    assert ServerError.PRODUCER_BUSY is refused_as(
        topic.add_producer(make_producer(link=link, producer_id=4, epoch=2))
    )
    successor = make_producer(link=link, producer_id=3, epoch=2)
    assert Replaced(former=former) == topic.add_producer(successor)
    assert {"p": successor} == dict(topic.producers)


def test_an_exclusive_producer_stays_alone() -> None:
    """Pulsar's other exclusive modes are refused."""
    topic = make_topic()
    first = make_producer("a")
    topic.add_producer(first)
    assert ServerError.PRODUCER_FENCED is refused_as(
        topic.add_producer(make_producer("b", access_mode=AccessMode.EXCLUSIVE))
    )
    topic.remove_producers([first])
    assert topic.add_producer(make_producer("b", access_mode=AccessMode.EXCLUSIVE)) is None
    assert ServerError.PRODUCER_BUSY is refused_as(topic.add_producer(make_producer("c")))
    assert ServerError.PRODUCER_FENCED is refused_as(
        topic.add_producer(make_producer("d", access_mode=AccessMode.EXCLUSIVE))
    )
    for mode in (AccessMode.WAIT_FOR_EXCLUSIVE, AccessMode.EXCLUSIVE_WITH_FENCING):
        assert ServerError.NOT_ALLOWED is refused_as(
            topic.add_producer(make_producer("e", access_mode=mode))
        )


def test_all_consumers_of_a_subscription_have_one_kind() -> None:
    """The kind may change while no consumer is connected."""
    topic = make_topic()
    first = joined(topic, "a", kind=KEY_SHARED)
    other = make_consumer("b", key_shared=sticky((0, 9)))
    for kind in (SHARED, EXCLUSIVE, KEY_SHARED):
        assert ServerError.CONSUMER_BUSY is refused_as(topic.subscribe(other, "s", kind, now_ms=0))
    assert [] == topic.remove_consumers([first])
    assert "s" not in topic.subscriptions
    assert [] == topic.subscribe(other, "s", KEY_SHARED, now_ms=0)
    assert (other,) == topic.consumers


def test_only_key_shared_uses_key_settings() -> None:
    topic = make_topic()
    joined(topic, "a", kind=SHARED)
    odd = make_consumer("b", key_shared=sticky((9, 0)))
    assert [] == topic.subscribe(odd, "s", SHARED, now_ms=0)


def test_a_consumer_has_the_kind_of_its_subscription() -> None:
    topic = make_topic()
    consumer = joined(topic, kind=KEY_SHARED)
    assert "Key_Shared" == kind_name(topic.kind_of(consumer))
    topic.remove_consumers([consumer])
    assert "" == kind_name(topic.kind_of(consumer))


def test_a_refused_first_consumer_leaves_no_subscription() -> None:
    topic = make_topic()
    answer = topic.subscribe(make_consumer(key_shared=sticky((9, 0))), "s", KEY_SHARED, now_ms=0)
    assert ServerError.CONSUMER_ASSIGN_ERROR is refused_as(answer)
    assert topic.is_idle


def test_changes_of_the_active_consumer_are_returned() -> None:
    topic = make_topic()
    b, a = make_consumer("b"), make_consumer("a")
    assert [(b, True)] == topic.subscribe(b, "s", SubscriptionKind.FAILOVER, now_ms=0)
    assert [(a, True), (b, False)] == topic.subscribe(a, "s", SubscriptionKind.FAILOVER, now_ms=0)
    assert [(b, True)] == topic.remove_consumers([a])
    assert [] == topic.remove_consumers([a])


def test_a_consumer_unsubscribes_only_if_it_is_alone() -> None:
    topic = make_topic()
    a, b = joined(topic, "a", kind=SHARED), joined(topic, "b", kind=SHARED)
    assert ServerError.METADATA_ERROR is refused_as(topic.unsubscribe(a, is_forced=False))
    topic.remove_consumers([b])
    assert ServerError.METADATA_ERROR is refused_as(topic.unsubscribe(b, is_forced=True))
    assert [] == topic.unsubscribe(a, is_forced=False)
    assert topic.is_idle
    assert [] == topic.remove_consumers([a])
    assert [] == delivered(topic.flow(a, 10, 0))


def test_a_forced_unsubscribe_removes_the_other_consumers() -> None:
    """Consumers of other subscriptions stay."""
    topic = make_topic()
    a, b, other = (
        joined(topic, "a", kind=SHARED),
        joined(topic, "b", kind=SHARED),
        joined(topic, "c", "other"),
    )
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
    topic = make_topic(limits=limits)
    joined(topic, "a", "s1", SHARED)
    assert error is refused_as(topic.subscribe(make_consumer("b"), "s2", SHARED, now_ms=0))
    assert ["s1"] == list(topic.subscriptions)
    assert 1 == len(topic.consumers)


def test_the_consumers_of_one_subscription_are_bounded() -> None:
    topic = make_topic(limits=TopicLimits(subscription_consumers_max=2))
    joined(topic, "a", kind=SHARED)
    joined(topic, "b", kind=SHARED)
    assert ServerError.CONSUMER_BUSY is refused_as(
        topic.subscribe(make_consumer("c"), "s", SHARED, now_ms=0)
    )
    joined(topic, "c", "other", SHARED)


def test_consumers_leave_together_in_one_step() -> None:
    """The remaining ones learn once which is active."""
    topic = make_topic()
    failover = [joined(topic, name, "f", SubscriptionKind.FAILOVER) for name in "abcd"]
    alone, shared = (
        joined(topic, "x", "alone"),
        [joined(topic, name, "shared", SHARED) for name in "xy"],
    )
    assert [(failover[3], True)] == topic.remove_consumers(
        [*failover[:3], alone, shared[0], make_consumer("stranger")]
    )
    assert ["f", "shared"] == list(topic.subscriptions)
    assert (failover[3], shared[1]) == topic.consumers


def test_the_slot_of_an_entry_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shared by all Key_Shared subscriptions. For entries that waited it is computed once
    more.
    """
    asked: list[bytes] = []

    def slot_of(block: bytes) -> int:
        asked.append(block)
        return 7

    for module in ("topic", "dispatch"):
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
    """A producer that replaces its former self is not counted again."""
    topic = make_topic(limits=TopicLimits(producers_max=1))
    assert topic.add_producer(make_producer("a")) is None
    assert ServerError.PRODUCER_BUSY is refused_as(topic.add_producer(make_producer("b")))
    assert isinstance(topic.add_producer(make_producer("a", epoch=1)), Replaced)


def test_a_fenced_topic_only_lets_clients_leave() -> None:
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
    assert ServerError.SERVICE_NOT_READY is refused_as(
        topic.subscribe(make_consumer(), "s", EXCLUSIVE, now_ms=0)
    )
    topic.remove_consumers([consumer])
    topic.remove_producers([producer])
    assert topic.is_idle


def test_a_topic_that_did_not_move_has_no_deadline() -> None:
    topic = make_topic()
    joined(topic)
    assert topic.wake_at_ms is None
    assert [] == topic.tick(10**9).deliveries


def test_a_fenced_topic_returns_no_changes_of_the_active_consumer() -> None:
    """Its clients have moved on, and may have given the id to another consumer."""
    topic = make_topic()
    active, other = (
        joined(topic, "a", kind=SubscriptionKind.FAILOVER),
        joined(topic, "b", kind=SubscriptionKind.FAILOVER),
    )
    topic.fence()
    assert [] == topic.remove_consumers([active])
    assert [] == topic.remove_consumers([other])
