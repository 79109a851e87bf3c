"""Test that consumers of a moved bundle are redirected after their client has received its
messages.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from equipoise.brokers.agent.requests import Transfer
from equipoise.brokers.pulsar.settings import Settings
from equipoise.channel.core.ranges import topic_hash
from equipoise.channel.system.clocks import now_ms
from tests.pulsar.pulsar_speech import connect, pong
from tests.unit.pulsar.wire_client import (
    NAMESPACE,
    PATIENCE_MS,
    TOPIC,
    Brokers,
    Member,
    T,
    WireClient,
    brokers,
    with_brokers,
)

PATIENT = Settings(drain_wait_ms=60_000)
"""A client may answer a PING later than any test waits."""

SLOW_S = 0.1
TICK_MS = 2
"""The error of timers."""

ELSEWHERE = next(
    name
    for n in range(999)
    if topic_hash(name := f"non-persistent://{NAMESPACE}/{n}") >> 30 != topic_hash(TOPIC) >> 30
)
"""A topic of another bundle."""


async def behind(source: Member, client: WireClient, *topics: str) -> None:
    """Send a client a message of each of these topics of `source`. It answers no PING. Its
    consumers are numbered from 0.
    """
    client.answers_pings = False
    publisher = await source.client()
    for number, topic in enumerate(topics):
        await client.consumer(number, topic)
        await publisher.producer(number, topic)
        publisher.publish(number, 0, "x")
        await publisher.receipt(number, 0)
        await client.receive_message()


@with_brokers(count=2, settings=PATIENT)
async def test_two_bundles_wait_for_their_common_client(running: Brokers) -> None:
    source = running.owner_of()
    destination = running.other_than(source)
    if source is not running.owner_of(ELSEWHERE):
        await running.transfer(source, ELSEWHERE)
    client = await source.client()
    await behind(source, client, TOPIC, ELSEWHERE)
    intents = [
        Transfer(
            bundle=running.bundle_of(topic),
            destination=destination.worker.broker_id,
            reason="a test",
        )
        for topic in (TOPIC, ELSEWHERE)
    ]
    await asyncio.gather(
        *(source.worker.request(intent, timeout_ms=PATIENCE_MS) for intent in intents)
    )
    await running.settled()
    assert (destination, destination) == (running.owner_of(), running.owner_of(ELSEWHERE))
    await client.receive(T.PING)
    assert destination.url == await client.located()
    assert "CLOSE_CONSUMER" not in client.names()
    for _ in range(1 + client.names().count("PING")):
        client.write(pong())
    assert {0, 1} == {
        (await client.receive(T.CLOSE_CONSUMER)).close_consumer.consumer_id for _ in range(2)
    }


@with_brokers(count=2, settings=PATIENT)
async def test_a_slow_client_gets_as_long_again(running: Brokers) -> None:
    """Its program will be slow to read the messages, too."""
    source = running.owner_of()
    client = await source.client()
    await behind(source, client, TOPIC)
    await running.transfer(running.other_than(source))
    await client.receive(T.PING)
    asked_ms = now_ms()
    await asyncio.sleep(SLOW_S)
    client.write(pong())
    answered_ms = now_ms()
    await client.receive(T.CLOSE_CONSUMER)
    assert now_ms() - answered_ms >= answered_ms - asked_ms - TICK_MS


async def test_a_java_client_gets_its_time_for_each_bundle(tmp_path: Path) -> None:
    settle_ms = 400

    async with brokers(tmp_path, count=2, settings=Settings(settle_java_ms=settle_ms)) as running:
        source = running.owner_of()
        destination = running.other_than(source)
        if source is not running.owner_of(ELSEWHERE):
            await running.transfer(source, ELSEWHERE)
        client = await source.client(handshake=False)
        client.write(connect(client_version="Pulsar-Java-v4.0.8"))
        await client.receive(T.CONNECTED)
        for number, topic in enumerate((TOPIC, ELSEWHERE)):
            await client.consumer(number, topic)
            await client.producer(number, topic)
            client.publish(number, 0, "x")
            await client.receive_message()
        taken_ms = now_ms()
        await running.transfer(destination)
        await running.transfer(destination, ELSEWHERE)
        for _ in range(2):
            await client.receive(T.CLOSE_CONSUMER)
            assert now_ms() - taken_ms >= settle_ms - TICK_MS


async def test_a_broker_that_stops_waits_until_its_consumers_are_redirected(tmp_path: Path) -> None:
    async with brokers(tmp_path, settings=Settings(drain_wait_ms=50)) as running:
        (member,) = running.members
        client = await member.client()
        await behind(member, client, TOPIC)
    assert "CLOSE_CONSUMER" in client.names()
