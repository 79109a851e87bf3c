"""Test bundles that move, with producers and consumers on them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics import handover as handovers
from equipoise.brokers.pulsar.topics.topic import TopicLimits
from equipoise.brokers.runtime.service import Bundle
from equipoise.channel.core.errors import DeadlineExceeded
from equipoise.channel.core.ranges import TopicName
from tests.unit.pulsar.wire_client import (
    Brokers,
    Member,
    T,
    WireClient,
    brokers,
    with_brokers,
)

PATIENT = Settings(topics=TopicLimits(receipt_wait_ms=60_000, reconnect_wait_ms=120_000))
"""Receipts and messages wait until all clients are back."""

HASTY = Settings(
    topics=TopicLimits(receipt_wait_ms=30, absent_wait_ms=120_000, reconnect_wait_ms=120_000)
)
"""Receipts wait for a moment, messages for long."""


async def busy(running: Brokers) -> tuple[Member, Member, WireClient]:
    """Return the owner, another broker, and a client of the owner. Its producer 1 (`mine`) and
    consumer 1 have exchanged a message.
    """
    source = running.owner_of()
    destination = running.other_than(source)
    client = await source.client()
    await client.consumer(1, name="me")
    await client.producer(1, name="mine")
    client.publish(1, 0, "0")
    await client.receipt(1, 0)
    assert "0" == (await client.receive_message())[2]
    return source, destination, client


async def published_behind_a_move(running: Brokers) -> tuple[Member, WireClient]:
    """Move the topic of `busy`. Return the new owner and a client there, whose producer 1 (`mine`)
    has sent entry 2, `1`.
    """
    _, destination, _ = await busy(running)
    await running.transfer(destination)
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    there.publish(1, 1, "1")
    return destination, there


async def redirected(client: WireClient) -> tuple[str, str]:
    """Wait until the producer and the consumer of a client are redirected. Return the addresses."""
    producer = (await client.receive(T.CLOSE_PRODUCER)).close_producer
    consumer = (await client.receive(T.CLOSE_CONSUMER)).close_consumer
    return producer.assignedBrokerServiceUrl, consumer.assignedBrokerServiceUrl


@with_brokers()
async def test_a_consumer_of_a_topic_without_an_owner_looks_it_up_again(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error would end the consumers of some clients for good."""
    (member,) = running.members

    async def serve(topic: TopicName, check: object) -> None:
        raise DeadlineExceeded(what=f"an owner of {topic.full}", waited_ms=0)

    monkeypatch.setattr(member.service, "serve", serve)
    client = await member.client()
    await client.consumer(1)
    assert not (await client.receive(T.CLOSE_CONSUMER)).close_consumer.HasField(
        "assignedBrokerServiceUrl"
    )


@pytest.mark.parametrize("comes", [True, False])
@with_brokers(count=2)
async def test_clients_that_come_before_their_bundle_are_held(
    running: Brokers, comes: bool
) -> None:
    """They are answered when the bundle comes or the move is abandoned."""
    source = running.owner_of()
    destination = running.other_than(source)
    entry = running.view.bundles[running.bundle_of()]
    bundle = Bundle(name=entry.name, namespace=entry.namespace, low=entry.low, high=entry.high)
    await destination.service.prepare(bundle, None)
    early = await destination.client()
    early.ask_producer(1)
    early.ask_consumer(1)
    await early.located()
    assert [] == early.names()
    if comes:
        await running.transfer(destination)
        await early.receive(T.PRODUCER_SUCCESS)
        await early.receive(T.SUCCESS)
    else:
        await destination.service.discard(bundle)
        await early.receive(T.PRODUCER_SUCCESS)
        await early.receive(T.SUCCESS)
        early.flow(1, 1)
        assert (
            source.url
            == (await early.receive(T.CLOSE_CONSUMER)).close_consumer.assignedBrokerServiceUrl
        )


@with_brokers(count=2, config={"pulsar_settle_ms": 400})
async def test_consumers_are_redirected_after_the_configured_time(running: Brokers) -> None:
    """Producers are redirected at once."""
    source, destination, _ = await busy(running)
    client = await source.client()
    await client.consumer(1, subscription="slow")
    await client.producer(1, name="quick")
    moving = asyncio.ensure_future(running.transfer(destination))
    await client.receive(T.CLOSE_PRODUCER)
    began_ns = time.monotonic_ns()
    await client.receive(T.CLOSE_CONSUMER)
    assert time.monotonic_ns() - began_ns > 300_000_000
    await moving


async def test_a_damaged_handover_does_not_keep_a_bundle_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topics start without state, which is counted."""
    encoded = handovers.encode({})
    monkeypatch.setattr(handovers, "encode", lambda _: encoded._replace(handover=b"nonsense"))

    async with brokers(tmp_path, count=2, settings=PATIENT) as running:
        _, destination, _ = await busy(running)
        await running.transfer(destination)
        assert 1 == await destination.metric("handovers_damaged_total")
        there = await destination.client()
        await there.producer(1, name="mine", epoch=1)
        there.publish(1, 1, "1")
        await there.receipt(1, 1)
