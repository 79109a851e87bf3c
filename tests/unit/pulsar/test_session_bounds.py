"""Test what clients can make a broker keep or do at once: the bounds of one session and of all
together.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from equipoise.brokers.pulsar.directory import Directory
from equipoise.brokers.pulsar.link import ClientLink
from equipoise.brokers.pulsar.server import Server
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics.topic import TopicLimits
from equipoise.brokers.pulsar.wire import replies
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.pulsar.wire.requests import TopicsMode
from equipoise.brokers.runtime.worker import Lookups
from tests.pulsar.pulsar_speech import frame_of
from tests.unit.pulsar.test_service_moves import busy
from tests.unit.pulsar.test_session import metric_becomes, neighbour_is_served
from tests.unit.pulsar.wire_client import (
    NAMESPACE,
    TOPIC,
    Brokers,
    T,
    WireClient,
    brokers,
    with_brokers,
)

SCHEMA_BYTES = 20_000


def ask_schema(request_id: int) -> bytes:
    """GET_SCHEMA."""
    return frame_of(T.GET_SCHEMA, request_id=request_id, topic=TOPIC)


async def register_schema(client: WireClient) -> None:
    """Register a schema of SCHEMA_BYTES, so that small questions have large answers."""
    client.ask(
        T.GET_OR_CREATE_SCHEMA,
        topic=TOPIC,
        schema={"name": "s", "schema_data": b"s" * SCHEMA_BYTES, "type": 1},
    )
    await client.receive(T.GET_OR_CREATE_SCHEMA_RESPONSE)


def watch_behind(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the bytes that wait for a client, in the connection and the transport, at each
    write.
    """
    seen = list[int]()
    flush = ClientLink.flush

    def watching(link: ClientLink) -> None:
        seen.append(link.behind_bytes)
        flush(link)
        seen.append(link.behind_bytes)

    monkeypatch.setattr(ClientLink, "flush", watching)
    return seen


async def test_a_client_that_never_reads_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before that it costs a bounded amount of memory, also within one turn."""
    settings = Settings(
        write_buffer_bytes=32 * 1024,
        messages_behind_bytes_max=64 * 1024,
        behind_bytes_max=128 * 1024,
    )
    peak_bytes = watch_behind(monkeypatch)

    async with brokers(tmp_path, settings=settings) as running:
        (member,) = running.members
        client = await member.client()
        await register_schema(client)
        await client.stop_reading()
        while await member.metric("disconnections_total", reason="never_reads") == 0:
            client.write(b"".join(ask_schema(client.request_id()) for _ in range(200)))
        await metric_becomes(member, "connections", 0)
        await neighbour_is_served(member)
        client.vanish()
    bound_bytes = settings.behind_bytes_max + settings.write_buffer_bytes + 2 * SCHEMA_BYTES
    assert settings.behind_bytes_max < max(peak_bytes) < bound_bytes


async def test_clients_that_never_read_share_one_bound(tmp_path: Path) -> None:
    """Each of them is within its own bound."""
    settings = Settings(
        write_buffer_bytes=32 * 1024,
        all_messages_behind_bytes_max=256 * 1024,
        all_behind_bytes_max=512 * 1024,
    )

    async with brokers(tmp_path, settings=settings) as running:
        (member,) = running.members
        clients = [await member.client() for _ in range(4)]
        await register_schema(clients[0])
        for client in clients:
            await client.stop_reading()
        while await member.metric("disconnections_total", reason="no_room") == 0:
            for client in clients:
                client.write(b"".join(ask_schema(client.request_id()) for _ in range(50)))
        assert 0 == await member.metric("disconnections_total", reason="never_reads")
        for client in clients:
            client.vanish()
        await metric_becomes(member, "connections", 0)
        await neighbour_is_served(member)


async def test_the_client_with_the_oldest_unfinished_frame_makes_room(tmp_path: Path) -> None:
    settings = Settings(all_unfinished_bytes_max=250_000)

    async with brokers(tmp_path, settings=settings) as running:
        (member,) = running.members
        slow, other, last = [await member.client() for _ in range(3)]
        for client in (slow, other, last):
            client.write(struct.pack(">II", 1_000_000, 20) + b"x" * 100_000)
            await client.drained()
            if client is slow:
                while await member.metric("unfinished_bytes") == 0:
                    pass
        await slow.closed()
        assert 1 == await member.metric("disconnections_total", reason="no_room")
        assert (False, False) == (other.is_closed, last.is_closed)


async def test_topic_lists_are_sent_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most = 0, 0
    encode_topics = Directory.encoded_topics

    async def counting(server: Directory, namespace: str, mode: TopicsMode) -> bytes:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await encode_topics(server, namespace, mode)
        finally:
            under_way -= 1

    monkeypatch.setattr(Directory, "encoded_topics", counting)

    async with brokers(tmp_path) as running:
        client = await running.members[0].client()
        await client.producer(1)
        for _ in range(10):
            client.ask_topics()
        told = [
            (
                await client.receive(T.GET_TOPICS_OF_NAMESPACE_RESPONSE)
            ).get_topics_of_namespace_response
            for _ in range(10)
        ]
        assert [[TOPIC]] * 10 == [list(each.topics) for each in told]
        assert sorted(each.request_id for each in told) == [each.request_id for each in told]
    assert 1 == most


@with_brokers(config={"pulsar_message_bytes_max": 1_024})
async def test_a_topic_list_that_is_too_long_is_refused(running: Brokers) -> None:
    """Clients would close the connection."""
    client = await running.members[0].client()
    for number in range(3):
        await client.producer(number, f"non-persistent://{NAMESPACE}/{number}{'x' * 400}")
    client.ask_topics()
    error = (await client.receive(T.ERROR)).error
    assert ServerError.NotAllowedError == error.error
    assert "the names of the 3 topics of namespace public/default are " in error.message
    await client.producer(3)


async def test_concurrent_questions_share_an_encoded_topic_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not kept for longer."""
    encoded = list[Sequence[str]]()
    encode_topics = replies.encode_topics

    def counting(names: Sequence[str]) -> bytes:
        encoded.append(names)
        return encode_topics(names)

    monkeypatch.setattr(replies, "encode_topics", counting)

    async with brokers(tmp_path) as running:
        (member,) = running.members
        await (await member.client()).producer(1)
        server = Server(member.service, member.worker, Lookups(member.worker))
        told = await asyncio.gather(
            *(server.directory.encoded_topics(NAMESPACE, TopicsMode.ALL) for _ in range(20))
        )
        assert [encode_topics([TOPIC])] * 20 == told
        assert 1 == len(encoded)
        assert told[0] == await server.directory.encoded_topics(NAMESPACE, TopicsMode.ALL)
        assert 2 == len(encoded)


async def test_topics_that_wait_share_one_bound(tmp_path: Path) -> None:
    """Beyond it the broker stops waiting, and drops and counts the messages."""
    forever = TopicLimits(receipt_wait_ms=10, reconnect_wait_ms=3_600_000)

    async with brokers(
        tmp_path,
        count=2,
        settings=Settings(topics=forever, all_waiting_bytes_max=10_000, tick_ms=20),
    ) as running:
        _, destination, _ = await busy(running)
        await running.transfer(destination)
        there = await destination.client()
        await there.producer(1, name="mine", epoch=1)
        there.publish(1, 1, "1", padding=20_000)
        await there.receipt(1, 1)
        await metric_becomes(destination, "messages_dropped_total", 1)
        await metric_becomes(destination, "topics_waiting", 0)


async def test_an_entry_that_several_subscriptions_wait_for_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = TopicLimits(receipt_wait_ms=10, absent_wait_ms=3_600_000, reconnect_wait_ms=3_600_000)
    swept = asyncio.Event()
    relieve = Server._relieve  # noqa: SLF001 - what is waited for has no other name

    async def counting(server: Server) -> None:
        await relieve(server)
        swept.set()

    monkeypatch.setattr(Server, "_relieve", counting)

    settings = Settings(topics=forever, all_waiting_bytes_max=50_000, tick_ms=20)
    async with brokers(tmp_path, count=2, settings=settings) as running:
        source, destination, _ = await busy(running)
        for number in range(3):
            await (await source.client()).consumer(
                1, subscription=f"more{number}", name=f"c{number}"
            )
        await running.transfer(destination)
        there = await destination.client()
        await there.producer(1, name="mine", epoch=1)
        there.publish(1, 1, "1", padding=20_000)
        await there.receipt(1, 1)
        for _ in range(4):  # Both brokers sweep, and some sweeps began before.
            swept.clear()
            await swept.wait()
        assert (1, 0) == (
            await destination.metric("topics_waiting"),
            await destination.metric("messages_dropped_total"),
        )


async def test_slow_consumers_share_one_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is within its own bound."""
    peak_bytes = watch_behind(monkeypatch)
    bounds = Settings(all_messages_behind_bytes_max=256 * 1024)

    async with brokers(tmp_path, settings=bounds) as running:
        (member,) = running.members
        client, slow = await member.client(), await member.client()
        await slow.consumer(1, permits=1_000_000)
        await client.producer(1)
        await slow.stop_reading()
        sent = 0
        while await member.metric("messages_dropped_total") == 0:
            for _ in range(20):
                client.publish(1, sent, str(sent), padding=64 * 1024)
                await client.receipt(1, sent)
                sent += 1
        assert not slow.is_closed
    assert 128 * 1024 < max(peak_bytes) <= 256 * 1024
