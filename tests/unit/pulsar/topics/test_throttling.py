"""Test token buckets, turns, and how long producers wait for permits."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.pulsar.topics.clients import Producer
from equipoise.brokers.pulsar.topics.throttling import TURN_LOST_MS, Bucket, Patience, Rate, Turns
from equipoise.brokers.pulsar.topics.topic import Topic, TopicLimits
from equipoise.brokers.pulsar.wire.requests import Sent
from tests.pulsar.pulsar_speech import entry
from tests.pulsar.topics import joined, make_producer, make_topic, send


def has_tokens(bucket: Bucket) -> bool:
    return not bucket.is_empty


def test_a_bucket_starts_full_and_refills_over_its_period() -> None:
    bucket = Bucket(Rate(messages=10, period_ms=2_000), now_ms=0)
    bucket.spend(10, 1_000_000)
    assert not has_tokens(bucket)
    assert 0 < bucket.wait_ms <= 200
    bucket.refill(200)
    assert has_tokens(bucket)
    assert 0 == bucket.wait_ms
    bucket.spend(1, 1)
    assert not has_tokens(bucket)


def test_the_tokens_of_a_part_of_an_entry_allow_none() -> None:
    bucket = Bucket(Rate(messages=1), now_ms=0)
    bucket.spend(1, 0)
    bucket.refill(999)
    assert not has_tokens(bucket)
    bucket.refill(1_000)
    assert has_tokens(bucket)


def test_a_debt_is_paid_before_the_next_entry() -> None:
    bucket = Bucket(Rate(bytes=1_000), now_ms=0)
    bucket.spend(1, 5_000)
    assert 4_000 < bucket.wait_ms <= 4_001
    bucket.refill(3_900)
    assert not has_tokens(bucket)
    bucket.refill(3_900 + bucket.wait_ms)
    assert has_tokens(bucket)


def test_a_debt_is_paid_in_ten_periods_at_most() -> None:
    bucket = Bucket(Rate(messages=10, bytes=10), now_ms=0)
    bucket.spend(1_000, 5_000_000)
    assert 10_000 <= bucket.wait_ms <= 10_001


@pytest.mark.parametrize("rate", [Rate(messages=20), Rate(messages=2_000), Rate(bytes=20_000)])
@pytest.mark.parametrize("gone", [None, "p0"])
def test_producers_share_the_publish_rate(rate: Rate, gone: str | None) -> None:
    """Four producers without end ask again when they are told to, in the same order. One that is
    gone takes no turn.
    """
    topic = make_topic(limits=TopicLimits(publish_rate=rate))
    producers = [make_producer(f"p{number}") for number in range(4)]
    for producer in producers:
        topic.add_producer(producer)
    sent, waits = [Sent(0, 0, 1, b"x" * 1_000)] * 64, Patience(wait_ms=0, now_ms=0)
    published, asks = Counter[str](), [(0, producer) for producer in producers]
    while asks[0][0] < 20_000:
        now_ms, producer = asks.pop(0)
        if now_ms > 1_000 and producer.name == gone:
            topic.remove_producers([producer])
            continue
        while room := topic.room_for(producer, sent, waits, now_ms):
            topic.publish(producer, sent[:room], now_ms)
            published[producer.name] += room
        asks.append((now_ms + min(topic.rest_ms, 500), producer))
        asks.sort(key=lambda ask: ask[0])
    allowed = 21 * (rate.messages or 20)
    assert published.total() == pytest.approx(allowed, rel=0.01)
    del published[gone or ""]
    assert max(published.values()) <= 1.5 * min(published.values())


def test_a_producer_that_asks_no_longer_loses_its_turn() -> None:
    turns, one, other = Turns(), make_producer("one"), make_producer("other")
    assert (0, 0) == (turns.take(one, 0, 0), turns.take(other, 1, 0))
    assert (0, 5) == (turns.take(other, 5, TURN_LOST_MS - 1), turns.take(other, 5, TURN_LOST_MS))
    assert not turns.are_awaited


def test_an_idle_time_saves_the_tokens_of_one_period_only() -> None:
    bucket = Bucket(Rate(messages=5), now_ms=0)
    bucket.refill(3_600_000)
    bucket.spend(5, 0)
    assert not has_tokens(bucket)


@given(
    messages=st.integers(10, 1_000),
    period_ms=st.integers(1, 10_000),
    steps=st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 100)), max_size=50),
)
def test_over_any_time_no_more_passes_than_the_rate_one_period_and_one_entry(
    messages: int, period_ms: int, steps: list[tuple[int, int]]
) -> None:
    bucket, now_ms, passed, largest = (
        Bucket(Rate(messages=messages, period_ms=period_ms), now_ms=0),
        0,
        0,
        0,
    )
    for elapsed_ms, size in steps:
        now_ms += elapsed_ms
        bucket.refill(now_ms)
        if not bucket.is_empty:
            bucket.spend(size, 0)
            passed += size
            largest = max(largest, size)
    assert passed <= messages * (1 + now_ms / period_ms) + largest + 1e-6


@pytest.mark.parametrize("rate", [Rate(), Rate(messages=None, bytes=None, period_ms=5)])
def test_no_limit_is_never_empty(rate: Rate) -> None:
    bucket = Bucket(rate, now_ms=0)
    bucket.spend(10**9, 10**15)
    bucket.refill(1)
    assert has_tokens(bucket)


ENTRY = [Sent(0, 0, 1, entry())]


def of_a_connection() -> tuple[Topic, Producer]:
    """A topic whose producers wait for permits, and its producer, on a connection of its own."""
    topic = make_topic(limits=TopicLimits(permits_wait_ms=100))
    producer = make_producer(link="the producer's")
    topic.add_producer(producer)
    return topic, producer


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


def test_the_topics_of_one_connection_share_its_patience() -> None:
    """All topics together delay what else comes on the connection by a tenth of the time."""
    of_connection, waited = Patience(wait_ms=100, now_ms=0), 0
    stalled = []
    for number in range(20):
        topic, producer = of_a_connection()
        stalled.append((topic, producer, joined(topic, f"c{number}", permits=0)))
    now_ms = 0
    while now_ms < 10_000:
        for topic, producer, consumer in stalled:
            topic.flow(consumer, 1)
            send(topic, producer, now_ms=now_ms)
            while not topic.room_for(producer, ENTRY, of_connection, now_ms):
                now_ms, waited = now_ms + 1, waited + 1
            now_ms += 1
    assert 500 < waited < 1_200


def test_a_pause_by_the_publish_rate_costs_no_patience() -> None:
    topic, producer = of_a_connection()
    joined(topic, permits=1)
    of_connection = Patience(wait_ms=100, now_ms=0)
    send(topic, producer)
    assert 0 == topic.room_for(producer, ENTRY, of_connection, 0), "it waits for permits"
    topic.publish_bucket = Bucket(Rate(messages=1), now_ms=0)
    topic.publish_bucket.spend(1, 0)
    assert 0 == topic.room_for(producer, ENTRY, of_connection, 1), "it waits for the rate"
    assert 999 <= topic.rest_ms <= 1_000
    waits = [
        now_ms
        for now_ms in range(1_001, 2_000)
        if topic.room_for(producer, ENTRY, of_connection, now_ms) == 0
    ]
    assert 95 <= len(waits)
