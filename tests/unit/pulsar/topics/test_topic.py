"""Test what the stories of a topic cannot show: what it counts and what it computes once."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.topics.arrivals import Entry
from equipoise.brokers.pulsar.topics.dispatch import PERMITS_MAX
from equipoise.brokers.pulsar.wire.requests import Sent, SubscriptionKind
from tests.pulsar.topics import (
    delivered,
    expecting,
    flowed,
    joined,
    make_producer,
    make_topic,
    produced,
    send,
    state_of,
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
    assert [(a, Entry(1, b"12345", 3)), (b, Entry(1, b"12345", 3))] == outcome.deliveries
    assert [(producer, 7, 9, 1)] == outcome.receipts
    assert 0 == outcome.dropped
    assert [("a", 2), ("b", 2)] == delivered(send(topic, producer))
    assert (1000 - 4, 4, 10) == (a.permits, a.delivered.messages, a.delivered.bytes)
    assert (4, 10) == (producer.published.messages, topic.published.bytes)
    assert (8, 20) == (topic.delivered.messages, topic.delivered.bytes)


def test_ids_without_entries_are_skipped() -> None:
    """A former owner hands over any state."""
    entries = (Entry(0, b"", 1),)
    topic, _ = produced(state_of(expecting("a", waiting=(0, 9)), expecting(), entries=entries))
    consumer = joined(topic, "a", kind=SHARED, permits=0)
    assert [("a", 0)] == delivered(flowed(topic, consumer, 9, 0))


def test_permits_are_bounded() -> None:
    topic = make_topic()
    consumer = joined(topic, permits=2**32 - 1)
    topic.flow(consumer, 2**32 - 1)
    assert PERMITS_MAX == consumer.permits


def test_the_slot_of_an_entry_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shared by all Key_Shared subscriptions, also after a move."""
    asked: list[bytes] = []

    def slot_of(block: bytes) -> int:
        asked.append(block)
        return 7

    monkeypatch.setattr("equipoise.brokers.pulsar.topics.arrivals.slot_of", slot_of)
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
        flowed(moved, consumer, 5, 1)
        flowed(moved, consumer, 5, 1)
    assert [b"3"] == asked
