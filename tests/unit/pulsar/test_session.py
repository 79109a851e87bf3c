"""Test sessions: clients that connect to a broker over a socket, and those that violate the
protocol or are silent.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest

from equipoise.brokers.pulsar import connections
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.settings import Settings
from tests.pulsar.pulsar_speech import close_consumer, close_producer
from tests.unit.pulsar.wire_client import (
    NAMESPACE,
    Brokers,
    Member,
    brokers,
    with_brokers,
)

NEIGHBOUR = f"non-persistent://{NAMESPACE}/neighbour"


async def neighbour_is_served(member: Member) -> None:
    """Check that another client can publish and receive."""
    client = await member.client()
    await client.consumer(1, NEIGHBOUR)
    await client.producer(1, NEIGHBOUR)
    client.publish(1, 0, "on we go")
    assert "on we go" == (await client.receive_message())[2]
    await client.receipt(1, 0)
    await client.close()


async def metric_becomes(member: Member, name: str, value: float, **labels: str) -> None:
    """Wait until a metric has a value."""
    while await member.metric(name, **labels) != value:  # noqa: ASYNC110 - a metric has no event
        await asyncio.sleep(0.01)


@with_brokers()
async def test_a_tls_client_is_told_apart(
    running: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says what to do, however often the client tries again."""
    caplog.set_level(logging.INFO, connections.__name__)
    (member,) = running.members
    host, port = member.url.removeprefix("pulsar://").split(":")
    for _ in range(3):
        # As from any port without TLS.
        with pytest.raises(ssl.SSLError, match=r"WRONG_VERSION_NUMBER|PACKET_LENGTH_TOO_LONG"):
            await asyncio.open_connection(host, int(port), ssl=ssl.create_default_context())
    assert 3 == await member.metric("disconnections_total", reason="tls")
    assert 0 == await member.metric("disconnections_total", reason="frame_too_large")
    (line,) = [record.__dict__ for record in caplog.records if record.name == connections.__name__]
    assert ("disconnected a Pulsar client", "tls", 0) == (
        line["message"],
        line["reason"],
        line["left_out"],
    )
    assert "use pulsar:// instead of pulsar+ssl://" in line["problem"]
    await neighbour_is_served(member)


@with_brokers()
async def test_an_http_client_is_answered_with_the_http_address(
    running: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, connections.__name__)
    (member,) = running.members
    for method in ("GET", "PUT", "POST"):
        async with member.http.request(
            method, member.url.replace("pulsar://", "http://") + "/admin/v2/clusters"
        ) as response:
            answer = await response.json()
            assert (400, "WrongPort") == (response.status, answer["error"])
            assert f"send HTTP requests to {member.http_url}" in answer["reason"]
    assert 3 == await member.metric("disconnections_total", reason="http")
    (line,) = [record.__dict__ for record in caplog.records if record.name == connections.__name__]
    assert ("http", 0, True) == (
        line["reason"],
        line["left_out"],
        "HTTP address" in line["problem"],
    )


@with_brokers()
async def test_a_creation_may_be_cancelled(running: Brokers) -> None:
    """The id can be used again."""
    (member,) = running.members
    client = await member.client()
    first = client.ask_producer(1)
    client.write(close_producer(1, 900))
    client.ask_consumer(1)
    client.write(close_consumer(1, 901))
    name = await client.producer(1, name="mine")
    assert "mine" == name
    assert ["SUCCESS", "SUCCESS"] == client.names(), "the closings, and not the first opening"
    assert first not in [command.success.request_id for command, _ in client.inbox]
    assert (1, 0) == (await member.metric("producers"), await member.metric("consumers"))


@with_brokers(settings=Settings(write_buffer_bytes=32 * 1024, messages_behind_bytes_max=64 * 1024))
async def test_a_slow_consumer_loses_messages(running: Brokers) -> None:
    """They are dropped and counted. It gets the later ones, and other consumers get all."""
    (member,) = running.members
    producer, quick, slow = await member.client(), await member.client(), await member.client()
    await quick.consumer(1, subscription="quick", permits=1_000_000)
    await slow.consumer(1, subscription="slow", permits=1_000_000)
    await producer.producer(1)
    await slow.stop_reading()
    sent = 0
    while await member.metric("messages_dropped_total") < 10:
        for _ in range(50):
            producer.publish(1, sent, str(sent), padding=8 * 1024)
            sent += 1
        for number in range(sent - 50, sent):
            await producer.receipt(1, number)
    for number in range(sent):
        assert str(number) == (await quick.receive_message())[2]
    slow.read()
    texts = [(await slow.receive_message())[2]]
    while texts[-1] != "the end":
        producer.publish(1, sent, "the end")
        sent += 1
        texts.append((await slow.receive_message())[2])
    numbers = [int(text) for text in texts if text != "the end"]
    assert sorted(numbers) == numbers


@with_brokers()
async def test_clients_that_come_and_go_leave_nothing(running: Brokers) -> None:
    (member,) = running.members
    for round_ in range(60):
        client = await member.client()
        await client.producer(1, name="the same", epoch=round_)
        await client.consumer(1)
        client.vanish()
        await metric_becomes(member, "connections", 0)
    assert 60 == await member.metric("connections_accepted_total")
    assert (0, 0, 0) == (
        await member.metric("topics"),
        await member.metric("producers"),
        await member.metric("consumers"),
    )
    await neighbour_is_served(member)


@with_brokers()
async def test_a_half_closed_connection_is_closed(running: Brokers) -> None:
    """Its client may read nothing either."""
    (member,) = running.members
    client = await member.client()
    await client.consumer(1)
    client.half_close()
    await metric_becomes(member, "consumers", 0)
    await metric_becomes(member, "connections", 0)


@with_brokers(settings=Settings(probe_ms=200))
async def test_many_requests_for_one_name_share_a_ping(running: Brokers) -> None:
    (member,) = running.members
    holder, other = await member.client(), await member.client()
    holder.answers_pings = False
    await holder.producer(1, name="mine")
    for producer_id in range(50):
        other.ask_producer(producer_id, name="mine", epoch=1)
    await holder.closed()
    assert 1 == holder.names().count("PING")


async def test_a_bug_costs_one_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged with its traceback."""
    async with brokers(tmp_path) as running:
        (member,) = running.members
        client = await member.client()
        await client.producer(1)
        with monkeypatch.context() as broken:
            broken.setattr(Served, "publish", None)
            client.publish(1, 0, "boom")
            await client.closed()
        await neighbour_is_served(member)
    assert "a request of a Pulsar client failed" in caplog.text
