"""Test how long entries wait for permits of consumers before they are published and dropped."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from equipoise.brokers.pulsar.topics.clients import Producer
from equipoise.brokers.pulsar.topics.throttling import Bucket, Patience, Rate
from equipoise.brokers.pulsar.topics.topic import Topic, TopicLimits
from equipoise.brokers.pulsar.wire.requests import Sent, SubscriptionKind
from tests.pulsar.pulsar_speech import entry
from tests.pulsar.topics import joined, make_producer, make_topic, send

LIMITS = TopicLimits(permits_wait_ms=100)


def entries(*keys: str) -> list[Sent]:
    """Entries of a producer, one for each key."""
    return [Sent(0, 0, 1, entry(partition_key=key)) for key in keys]


def produced() -> tuple[Topic, Producer]:
    """A topic, and its producer on a connection of its own."""
    topic, producer = make_topic(limits=LIMITS), make_producer(link="the producer's")
    topic.add_producer(producer)
    return topic, producer


def room_for(topic: Topic, producer: Producer, sent: Sequence[Sent], now_ms: int) -> int:
    """How many entries to publish, for a producer on a connection that has not waited yet."""
    return topic.room_for(producer, sent, Patience(wait_ms=100, now_ms=now_ms), now_ms)


def waited_ms(patience: Patience, *, from_ms: int, to_ms: int) -> int:
    """Ask each millisecond. Return how many of them were waited."""
    return sum(patience.wait(now_ms) for now_ms in range(from_ms, to_ms))


def test_a_wait_is_bounded_at_once_and_in_the_long_run() -> None:
    patience = Patience(wait_ms=100, now_ms=0)
    assert 100 <= waited_ms(patience, from_ms=0, to_ms=115) < 115
    assert waited_ms(patience, from_ms=115, to_ms=10_115) == pytest.approx(1_000, rel=0.05)
    patience.stop(10_115)
    assert 100 <= waited_ms(patience, from_ms=12_000, to_ms=12_115) < 115, (
        "a second without a wait restores all of it"
    )


def test_time_between_waits_is_free() -> None:
    patience = Patience(wait_ms=100, now_ms=0)
    for now_ms in range(0, 10_000, 100):
        assert patience.wait(now_ms)
        patience.stop(now_ms + 5)


def test_a_wait_that_nobody_ends_costs_no_more_than_a_second() -> None:
    """Its producer left."""
    patience = Patience(wait_ms=100, now_ms=0)
    assert patience.wait(0)
    assert not patience.wait(60_000)
    assert patience.wait(61_001)


def test_without_time_nothing_waits() -> None:
    patience = Patience(wait_ms=0, now_ms=0)
    assert 0 == waited_ms(patience, from_ms=0, to_ms=100)


@pytest.mark.parametrize("kind", SubscriptionKind)
def test_entries_beyond_the_permits_wait_until_more_are_granted(kind: SubscriptionKind) -> None:
    topic, producer = produced()
    consumer = joined(topic, "c", "s", kind, permits=2)
    sent = entries("a", "b", "c")
    assert 2 == room_for(topic, producer, sent, 0)
    assert 0 == topic.publish(producer, sent[:2], 0).dropped
    assert 0 == room_for(topic, producer, sent[2:], 0)
    topic.flow(consumer, 1, 5)
    assert 1 == room_for(topic, producer, sent[2:], 6)
    assert 0 == topic.publish(producer, sent[2:], 6).dropped


@pytest.mark.parametrize("kind", SubscriptionKind)
def test_entries_wait_for_a_consumer_that_does_not_read_for_a_moment(
    kind: SubscriptionKind,
) -> None:
    topic, producer = produced()
    consumer = joined(topic, "c", "s", kind)
    topic.writable(consumer, is_writable=False, now_ms=0)
    assert 0 == room_for(topic, producer, entries("a"), 0)
    topic.writable(consumer, is_writable=True, now_ms=1)
    assert 1 == room_for(topic, producer, entries("a"), 1)


def test_a_consumer_that_stalls_costs_one_wait() -> None:
    """After it nothing waits for the consumer, until it grants permits again."""
    topic, producer = produced()
    consumer = joined(topic, permits=1)
    send(topic, producer)
    sent = entries("a", "b")
    waits = [now_ms for now_ms in range(3_000) if room_for(topic, producer, sent, now_ms) == 0]
    assert list(range(len(waits))) == waits
    assert 100 <= len(waits) < 115
    assert 2 == topic.publish(producer, sent, 3_000).dropped
    topic.flow(consumer, 1, 3_000)
    assert 1 == room_for(topic, producer, sent, 3_000)


def test_only_the_subscription_that_stalls_loses_messages() -> None:
    """When the wait for it is over, the entries wait for the permits of the other one as before."""
    topic, producer = produced()
    joined(topic, "stalled", "s1", permits=1)
    joined(topic, "steady", "s2", permits=3)
    send(topic, producer)
    sent = entries("a", "b", "c")
    assert 2 == next(
        room for now_ms in range(3_000) if (room := room_for(topic, producer, sent, now_ms))
    )


def test_nothing_waits_for_a_consumer_that_never_granted_permits() -> None:
    topic, producer = produced()
    joined(topic, permits=0)
    assert 1 == room_for(topic, producer, entries("a"), 0)


def test_nothing_waits_for_permits_that_come_behind_it() -> None:
    """The producer and the only consumer share a connection, on which the permits come behind the
    entries.
    """
    topic, producer = produced()
    joined(topic, permits=1).link = producer.link
    send(topic, producer)
    assert 2 == room_for(topic, producer, entries("a", "b"), 0)


def test_nothing_waits_on_a_topic_that_moves() -> None:
    topic, producer = produced()
    joined(topic, permits=1)
    send(topic, producer)
    assert 0 == room_for(topic, producer, entries("a"), 0)
    topic.fence()
    assert 1 == room_for(topic, producer, entries("a"), 1)


def test_the_topics_of_one_connection_share_its_patience() -> None:
    """All topics together delay what else comes on the connection by a tenth of the time."""
    of_connection, waited = Patience(wait_ms=100, now_ms=0), 0
    stalled = []
    for number in range(20):
        topic, producer = produced()
        stalled.append((topic, producer, joined(topic, f"c{number}", permits=0)))
    now_ms = 0
    while now_ms < 10_000:
        for topic, producer, consumer in stalled:
            topic.flow(consumer, 1, now_ms)
            send(topic, producer, now_ms=now_ms)
            while not topic.room_for(producer, entries("a"), of_connection, now_ms):
                now_ms, waited = now_ms + 1, waited + 1
            now_ms += 1
    assert 500 < waited < 1_200


def test_a_pause_by_the_publish_rate_costs_no_patience() -> None:
    topic, producer = produced()
    joined(topic, permits=1)
    of_connection = Patience(wait_ms=100, now_ms=0)
    send(topic, producer)
    assert 0 == topic.room_for(producer, entries("a"), of_connection, 0), "it waits for permits"
    topic.publish_bucket = Bucket(Rate(messages=1), now_ms=0)
    topic.publish_bucket.spend(2, 0)
    assert 0 == topic.room_for(producer, entries("a"), of_connection, 1), "it waits for the rate"
    assert 999 < topic.rest_ms <= 1_000
    waits = [
        now_ms
        for now_ms in range(1_001, 2_000)
        if topic.room_for(producer, entries("a"), of_connection, now_ms) == 0
    ]
    assert 95 <= len(waits)
