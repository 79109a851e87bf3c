"""Test sessions: clients that connect to a broker over a socket, and those that violate the
protocol or are silent.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from pathlib import Path

import pytest

from equipoise.brokers.pulsar import connections
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandSubscribe,
    ServerError,
)
from tests.pulsar.pulsar_speech import (
    close_consumer,
    close_producer,
    connect,
    entry,
    lookup,
    ping,
    send,
    unsubscribe,
)
from tests.unit.pulsar.wire_client import (
    NAMESPACE,
    TOPIC,
    Brokers,
    Member,
    T,
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
async def test_a_message_goes_from_a_producer_to_a_consumer(running: Brokers) -> None:
    (member,) = running.members
    client = await member.client()
    assert member.url == await client.located()
    assert 0 == await client.partitions(TOPIC)
    await client.consumer(3)
    assert (await client.producer(5)).startswith("equipoise-")
    for number in range(3):
        client.publish(5, number, f"message {number}")
    assert [(3, 1, "message 0"), (3, 2, "message 1"), (3, 3, "message 2")] == [
        await client.receive_message() for _ in range(3)
    ]
    for number in range(3):
        await client.receipt(5, number)
    assert 3 == await member.metric("messages_published_total")
    assert 3 == await member.metric("messages_delivered_total")
    assert (1, 1, 1) == (
        await member.metric("topics"),
        await member.metric("producers"),
        await member.metric("consumers"),
    )
    client.write(close_producer(5, 900) + close_consumer(3, 901))
    await client.receive(T.SUCCESS, lambda command: command.success.request_id == 901)
    assert 0 == await member.metric("topics"), "a topic that nobody uses is not kept"


@pytest.mark.parametrize(
    ("data", "reason", "handshake"),
    [
        (struct.pack(">II", 2**31, 10), "frame_too_large", True),
        (connect(version=3), "unsupported_version", False),
    ],
    ids=["a huge frame", "an old client"],
)
@with_brokers()
async def test_a_client_that_violates_the_protocol_is_disconnected(
    running: Brokers, data: bytes, reason: str, handshake: bool
) -> None:
    """The connection is closed and counted by its violation, and other clients do not notice."""
    (member,) = running.members
    before = await member.client()
    client = await member.client(handshake=handshake)
    client.write(data)
    await client.closed()
    assert 1 == await member.metric("disconnections_total", reason=reason)
    assert not before.is_closed
    await neighbour_is_served(member)


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
async def test_a_damaged_message_is_refused_alone(running: Brokers) -> None:
    """Its SEND_ERROR comes in the order of the receipts."""
    (member,) = running.members
    client = await member.client()
    await client.producer(1)
    damaged = bytearray(entry())
    damaged[-1] ^= 1
    client.write(send(1, 0, entry()) + send(1, 1, bytes(damaged)) + send(1, 2, entry()))
    await client.receipt(1, 0)
    await client.receipt(1, 2)
    (error,) = [command.send_error for command, _ in client.inbox if command.type == T.SEND_ERROR]
    assert (1, ServerError.ChecksumError) == (error.sequence_id, error.error)
    assert 1 == await member.metric("messages_damaged_total")


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ("non-persistent://public", ServerError.InvalidTopicName),
        ("persistent://public/default/t", ServerError.NotAllowedError),
        ("non-persistent://nobody/knows/t", ServerError.TopicNotFound),
    ],
)
@with_brokers()
async def test_a_topic_that_is_not_served_is_refused(
    running: Brokers, topic: str, error: ServerError
) -> None:
    """The code tells clients what to do."""
    (member,) = running.members
    client = await member.client()
    client.write(lookup(1, topic))
    assert error == (await client.receive(T.LOOKUP_RESPONSE)).lookup_response.error
    client.ask_producer(1, topic)
    assert error == (await client.receive(T.ERROR)).error.error
    client.ask_consumer(1, topic)
    assert error == (await client.receive(T.ERROR)).error.error
    assert (error == ServerError.InvalidTopicName) == ("CLOSE_CONSUMER" in client.names()), (
        "only where the client is to try again"
    )
    assert 0 == await member.metric("topics")


@with_brokers()
async def test_each_request_for_a_persistent_topic_names_the_topic_to_use(running: Brokers) -> None:
    """The code is one that clients do not retry."""
    (member,) = running.members
    client = await member.client()
    topic = f"persistent://{NAMESPACE}/t"
    requests: tuple[tuple[T, T, dict[str, object]], ...] = (
        (T.PARTITIONED_METADATA, T.PARTITIONED_METADATA_RESPONSE, {}),
        (T.LOOKUP, T.LOOKUP_RESPONSE, {}),
        (T.GET_SCHEMA, T.GET_SCHEMA_RESPONSE, {}),
        (
            T.GET_OR_CREATE_SCHEMA,
            T.GET_OR_CREATE_SCHEMA_RESPONSE,
            {"schema": {"name": "", "schema_data": b"", "type": 1}},
        ),
        (T.PRODUCER, T.ERROR, {"producer_id": 1}),
        (
            T.SUBSCRIBE,
            T.ERROR,
            {"consumer_id": 1, "subscription": "s", "subType": CommandSubscribe.Shared},
        ),
    )
    for asked, answered, body in requests:
        client.ask(asked, topic=topic, **body)
        ((_, answer),) = (await client.receive(answered)).ListFields()[1:]
        error = answer.error_code if hasattr(answer, "error_code") else answer.error
        message = answer.error_message if hasattr(answer, "error_message") else answer.message
        expected = f"{topic} is persistent, and this broker stores no messages; use non-persistent://{NAMESPACE}/t"
        assert (ServerError.NotAllowedError, expected) == (error, message), T.Name(asked)
    client.ask(
        T.GET_TOPICS_OF_NAMESPACE, namespace=NAMESPACE, mode=CommandGetTopicsOfNamespace.PERSISTENT
    )
    assert [] == list(
        (
            await client.receive(T.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        ).get_topics_of_namespace_response.topics
    )
    assert [] == client.names()


@with_brokers()
async def test_a_refused_producer_or_consumer_leaves_no_topic(running: Brokers) -> None:
    (member,) = running.members
    client = await member.client()
    client.ask_producer(1, producer_access_mode=2)
    assert ServerError.NotAllowedError == (await client.receive(T.ERROR)).error.error
    client.ask_consumer(1, read_compacted=True)
    assert ServerError.NotAllowedError == (await client.receive(T.ERROR)).error.error
    assert 0 == await member.metric("topics")


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


@with_brokers(settings=Settings(tick_ms=20), config={"pulsar_keep_alive_ms": 150})
async def test_a_client_that_answers_no_ping_is_disconnected(running: Brokers) -> None:
    """A client that only answers PINGs stays."""
    (member,) = running.members
    silent, alive = await member.client(), await member.client()
    silent.answers_pings = False
    await silent.producer(1)
    await alive.producer(2)
    await silent.closed()
    assert "PING" in silent.names()
    assert 1 == await member.metric("disconnections_total", reason="no_answer")
    await metric_becomes(member, "producers", 1)
    assert not alive.is_closed


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


@with_brokers()
async def test_the_name_of_a_live_producer_is_refused(running: Brokers) -> None:
    """Its holder answers a PING first."""
    holder, other = await running.members[0].client(), await running.members[0].client()
    await holder.producer(1, name="mine")
    other.ask_producer(1, name="mine", epoch=1)
    assert ServerError.ProducerBusy == (await other.receive(T.ERROR)).error.error
    assert "PING" in holder.names()


@with_brokers(settings=Settings(probe_ms=50))
async def test_the_place_of_a_dead_client_is_free_after_a_probe(running: Brokers) -> None:
    """This holds for a producer's name and for an Exclusive subscription. The topic stays the
    same.
    """
    (member,) = running.members
    dead, other, listener = await member.client(), await member.client(), await member.client()
    dead.answers_pings = False
    await dead.producer(1, name="mine")
    assert "mine" == await other.producer(4, name="mine", epoch=1)
    await dead.closed()
    await listener.consumer(1, subscription="other")
    other.publish(4, 0, "hello")
    assert "hello" == (await listener.receive_message())[2], (
        "the topic must not have ended with the one that held the name"
    )
    listener.answers_pings = False
    await other.consumer(9, subscription="other")
    assert 1 == await member.metric("topics")


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


@with_brokers()
async def test_the_next_active_consumer_is_notified_once_when_a_connection_ends(
    running: Brokers,
) -> None:
    """None of the consumers that leave with it becomes active in between."""
    first, second = await running.members[0].client(), await running.members[0].client()
    # In partition 1 the second by name is active: after one of the two that leave it would be `c`.
    for number, name in enumerate("abcde"):
        await (first if name in "ab" else second).consumer(
            number, f"{TOPIC}-partition-1", kind=CommandSubscribe.Failover, name=name
        )
    assert (await first.receive(T.ACTIVE_CONSUMER_CHANGE)).active_consumer_change.is_active
    for _ in range(3):
        assert not (await second.receive(T.ACTIVE_CONSUMER_CHANGE)).active_consumer_change.is_active
    first.vanish()
    change = (await second.receive(T.ACTIVE_CONSUMER_CHANGE)).active_consumer_change
    assert (3, True) == (change.consumer_id, change.is_active)
    await second.located()
    assert "ACTIVE_CONSUMER_CHANGE" not in second.names()


@with_brokers()
async def test_small_questions_are_answered(running: Brokers) -> None:
    (member,) = running.members
    client = await member.client()
    await client.consumer(1, name="me")
    client.ask(T.CONSUMER_STATS, consumer_id=1)
    stats = (await client.receive(T.CONSUMER_STATS_RESPONSE)).consumer_stats_response
    assert ("me", "Exclusive", False) == (
        stats.consumerName,
        stats.type,
        stats.HasField("error_code"),
    )
    client.ask_topics()
    assert [TOPIC] == list(
        (
            await client.receive(T.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        ).get_topics_of_namespace_response.topics
    )
    client.ask_topics("no/where")
    assert ServerError.TopicNotFound == (await client.receive(T.ERROR)).error.error
    client.write(unsubscribe(1, 900))
    await client.receive(T.SUCCESS)
    assert 0 == await member.metric("consumers")
    client.write(ping())
    await client.receive(T.PONG)


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


async def test_a_broker_that_stops_redirects_its_clients(tmp_path: Path) -> None:
    async with brokers(tmp_path) as running:
        client = await running.members[0].client()
        await client.producer(1)
        await client.consumer(1)
    await client.closed()
    assert {"CLOSE_PRODUCER", "CLOSE_CONSUMER"} <= set(client.names())
