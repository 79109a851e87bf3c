"""Build topics, producers and consumers for tests."""

from __future__ import annotations

from typing import cast

from equipoise.brokers.pulsar.topics.arrivals import Entry
from equipoise.brokers.pulsar.topics.clients import Consumer, Link, Meter, Producer, Refusal
from equipoise.brokers.pulsar.topics.topic import (
    Outcome,
    SubscriptionState,
    Topic,
    TopicLimits,
    TopicState,
)
from equipoise.brokers.pulsar.wire.requests import AccessMode, KeyShared, Sent, SubscriptionKind

NAME = "non-persistent://public/default/orders"


def make_topic(
    expected: TopicState | None = None,
    *,
    limits: TopicLimits | None = None,
    partition: int = -1,
    now_ms: int = 0,
) -> Topic:
    """A topic. By default it waits 100 ms with receipts, 10 s for consumers."""
    return Topic(
        NAME, partition=partition, limits=limits or TopicLimits(), now_ms=now_ms, expected=expected
    )


def make_producer(
    name: str = "p",
    *,
    link: object = None,
    producer_id: int = 0,
    epoch: int = 0,
    access_mode: AccessMode = AccessMode.SHARED,
) -> Producer:
    """A producer whose rates begin at 0 ms."""
    return Producer(
        name=name,
        link=cast("Link", link),
        id=producer_id,
        published=Meter(now_ms=0),
        epoch=epoch,
        access_mode=access_mode,
        address="192.0.2.1:5",
    )


def produced(
    expected: TopicState | None = None, *, limits: TopicLimits | None = None
) -> tuple[Topic, Producer]:
    """A topic and its one producer."""
    topic, producer = make_topic(expected, limits=limits), make_producer()
    topic.add_producer(producer)
    return topic, producer


def make_consumer(
    name: str = "c",
    *,
    priority: int = 0,
    key_shared: KeyShared | None = None,
    consumer_id: int = 0,
    is_name_users: bool = True,
    link: object = None,
) -> Consumer:
    """A consumer without permits, whose rates begin at 0 ms."""
    return Consumer(
        name=name,
        link=cast("Link", link),
        id=consumer_id,
        delivered=Meter(now_ms=0),
        is_name_users=is_name_users,
        priority=priority,
        key_shared=key_shared,
        address="192.0.2.2:6",
    )


def sticky(*ranges: tuple[int, int]) -> KeyShared:
    """The key settings of a STICKY consumer."""
    return KeyShared(is_sticky=True, ranges=ranges)


def expecting(
    *names: str,
    subscription: str = "s",
    kind: SubscriptionKind = SubscriptionKind.SHARED,
    waiting: tuple[int, ...] = (),
) -> SubscriptionState:
    """A subscription that a former owner hands over, with the names of its consumers."""
    return SubscriptionState(name=subscription, kind=kind, expected=names, waiting=waiting)


def state_of(*subscriptions: SubscriptionState, entries: tuple[Entry, ...] = ()) -> TopicState:
    """A topic that a former owner hands over, after 40 entries."""
    return TopicState(last_entry_id=40, subscriptions=subscriptions, entries=entries)


def joined(
    topic: Topic,
    name: str = "c",
    subscription: str = "s",
    kind: SubscriptionKind = SubscriptionKind.EXCLUSIVE,
    *,
    permits: int = 1000,
    now_ms: int = 0,
    is_name_users: bool = True,
) -> Consumer:
    """Add a consumer that grants permits. The deliveries that this allows are ignored."""
    consumer = make_consumer(name, is_name_users=is_name_users)
    answer = topic.subscribe(consumer, subscription, kind, now_ms=now_ms)
    assert not isinstance(answer, Refusal), answer
    if permits:
        flowed(topic, consumer, permits, now_ms)
    return consumer


def flowed(topic: Topic, consumer: Consumer, permits: int, now_ms: int) -> Outcome:
    """Grant permits. Return what this allows."""
    topic.flow(consumer, permits)
    return topic.tick(now_ms)


def send(
    topic: Topic,
    producer: Producer,
    block: bytes = b"block",
    *,
    sequence_id: int = 0,
    messages: int = 1,
    now_ms: int = 0,
) -> Outcome:
    """Publish one entry."""
    return topic.publish(producer, [Sent(sequence_id, sequence_id, messages, block)], now_ms)


def delivered(outcome: Outcome) -> list[tuple[str, int]]:
    """The deliveries of an outcome: names of consumers and entry ids."""
    return [(consumer.name, entry.entry_id) for consumer, entry in outcome.deliveries]


def receipted(outcome: Outcome) -> list[int]:
    """The entry ids of the receipts of an outcome."""
    return [receipt.entry_id for receipt in outcome.receipts]


def block_of(metadata: bytes, payload: bytes = b"payload") -> bytes:
    """A block as in a SEND. Its checksum is not valid."""
    return b"\x0e\x01" + b"\0\0\0\0" + len(metadata).to_bytes(4, "big") + metadata + payload


def keyed(key: str) -> bytes:
    """A block whose entry has this partition key, shorter than 128 bytes."""
    return block_of(
        b"\x0a\x01p\x10\x01\x18\x01" + b"\x32" + bytes([len(key.encode())]) + key.encode()
    )
