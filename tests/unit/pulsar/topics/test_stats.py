"""Test the stats of a topic, under Pulsar's names, and the meters that they come from."""

from __future__ import annotations

import orjson

from equipoise.brokers.pulsar.topics.arrivals import Entry
from equipoise.brokers.pulsar.topics.clients import Meter
from equipoise.brokers.pulsar.topics.stats import kind_name, topic_stats
from equipoise.brokers.pulsar.topics.topic import SubscriptionState, TopicState
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind
from tests.pulsar.topics import joined, make_consumer, make_topic, produced, send, sticky


def test_the_stats_of_a_busy_topic() -> None:
    topic, producer = produced()
    joined(topic, "a", "s1", permits=3)
    joined(topic, "b", "s2", SubscriptionKind.SHARED)
    for _ in range(2):
        send(topic, producer, b"12345", messages=3)
    topic.roll(2_000)
    stats = orjson.loads(orjson.dumps(topic_stats(topic, owner_broker="broker-1:8080")))
    assert (3.0, 5.0, 4.5, 7.5) == tuple(
        stats[name] for name in ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")
    )
    assert (6, 10, 9, 15) == tuple(
        stats[name]
        for name in ("msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter")
    )
    assert (5 / 3, "broker-1:8080", {}) == (
        stats["averageMsgSize"],
        stats["ownerBroker"],
        stats["replication"],
    )
    (publisher,) = stats["publishers"]
    assert ("p", "Shared", 3.0, "192.0.2.1:5") == tuple(
        publisher[name] for name in ("producerName", "accessMode", "msgRateIn", "address")
    )
    one, two = stats["subscriptions"]["s1"], stats["subscriptions"]["s2"]
    assert ("Exclusive", "a", 1.5, 1.5, 0) == tuple(
        one[name]
        for name in ("type", "activeConsumerName", "msgDropRate", "msgRateOut", "msgBacklog")
    )
    assert ("Shared", None, 0.0, 3.0) == tuple(
        two[name] for name in ("type", "activeConsumerName", "msgDropRate", "msgRateOut")
    )
    assert ("b", 994, 6) == tuple(
        two["consumers"][0][name] for name in ("consumerName", "availablePermits", "msgOutCounter")
    )


def test_the_stats_of_a_topic_that_waits() -> None:
    """Waiting entries are the backlog. A topic without messages has no average."""
    state = SubscriptionState(
        name="s", kind=SubscriptionKind.FAILOVER, expected=("a",), waiting=(1,)
    )
    topic = make_topic(
        TopicState(last_entry_id=1, subscriptions=(state,), entries=(Entry(1, b"12345", 3),))
    )
    stats = orjson.loads(orjson.dumps(topic_stats(topic, owner_broker="b")))
    waiting = stats["subscriptions"]["s"]
    assert (3, 5, 5, 0.0) == (
        waiting["msgBacklog"],
        waiting["backlogSize"],
        stats["backlogSize"],
        stats["averageMsgSize"],
    )
    assert (None, [], None) == (
        waiting["activeConsumerName"],
        waiting["consumers"],
        waiting["keySharedMode"],
    )


def test_the_mode_of_a_key_shared_subscription() -> None:
    topic = make_topic()
    joined(topic, "a", "auto", SubscriptionKind.KEY_SHARED)
    topic.subscribe(
        make_consumer("b", key_shared=sticky((0, 9))),
        "sticky",
        SubscriptionKind.KEY_SHARED,
        now_ms=0,
    )
    stats = orjson.loads(orjson.dumps(topic_stats(topic, owner_broker="b")))["subscriptions"]
    assert ("AUTO_SPLIT", "STICKY", "Key_Shared") == (
        stats["auto"]["keySharedMode"],
        stats["sticky"]["keySharedMode"],
        stats["auto"]["type"],
    )
    assert not stats["auto"]["isDurable"]


def test_rates_are_those_of_the_last_window() -> None:
    meter = Meter(now_ms=1_000)
    meter.messages += 30
    meter.bytes += 600
    assert (0.0, 0.0) == (meter.message_rate, meter.byte_rate)
    meter.roll(3_000)
    assert (15.0, 300.0) == (meter.message_rate, meter.byte_rate)
    meter.messages += 1
    meter.roll(4_000)
    assert (1.0, 0.0) == (meter.message_rate, meter.byte_rate)
    assert (31, 600) == (meter.messages, meter.bytes)


def test_a_window_without_time_changes_nothing() -> None:
    meter = Meter(now_ms=0)
    meter.messages += 5
    meter.roll(1_000)
    meter.messages += 7
    meter.roll(1_000)
    assert 5.0 == meter.message_rate
    meter.roll(2_000)
    assert 7.0 == meter.message_rate


def test_a_consumer_has_the_kind_of_its_subscription() -> None:
    topic = make_topic()
    consumer = joined(topic, kind=SubscriptionKind.KEY_SHARED)
    assert "Key_Shared" == kind_name(topic.kind_of(consumer))
    topic.remove_consumers([consumer])
    assert "" == kind_name(topic.kind_of(consumer))
