"""Test how a fast producer leaves turns of the loop to other clients, and waits for the permits of
consumers or for a rate.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
import uvloop

from equipoise.brokers.pulsar.link import ClientLink
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.server import Server
from equipoise.brokers.pulsar.session import Session
from equipoise.brokers.pulsar.topics.clients import Producer
from equipoise.brokers.pulsar.topics.throttling import Bucket, Patience, Rate
from equipoise.brokers.pulsar.wire.requests import Sent
from equipoise.brokers.runtime.worker import Lookups
from equipoise.channel.system.clocks import now_ms
from tests.pulsar.pulsar_speech import connect, entry, ping, producer, send
from tests.unit.pulsar.wire_client import TOPIC, Member, T, brokers

# One read of uvloop.
_CHUNK_BYTES: Final = 256 * 1024


async def connected(link: ClientLink) -> socket.socket:
    """Connect a client to a session by a socket that holds what the client writes, however little
    the session reads.
    """
    client, accepted = socket.socketpair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * _CHUNK_BYTES)
    client.settimeout(0)
    await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=accepted)
    client.send(connect())
    await asyncio.get_running_loop().sock_recv(client, 1_000)
    return client


def fill(client: socket.socket, data: bytes) -> int:
    """Write until the system takes no more. Return the number of bytes."""
    written = 0
    try:
        while True:
            written += client.send(data)
    except BlockingIOError:
        return written


def test_a_flood_leaves_turns_to_other_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop reads up to 32 chunks from one connection before it reads the next one, unless
    reading is paused.
    """
    came: list[tuple[ClientLink, int]] = []
    data_received = ClientLink.data_received

    def counting(link: ClientLink, data: bytes) -> None:
        came.append((link, len(data)))
        data_received(link, data)

    monkeypatch.setattr(ClientLink, "data_received", counting)

    async def flooded() -> None:
        async with brokers(tmp_path) as running:
            (member,) = running.members
            await member.client()
            server = Server(member.service, member.worker, Lookups(member.worker))
            link = server.new_link()
            flooding, asking = await connected(server.new_link()), await connected(link)
            flooding.send(producer(1, 1, TOPIC))
            await asyncio.get_running_loop().sock_recv(flooding, 1_000)
            came.clear()
            assert fill(flooding, send(1, 0, entry(b"x" * 2_000))) > 3 * _CHUNK_BYTES, (
                "several reads wait in the system"
            )
            asking.send(ping())
            await asyncio.get_running_loop().sock_recv(asking, 1_000)
            before = came[: came.index((link, len(ping())))]
            assert sum(bytes_ for _, bytes_ in before) <= _CHUNK_BYTES
            for client in (flooding, asking):
                client.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(flooded())


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="this system has no TCP_QUICKACK")
async def test_half_a_frame_is_acknowledged_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client without TCP_NODELAY sends the other half only after the acknowledgement, which the
    system delays by 40 ms.
    """
    options: list[int] = []
    acknowledged = asyncio.Event()
    # The option is read back, because no unit test measures time.
    acknowledge = ClientLink._acknowledge  # noqa: SLF001

    def reading_back(link: ClientLink) -> None:
        assert link._transport is not None  # noqa: SLF001 - as above
        accepted = link._transport.get_extra_info("socket")  # noqa: SLF001 - as above
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        acknowledge(link)
        options.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
        acknowledged.set()

    monkeypatch.setattr(ClientLink, "_acknowledge", reading_back)

    async with brokers(tmp_path) as running:
        (member,) = running.members
        client = await member.client()
        client.write(ping())
        await client.receive(T.PONG)
        assert [] == options, "nothing of a frame is missing"
        client.write(ping()[:5])
        await acknowledged.wait()
        client.write(ping()[5:])
        await client.receive(T.PONG)
        assert [1] == options


def throttle(member: Member, topic: str = TOPIC) -> None:
    """Allow one more message on a topic, and then none for hours."""
    bucket = Bucket(Rate(bytes=1, period_ms=3_600_000), now_ms=now_ms())
    member.service.hosting.topics[topic].topic.publish_bucket = bucket


def release(member: Member, topic: str = TOPIC) -> None:
    """Let all through."""
    member.service.hosting.topics[topic].topic.publish_bucket = None


async def several_turns(member: Member) -> None:
    """Wait while another client is served a few times."""
    client = await member.client()
    for _ in range(20):
        client.write(ping())
        await client.receive(T.PONG)
    await client.close()


def messages(*texts: str, producer_id: int = 1) -> bytes:
    """SENDs, to write at once."""
    return b"".join(
        send(producer_id, number, entry(f"hello {text}".encode()))
        for number, text in enumerate(texts)
    )


async def test_a_throttled_client_that_leaves_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks the protocol behind messages that wait. It gets no receipt for them, so it need not
    wait for them to be cut off.
    """
    async with brokers(tmp_path) as running:
        (member,) = running.members
        publisher = await member.client()
        await publisher.producer(1)
        throttle(member)
        publisher.write(messages(*"abcd") + b"\0\0\0\0\0\0\0\0")
        await publisher.closed()
        assert 1 == await member.metric("disconnections_total", reason="malformed_frame")
        turns = list[ClientLink]()
        go_on = ClientLink._go_on  # noqa: SLF001 - what would spin has no other name

        def counting(link: ClientLink) -> None:
            turns.append(link)
            go_on(link)

        monkeypatch.setattr(ClientLink, "_go_on", counting)
        await several_turns(member)
        assert len(turns) <= 1
        assert 0 == await member.metric("producers")


async def test_what_waits_is_not_published_for_a_producer_that_was_removed(tmp_path: Path) -> None:
    """Its client sends it again."""
    async with brokers(tmp_path) as running:
        (member,) = running.members
        publisher = await member.client()
        await publisher.producer(1, name="removed")
        await publisher.producer(2)
        throttle(member)
        publisher.write(messages("a", "b", "c") + messages("d", producer_id=2))
        await publisher.receipt(1, 0)
        served = member.service.hosting.topics[TOPIC]
        served.remove([served.topic.producers["removed"]])
        release(member)
        await publisher.receipt(2, 0)
        assert 2 == member.service.counts.published


async def test_nothing_waits_for_a_client_that_left_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish may disconnect its own client, which does not read."""
    waiting = list[int]()

    def leaving(
        _: Served, producer: Producer, entries: Sequence[Sent], __: Patience
    ) -> Sequence[Sent]:
        link = producer.link
        assert isinstance(link, ClientLink)
        # What would be tried again.
        session = link._session  # noqa: SLF001
        assert isinstance(session, Session)
        asyncio.get_running_loop().call_soon(lambda: waiting.append(len(session._requests)))  # noqa: SLF001
        link.abort()
        return entries

    monkeypatch.setattr(Served, "publish", leaving)
    async with brokers(tmp_path) as running:
        (member,) = running.members
        publisher = await member.client()
        await publisher.producer(1)
        publisher.publish(1, 0, "a")
        await publisher.closed()
    assert [0] == waiting
