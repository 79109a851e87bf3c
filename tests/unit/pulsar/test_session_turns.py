"""What one client makes the loop do at once, and whom it takes along: creations, large messages, forced ends, SEEK."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from equipoise.brokers.pulsar.answers import Answers
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import CommandSubscribe
from equipoise.brokers.pulsar.wire.requests import ProducerAsked
from tests.pulsar.pulsar_speech import close_producer, connect, producer
from tests.unit.pulsar.wire_client import TOPIC, Brokers, Member, T, WireClient, brokers, with_brokers

SHARED = CommandSubscribe.Shared


async def as_client_of(member: Member, client_version: str) -> WireClient:
    """A connection of a client that says that it is this one."""
    client = await member.client(handshake=False)
    client.say(connect(client_version=client_version))
    await client.hear(T.CONNECTED)
    return client


async def seek(client: WireClient, consumer_id: int) -> None:
    """SEEK, answered."""
    request_id = client.ask(T.SEEK, consumer_id=consumer_id)
    assert request_id == (await client.hear(T.SUCCESS)).success.request_id


@with_brokers()
async def test_a_client_in_go_is_told_to_connect_anew_after_a_seek(running: Brokers) -> None:
    """Its consumer takes nothing before that; those of others stay where they are."""
    (member,) = running.members
    publisher = await member.client()
    await publisher.producer(1)
    in_go, in_java = await as_client_of(member, "Pulsar-Go-0.19.0"), await as_client_of(member, "Pulsar-Java-v4.0.8")
    for client in (in_go, in_java):
        await client.consumer(7, subscription=f"s{id(client)}")
        await seek(client, 7)
    assert 7 == (await in_go.hear(T.CLOSE_CONSUMER)).close_consumer.consumer_id
    await in_go.consumer(7, subscription=f"s{id(in_go)}")
    publisher.publish(1, 0, "after")
    for client in (in_go, in_java):
        assert "after" == (await client.hear_message())[2]
    assert "CLOSE_CONSUMER" not in in_java.names()


@with_brokers()
async def test_entries_are_counted_on_after_a_seek(running: Brokers) -> None:
    """A topic with nobody but a client in Go that seeks is there when it comes back, because it takes nothing with a lower number."""
    (member,) = running.members
    publisher, in_go = await member.client(), await as_client_of(member, "Pulsar-Go-0.19.0")
    await in_go.consumer(7)
    await publisher.producer(1)
    publisher.publish(1, 0, "before")
    publisher.say(close_producer(1, 1_000))
    await publisher.hear(T.SUCCESS)
    assert (1, "before") == (await in_go.hear_message())[1:]
    await seek(in_go, 7)
    await in_go.hear(T.CLOSE_CONSUMER)
    await in_go.consumer(7)
    await publisher.producer(2)
    publisher.publish(2, 0, "after")
    assert (2, "after") == (await in_go.hear_message())[1:]


@with_brokers()
async def test_a_forced_unsubscribe_disconnects_the_others(running: Brokers) -> None:
    """They are told to connect anew, and make the subscription anew."""
    (member,) = running.members
    one, other = await member.client(), await member.client()
    await one.producer(9)
    await one.consumer(1, kind=SHARED)
    await other.consumer(2, kind=SHARED)
    for force, answer in ((False, T.ERROR), (True, T.SUCCESS)):
        one.ask(T.UNSUBSCRIBE, consumer_id=1, force=force)
        await one.hear(answer)
    assert 2 == (await other.hear(T.CLOSE_CONSUMER)).close_consumer.consumer_id
    await other.consumer(2, kind=CommandSubscribe.Exclusive)
    one.publish(9, 0, "on")
    assert (2, "on") == (await other.hear_message())[::2]


async def test_creations_beyond_those_under_way_wait_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many one client asks for, so many have a task; the others follow in order, unless they are cancelled before."""
    opened = list[int]()
    go_on, other_came = asyncio.Event(), asyncio.Event()
    open_producer = Answers._open_producer  # noqa: SLF001 - what is counted has no other name

    async def counting(answers: Answers, request: ProducerAsked) -> None:
        opened.append(request.producer_id)
        if request.producer_id == 1_000:
            other_came.set()
        await go_on.wait()
        await open_producer(answers, request)

    monkeypatch.setattr(Answers, "_open_producer", counting)

    async with brokers(tmp_path) as running:
        (member,) = running.members
        client, other = await member.client(), await member.client()
        client.say(b"".join(producer(number, number, TOPIC) for number in range(100)) + close_producer(90, 1_000))
        await client.hear(T.SUCCESS)
        assert list(range(64)) == opened
        waiting = other.ask_producer(1_000)
        await other_came.wait()
        go_on.set()
        names = {(await client.hear(T.PRODUCER_SUCCESS)).producer_success.request_id for _ in range(99)}
        assert {*range(100)} - {90} == names
        assert [each for each in opened if each != 1_000] == sorted(names)
        assert waiting == (await other.hear(T.PRODUCER_SUCCESS)).producer_success.request_id


async def test_nobody_is_cut_off_for_a_message_to_many(tmp_path: Path) -> None:
    """A message that would be too much for all together is dropped for some: none of them had a turn to take it."""
    bounds = Settings(all_messages_behind_bytes_max=3 * 1024 * 1024, all_behind_bytes_max=4 * 1024 * 1024)

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
