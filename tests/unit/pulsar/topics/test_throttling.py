"""Token buckets, and what they do to a topic."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.pulsar.topics.arrivals import Entry
from equipoise.brokers.pulsar.topics.throttling import TURN_LOST_MS, Bucket, Patience, Rate, Turns
from equipoise.brokers.pulsar.topics.topic import TopicLimits
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import Sent, SubscriptionKind
from tests.pulsar.topics import (
    delivered,
    expecting,
    joined,
    make_consumer,
    make_producer,
    make_topic,
    produced,
    receipted,
    refused_as,
    send,
    state_of,
)


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


def test_a_debt_is_paid_before_the_next_entry() -> None:
    bucket = Bucket(Rate(bytes=1_000), now_ms=0)
    bucket.spend(1, 5_000)
    assert 4_000 < bucket.wait_ms <= 4_001
    bucket.refill(3_900)
    assert not has_tokens(bucket)
    bucket.refill(3_900 + bucket.wait_ms)
    assert has_tokens(bucket)


def test_a_debt_is_at_most_ten_periods() -> None:
    bucket = Bucket(Rate(messages=10, bytes=10), now_ms=0)
    bucket.spend(1_000, 5_000_000)
    assert 10_000 <= bucket.wait_ms <= 10_001


def test_a_producer_exceeds_its_rate_by_one_entry() -> None:
    topic, producer = produced(limits=TopicLimits(publish_rate=Rate(messages=5)))
    patience = Patience(wait_ms=0, now_ms=0)
    sent = [Sent(number, 0, 2, b"block") for number in range(9)]
    assert 3 == topic.room_for(producer, sent, patience, 0)
    topic.publish(producer, sent[:3], 0)
    assert (0, 201) == (topic.room_for(producer, sent[3:], patience, 0), topic.rest_ms)
    assert (1, 0) == (topic.room_for(producer, sent[3:], patience, 201), topic.rest_ms)


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


def test_a_policy_without_rates_fills_no_bucket() -> None:
    rates: dict[str, Any] = {"publish_rate": Rate(messages=1), "dispatch_rate": Rate(messages=1)}
    topic, producer = produced(limits=TopicLimits(**rates))
    joined(topic)
    assert 1 == len(send(topic, producer, now_ms=0).deliveries)
    topic.limit(TopicLimits(producers_max=5, **rates), 0)
    assert 0 == len(send(topic, producer, now_ms=0).deliveries)
    assert topic.rest_ms > 1_000


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


def test_what_a_subscription_may_not_get_is_dropped_for_it_alone_and_counted() -> None:
    limits = TopicLimits(subscription_dispatch_rate=Rate(messages=2))
    topic, producer = produced(limits=limits)
    joined(topic, "a", "s1")
    first = [delivered(send(topic, producer, now_ms=0)) for _ in range(3)]
    assert [[("a", 1)], [("a", 2)], []] == first
    joined(topic, "b", "s2", now_ms=0)
    assert [("b", 4)] == delivered(send(topic, producer, now_ms=0))
    assert (2, 0) == (
        topic.subscriptions["s1"].dropped.messages,
        topic.subscriptions["s2"].dropped.messages,
    )
    assert [("a", 5), ("b", 5)] == delivered(send(topic, producer, now_ms=1_000))


def test_subscriptions_share_the_dispatch_rate_of_their_topic() -> None:
    topic, producer = produced(limits=TopicLimits(dispatch_rate=Rate(bytes=10)))
    joined(topic, "a", "s1")
    joined(topic, "b", "s2")
    outcome = send(topic, producer, b"12345678901", now_ms=0)
    assert ([("a", 1)], 1) == (delivered(outcome), outcome.dropped)
    assert [1] == receipted(outcome)


def test_limits_change_while_clients_are_connected() -> None:
    topic, producer = produced()
    joined(topic, "a", "s1", SubscriptionKind.SHARED)
    topic.limit(
        TopicLimits(
            dispatch_rate=Rate(messages=1),
            producers_max=1,
            consumers_max=1,
            publish_rate=Rate(messages=1),
        ),
        0,
    )
    assert [1, 0] == [len(send(topic, producer, now_ms=0).deliveries) for _ in range(2)]
    assert ServerError.PRODUCER_BUSY == refused_as(topic.add_producer(make_producer("q")))
    limits = TopicLimits(kinds=frozenset({SubscriptionKind.EXCLUSIVE}))
    topic.limit(limits, 0)
    assert [1, 1] == [len(send(topic, producer, now_ms=0).deliveries) for _ in range(2)]
    answer = topic.subscribe(make_consumer("b"), "s1", SubscriptionKind.SHARED, now_ms=0)
    assert ServerError.NOT_ALLOWED == refused_as(answer)


def test_what_waits_after_a_move_is_not_throttled() -> None:
    """Messages with receipts must not be lost in a move."""
    state = state_of(
        expecting("a", kind=SubscriptionKind.SHARED, waiting=(38, 39, 40)),
        entries=entries(38, 39, 40),
    )
    topic, _ = produced(state, limits=TopicLimits(subscription_dispatch_rate=Rate(messages=1)))
    consumer = make_consumer("a")
    topic.subscribe(consumer, "s", SubscriptionKind.SHARED, now_ms=0)
    assert [("a", 38), ("a", 39), ("a", 40)] == delivered(topic.flow(consumer, 10, 0))


def entries(*ids: int) -> tuple[Entry, ...]:
    """Entries of one message."""
    return tuple(Entry(entry_id, b"block", 1) for entry_id in ids)
