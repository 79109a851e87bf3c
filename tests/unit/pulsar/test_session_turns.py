"""Test what one client makes the loop do at once, and its effect on others: creations, large
messages, forced UNSUBSCRIBE, SEEK.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from equipoise.brokers.pulsar.session import Session
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import CommandSubscribe
from equipoise.brokers.pulsar.wire.requests import ProducerAsked
from tests.pulsar.pulsar_speech import close_producer, connect, producer
from tests.unit.pulsar.wire_client import (
    TOPIC,
    Brokers,
    Member,
    T,
    WireClient,
    brokers,
    with_brokers,
)

SHARED = CommandSubscribe.Shared


async def as_client_of(member: Member, client_version: str) -> WireClient:
    """Connect as this version of a client."""
    client = await member.client(handshake=False)
    client.write(connect(client_version=client_version))
    await client.receive(T.CONNECTED)
    return client


async def seek(client: WireClient, consumer_id: int) -> None:
    """Send SEEK, and wait for the answer."""
    request_id = client.ask(T.SEEK, consumer_id=consumer_id)
    assert request_id == (await client.receive(T.SUCCESS)).success.request_id


@with_brokers()
async def test_a_consumer_in_go_is_closed_after_a_seek(running: Brokers) -> None:
    """It takes nothing until it reconnects. Consumers of other clients stay."""
    (member,) = running.members
    publisher = await member.client()
    await publisher.producer(1)
    in_go, in_java = (
        await as_client_of(member, "Pulsar-Go-0.19.0"),
        await as_client_of(member, "Pulsar-Java-v4.0.8"),
    )
    for client in (in_go, in_java):
        await client.consumer(7, subscription=f"s{id(client)}")
        await seek(client, 7)
    assert 7 == (await in_go.receive(T.CLOSE_CONSUMER)).close_consumer.consumer_id
    await in_go.consumer(7, subscription=f"s{id(in_go)}")
    publisher.publish(1, 0, "after")
    for client in (in_go, in_java):
        assert "after" == (await client.receive_message())[2]
    assert "CLOSE_CONSUMER" not in in_java.names()


@with_brokers()
async def test_entry_ids_continue_after_a_seek(running: Brokers) -> None:
    """A Go consumer ignores lower ids, so its topic is kept while it reconnects."""
    (member,) = running.members
    publisher, in_go = await member.client(), await as_client_of(member, "Pulsar-Go-0.19.0")
    await in_go.consumer(7)
    await publisher.producer(1)
    publisher.publish(1, 0, "before")
    publisher.write(close_producer(1, 1_000))
    await publisher.receive(T.SUCCESS)
    assert (1, "before") == (await in_go.receive_message())[1:]
    await seek(in_go, 7)
    await in_go.receive(T.CLOSE_CONSUMER)
    await in_go.consumer(7)
    await publisher.producer(2)
    publisher.publish(2, 0, "after")
    assert (2, "after") == (await in_go.receive_message())[1:]


@with_brokers()
async def test_a_forced_unsubscribe_disconnects_the_others(running: Brokers) -> None:
    (member,) = running.members
    one, other = await member.client(), await member.client()
    await one.producer(9)
    await one.consumer(1, kind=SHARED)
    await other.consumer(2, kind=SHARED)
    for force, answer in ((False, T.ERROR), (True, T.SUCCESS)):
        one.ask(T.UNSUBSCRIBE, consumer_id=1, force=force)
        await one.receive(answer)
    assert 2 == (await other.receive(T.CLOSE_CONSUMER)).close_consumer.consumer_id
    await other.consumer(2, kind=CommandSubscribe.Exclusive)
    one.publish(9, 0, "on")
    assert (2, "on") == (await other.receive_message())[::2]


async def test_running_creations_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others follow in order, unless they are cancelled before."""
    opened = list[int]()
    go_on, other_came = asyncio.Event(), asyncio.Event()
    open_producer = Session._open_producer  # noqa: SLF001 - what is counted has no other name

    async def counting(session: Session, request: ProducerAsked) -> None:
        opened.append(request.producer_id)
        if request.producer_id == 1_000:
            other_came.set()
        await go_on.wait()
        await open_producer(session, request)

    monkeypatch.setattr(Session, "_open_producer", counting)

    async with brokers(tmp_path) as running:
        (member,) = running.members
        client, other = await member.client(), await member.client()
        client.write(
            b"".join(producer(number, number, TOPIC) for number in range(100))
            + close_producer(90, 1_000)
        )
        await client.receive(T.SUCCESS)
        assert list(range(64)) == opened
        waiting = other.ask_producer(1_000)
        await other_came.wait()
        go_on.set()
        names = {
            (await client.receive(T.PRODUCER_SUCCESS)).producer_success.request_id
            for _ in range(99)
        }
        assert {*range(100)} - {90} == names
        assert [each for each in opened if each != 1_000] == sorted(names)
        assert waiting == (await other.receive(T.PRODUCER_SUCCESS)).producer_success.request_id


async def test_a_message_to_many_disconnects_no_client(tmp_path: Path) -> None:
    """It is dropped for some: no client had a turn to read it."""
    bounds = Settings(
        all_messages_behind_bytes_max=3 * 1024 * 1024, all_behind_bytes_max=4 * 1024 * 1024
    )

    async with brokers(tmp_path, settings=bounds) as running:
        (member,) = running.members
        publisher = await member.client()
        await publisher.producer(1)
        slow = [await member.client() for _ in range(12)]
        for number, client in enumerate(slow):
            await client.consumer(1, subscription=f"s{number}")
            await client.stop_reading()
        for sequence_id in range(6):
            publisher.publish(1, sequence_id, "large", padding=1_500_000)
            await publisher.receipt(1, sequence_id)
        assert 0 < await member.metric("messages_dropped_total")
        assert 0 == await member.metric("disconnections_total", reason="no_room")
        for client in slow:
            client.vanish()
