"""What one identity may take of the Pulsar port, and clients that say nothing, or little by
little.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from equipoise.brokers.pulsar import connections, link
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand, ServerError
from equipoise.brokers.runtime import access
from equipoise.brokers.security.limits import BURST_MS, Limit
from equipoise.channel.system.clocks import now_ms
from tests.pulsar.pulsar_speech import connect, lookup
from tests.unit.pulsar.test_authentication import PROGRAM
from tests.unit.pulsar.test_session import metric_becomes, neighbour_is_served
from tests.unit.pulsar.wire_client import TOPIC, Brokers, Member, WireClient, brokers, with_brokers
from tests.unit.security.signing import SETTINGS, token

pytestmark = pytest.mark.integration

T = BaseCommand.Type

# The brokers of these tests listen on 127.0.0.1, where no limit applies. Linux lets a client use
# any address of 127.0.0.0/8.
GREEDY, MODEST = "127.0.0.2", "127.0.0.3"

TURN = 64  # Requests that a connection answers in one turn of the loop.
READ = 256 * 1024  # The largest read of a connection.


async def exceeded(member: Member, limit: Limit) -> float:
    """How often the Pulsar port met an excess."""
    text = str(await member.get("/metrics"))
    lines = (line for line in text.splitlines() if "limits_exceeded_total{" in line)
    return float(
        next(
            line for line in lines if f'limit="{limit.value}",surface="pulsar"' in line
        ).rpartition(" ")[2]
    )


async def turned_away(client: WireClient) -> str:
    """Wait for the error of a client that may not connect, and for the end of its connection.
    Return the message.
    """
    error = (await client.receive(T.ERROR)).error
    assert ServerError.TooManyRequests == error.error
    await client.closed()
    return error.message


@with_brokers(config={"identity_connections_max": 2})
async def test_the_connections_of_one_address_are_limited(running: Brokers) -> None:
    (member,) = running.members
    first, second = [await member.client(address=GREEDY) for _ in range(2)]
    for handshake in (False, True):
        third = await WireClient.connected(member.url, handshake=False, address=GREEDY)
        if handshake:
            third.write(connect())
        assert (
            "address 127.0.0.2 has 2 connections open (setting identity_connections_max)"
            == await turned_away(third)
        )
        third.vanish()
    assert 2 == await member.metric("connections_refused_total")
    assert 2 == await exceeded(member, Limit.CONNECTIONS)
    await member.client(address=MODEST)
    await first.close()
    await metric_becomes(member, "connections", 2)
    await member.client(address=GREEDY)
    for _ in range(3):
        await member.client()
    assert not second.is_closed


@with_brokers(config={"pulsar_connections_max": 1})
async def test_a_client_beyond_all_connections_gets_the_setting(running: Brokers) -> None:
    (member,) = running.members
    await member.client()
    late = await member.client(handshake=False)
    assert "(setting pulsar_connections_max)" in await turned_away(late)


@with_brokers(config={"pulsar_connections_max": 1})
async def test_a_client_of_pulsar_that_is_turned_away_tries_again(running: Brokers) -> None:
    (member,) = running.members
    holder = await member.client()
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        member.url,
        TOPIC,
        "60",
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    while not await member.metric("connections_refused_total"):
        pass
    await holder.close()
    output, _ = await program.communicate()
    assert "hello" in output.decode().split()


@with_brokers(config={**SETTINGS, "identity_connections_max": 2}, token=token("modest"))
async def test_the_connections_of_one_role_are_limited_wherever_they_come_from(
    running: Brokers,
) -> None:
    (member,) = running.members
    addresses = (GREEDY, MODEST)
    first, _ = [
        await member.client(token=token("greedy"), address=address) for address in addresses
    ]
    third = await member.client(handshake=False)
    third.write(connect(token=token("greedy")))
    assert (
        "role 'greedy' has 2 connections open (setting identity_connections_max)"
        == await turned_away(third)
    )
    assert 1 == await member.metric("disconnections_total", reason="too_many_connections")
    await member.client()
    await first.close()
    await metric_becomes(member, "connections", 2)
    await member.client(token=token("greedy"))
    for _ in range(3):
        await member.client(token=token("broker"))


class Clock:
    """The time of sessions, which passes on request."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = now_ms()
        monkeypatch.setattr(link, "now_ms", lambda: self.now_ms)


@with_brokers(config={"identity_requests_per_second_max": 200})
async def test_requests_beyond_the_rate_wait_and_none_fails(
    running: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, access.__name__)
    (member,) = running.members
    clock = Clock(monkeypatch)
    greedy, modest = await member.client(address=GREEDY), await member.client(address=MODEST)
    asked = 600
    greedy.write(b"".join(lookup(number, TOPIC) for number in range(asked)))
    while not await exceeded(member, Limit.REQUESTS):
        pass
    assert member.url == await modest.located()
    answered = sum(command.type == T.LOOKUP_RESPONSE for command, _ in greedy.inbox)
    assert answered < 400 + TURN
    clock.now_ms += BURST_MS
    for _ in range(asked):
        assert (
            member.url == (await greedy.receive(T.LOOKUP_RESPONSE)).lookup_response.brokerServiceUrl
        )
    (line,) = [record.__dict__ for record in caplog.records if record.name == access.__name__]
    assert ("pulsar", "requests", 1) == (line["port"], line["limit"], line["times"])
    assert (
        "address 127.0.0.2 sends more than 200 requests a second (setting"
        " identity_requests_per_second_max)" in line["message"]
    )


@with_brokers(config={"identity_bytes_per_second_max": 2_000_000})
async def test_messages_beyond_the_rate_wait_and_none_is_lost(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two connections share the rate of their address. The greatest excess is one read of each."""
    (member,) = running.members
    clock = Clock(monkeypatch)
    reader, *writers = (
        await member.client(),
        await member.client(address=GREEDY),
        await member.client(address=GREEDY),
    )
    await reader.consumer(1)
    messages, padding = 40, 100_000
    for client in writers:
        await client.producer(1)
        for number in range(messages):
            client.publish(1, number, str(number), padding=padding)
    while not await exceeded(member, Limit.BYTES):
        pass
    await neighbour_is_served(member)
    assert await member.metric("published_bytes_total") < 4_000_000 + 2 * READ + 2 * padding
    clock.now_ms += 2 * BURST_MS
    for client in writers:
        for number in range(messages):
            await client.receipt(1, number)
    received = sorted([int((await reader.receive_message())[2]) for _ in range(2 * messages)])
    assert [number // 2 for number in range(2 * messages)] == received


async def test_a_client_without_a_handshake_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "Limits", partial(Limits, handshake_ms=100))
    async with brokers(tmp_path, settings=Settings(tick_ms=20)) as running:
        (member,) = running.members
        await (await member.client(handshake=False)).closed()
        assert 1 == await member.metric("disconnections_total", reason="no_handshake")
