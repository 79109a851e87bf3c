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
from tests.pulsar.pulsar_speech import close_producer, producer
from tests.unit.pulsar.wire_client import (
    TOPIC,
    T,
    brokers,
)

SHARED = CommandSubscribe.Shared


async def test_running_creations_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others follow in order, unless they are cancelled before."""
    opened = list[int]()
    go_on, other_came = asyncio.Event(), asyncio.Event()
    open_producer = Session._open_producer  # noqa: SLF001 - what is counted has no other name

    async def counting(session: Session, request: ProducerAsked) -> None:
        opened.append(request.id)
        if request.id == 1_000:
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
