"""Bundles that move, with producers and consumers on them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics import handover as handovers
from equipoise.brokers.pulsar.topics.topic import TopicLimits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.pulsar.wire.requests import AccessMode
from equipoise.brokers.runtime.service import Bundle
from equipoise.channel.core.errors import DeadlineExceeded
from equipoise.channel.core.ranges import TopicName, topic_hash
from tests.pulsar.pulsar_speech import connect
from tests.unit.pulsar.test_session import metric_becomes
from tests.unit.pulsar.wire_client import NAMESPACE, TOPIC, Brokers, Member, T, WireClient, brokers, with_brokers

PATIENT = Settings(topics=TopicLimits(receipt_wait_ms=60_000, reconnect_wait_ms=120_000))
"""Receipts and messages wait until whoever was there is back."""

HASTY = Settings(topics=TopicLimits(receipt_wait_ms=30, absent_wait_ms=120_000, reconnect_wait_ms=120_000))
"""Receipts do not wait for long; messages do."""


async def busy(running: Brokers) -> tuple[Member, Member, WireClient]:
    """The owner, another broker, and a client of the owner with producer 1 (`mine`) and consumer 1, both used."""
    source = running.owner_of()
    destination = running.other_than(source)
    client = await source.client()
    await client.consumer(1, name="me")
    await client.producer(1, name="mine")
    client.publish(1, 0, "0")
    await client.receipt(1, 0)
    assert "0" == (await client.hear_message())[2]
    return source, destination, client


async def published_behind_a_move(running: Brokers) -> tuple[Member, WireClient]:
    """Where the topic of `busy` has just moved, and a client there whose producer 1 (`mine`) has sent entry 2, `1`; no consumer is back."""
    _, destination, _ = await busy(running)
    await running.transfer(destination)
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    there.publish(1, 1, "1")
    return destination, there


async def sent_away(client: WireClient) -> tuple[str, str]:
    """Where the producer and the consumer of a client are sent."""
    producer = (await client.hear(T.CLOSE_PRODUCER)).close_producer
    consumer = (await client.hear(T.CLOSE_CONSUMER)).close_consumer
    return producer.assignedBrokerServiceUrl, consumer.assignedBrokerServiceUrl


@with_brokers(count=2)
async def test_clients_are_sent_to_the_new_owner(running: Brokers) -> None:
    """Both are told its address, with the connection left open; entry ids go on, and what is still under way is ignored."""
    source, destination, client = await busy(running)
    moving = asyncio.ensure_future(running.transfer(destination))
    assert (destination.url, destination.url) == await sent_away(client)
    client.publish(1, 1, "too late")
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    await there.consumer(1, name="me")
    there.publish(1, 1, "1")
    assert (1, 2, "1") == await there.hear_message()
    await there.receipt(1, 1)
    await moving
    assert "SEND_RECEIPT" not in client.names()
    assert destination.url == await client.located()
    assert not client.is_closed
    assert (0, 1) == (await source.metric("topics"), await destination.metric("topics"))


@with_brokers(count=2, settings=HASTY)
async def test_messages_wait_for_a_consumer_that_is_late(running: Brokers) -> None:
    """Receipts go out when their time has come, though nothing else happens; messages wait on, and come in order."""
    _, destination, _ = await busy(running)
    await running.transfer(destination)
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    for number in (1, 2, 3):
        there.publish(1, number, str(number))
    for number in (1, 2, 3):
        await there.receipt(1, number)
    assert 1 == await destination.metric("topics_waiting")
    await there.consumer(1, name="me")
    assert ["1", "2", "3"] == [(await there.hear_message())[2] for _ in range(3)]
    assert (0, 0) == (await destination.metric("topics_waiting"), await destination.metric("messages_dropped_total"))


async def test_receipts_of_one_topic_do_not_wait_for_another_one(tmp_path: Path) -> None:
    """While a topic waits long for a consumer, the time of one that comes later is not overlooked."""
    other = next(name for n in range(999) if topic_hash(name := f"non-persistent://{NAMESPACE}/{n}") >> 30 != topic_hash(TOPIC) >> 30)

    async with brokers(tmp_path, count=2, settings=HASTY) as running:
        source, destination, client = await busy(running)
        if running.owner_of(other) is destination:
            await running.transfer(source, other)
        await client.consumer(2, other, name="me")
        await running.transfer(destination)
        there = await destination.client()
        await there.producer(1, name="mine", epoch=1)
        there.publish(1, 1, "1")
        await there.receipt(1, 1)
        await running.transfer(destination, other)
        await there.producer(2, other)
        there.publish(2, 0, "x")
        await there.receipt(2, 0)
        assert 2 == await destination.metric("topics_waiting")


@with_brokers(count=2, settings=Settings(topics=TopicLimits(receipt_wait_ms=10, reconnect_wait_ms=150)))
async def test_who_never_comes_back_is_not_waited_for_for_ever(running: Brokers) -> None:
    """What waited is dropped and counted when the time is up, and a topic to which nobody came back is not kept."""
    destination, there = await published_behind_a_move(running)
    await there.receipt(1, 1)
    await metric_becomes(destination, "messages_dropped_total", 1)
    there.vanish()
    await metric_becomes(destination, "topics", 0)


async def test_a_topic_of_producers_alone_is_not_kept_without_them(tmp_path: Path) -> None:
    """A topic that came with its bundle only for the sake of its entry ids goes when nobody came to it."""
    other = next(name for n in range(999) if topic_hash(name := f"non-persistent://{NAMESPACE}/{n}") >> 30 == topic_hash(TOPIC) >> 30)
    settings = Settings(topics=TopicLimits(reconnect_wait_ms=100))
    async with brokers(tmp_path, count=2, settings=settings) as running:
        _, destination, client = await busy(running)
        await client.producer(2, other)
        client.publish(2, 0, "x")
        await client.receipt(2, 0)
        await running.transfer(destination)
        await metric_becomes(destination, "topics", 0)


@with_brokers(count=2, settings=HASTY)
async def test_a_second_move_takes_along_what_waited(running: Brokers) -> None:
    """What was receipted, and waits for a consumer, goes on to the next owner, and is delivered there, once and in order."""
    source, destination, _ = await busy(running)
    await running.transfer(destination)
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    for number in (1, 2):
        there.publish(1, number, str(number))
        await there.receipt(1, number)
    await running.transfer(source)
    back = await source.client()
    await back.producer(1, name="mine", epoch=2)
    back.publish(1, 3, "3")
    await back.consumer(1, name="me")
    assert ["1", "2", "3"] == [(await back.hear_message())[2] for _ in range(3)]


@with_brokers(count=2, settings=PATIENT)
async def test_a_consumer_without_a_name_is_known_again(running: Brokers) -> None:
    """The new owner gives it another name than the former one did, and waits for it all the same, and no longer."""
    source = running.owner_of()
    destination = running.other_than(source)
    client = await source.client()
    await client.consumer(1, name="")
    await client.producer(1, name="mine")
    await running.transfer(destination)
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    there.publish(1, 1, "1")
    await there.consumer(1, name="")
    await there.receipt(1, 1)
    assert "1" == (await there.hear_message())[2]


@with_brokers(count=2)
async def test_a_client_at_the_wrong_broker_is_sent_to_the_right_one(running: Brokers) -> None:
    """It may open a producer and a consumer there, is sent on at their first use, and loses nothing that was receipted."""
    owner = running.owner_of()
    client = await running.other_than(owner).client()
    await client.consumer(1, name="me")
    await client.producer(1, name="mine")
    client.publish(1, 0, "ignored")
    assert (owner.url, owner.url) == await sent_away(client)
    there = await owner.client()
    await there.consumer(1, name="me")
    await there.producer(1, name="mine")
    there.publish(1, 0, "taken")
    await there.receipt(1, 0)
    assert "taken" == (await there.hear_message())[2]
    assert "SEND_RECEIPT" not in client.names()
    assert owner.url == await client.located()


@with_brokers(count=2)
async def test_a_producer_that_wants_a_topic_alone_is_not_let_in_at_the_wrong_broker(running: Brokers) -> None:
    """Success would promise that no other producer is there, which only the owner knows."""
    client = await running.other_than(running.owner_of()).client()
    client.ask_producer(1, producer_access_mode=AccessMode.EXCLUSIVE)
    assert ServerError.ServiceNotReady == (await client.hear(T.ERROR)).error.error


@with_brokers()
async def test_a_consumer_of_a_topic_without_an_owner_is_sent_to_look_it_up_again(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the longest wait it is no error, which would end the consumers of some clients for good; no broker is named."""
    (member,) = running.members

    async def serve(topic: TopicName) -> None:
        raise DeadlineExceeded(what=f"an owner of {topic.full}", waited_ms=0)

    monkeypatch.setattr(member.service, "serve", serve)
    client = await member.client()
    await client.consumer(1)
    assert not (await client.hear(T.CLOSE_CONSUMER)).close_consumer.HasField("assignedBrokerServiceUrl")


@pytest.mark.parametrize("comes", [True, False])
@with_brokers(count=2)
async def test_who_comes_before_the_bundle_is_held(running: Brokers, comes: bool) -> None:
    """A destination that is told to prepare answers nobody until the bundle comes, or until it is told that it does not."""
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
        await early.hear(T.PRODUCER_SUCCESS)
        await early.hear(T.SUCCESS)
    else:
        await destination.service.discard(bundle)
        await early.hear(T.PRODUCER_SUCCESS)
        await early.hear(T.SUCCESS)
        early.flow(1, 1)
        assert source.url == (await early.hear(T.CLOSE_CONSUMER)).close_consumer.assignedBrokerServiceUrl


@with_brokers(count=2, settings=Settings(settle_java_ms=500))
async def test_a_client_in_java_has_longer_to_take_its_messages(running: Brokers) -> None:
    """Its PONG does not show that its program has them; others are sent on meanwhile."""
    source, destination, client = await busy(running)
    java = await source.client(handshake=False)
    java.say(connect(client_version="Pulsar-Java-v4.0.8"))
    await java.consumer(1, subscription="java")
    client.publish(1, 1, "1")
    await java.hear_message()
    moving = asyncio.ensure_future(running.transfer(destination))
    assert (destination.url, destination.url) == await sent_away(client)
    assert "CLOSE_CONSUMER" not in java.names()
    assert destination.url == (await java.hear(T.CLOSE_CONSUMER)).close_consumer.assignedBrokerServiceUrl
    await moving


@pytest.mark.parametrize("language", ["Python", "Java"])
@with_brokers(count=2, config={"pulsar_settle_ms": 400})
async def test_programs_have_as_long_as_the_operator_says(running: Brokers, language: str) -> None:
    """Where programs are slow the consumers of a bundle that moves are sent on later, in whichever language; the producers at once."""
    source, destination, _ = await busy(running)
    client = await source.client(handshake=False)
    client.say(connect(client_version=f"Pulsar-{language}-v4.0.8"))
    await client.consumer(1, subscription="slow")
    await client.producer(1, name="quick")
    moving = asyncio.ensure_future(running.transfer(destination))
    await client.hear(T.CLOSE_PRODUCER)
    began_ns = time.monotonic_ns()
    await client.hear(T.CLOSE_CONSUMER)
    assert time.monotonic_ns() - began_ns > 300_000_000
    await moving


@with_brokers(count=2, settings=Settings(drain_wait_ms=20))
async def test_a_client_that_does_not_answer_keeps_no_move(running: Brokers) -> None:
    """Who does not say that it has taken what it was sent is told where to go all the same, a moment later."""
    _, destination, client = await busy(running)
    client.answers_pings = False
    await running.transfer(destination)
    assert (destination.url, destination.url) == await sent_away(client)


async def test_a_handover_that_cannot_be_read_costs_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topics begin anew, which is counted; nobody is waited for."""
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
