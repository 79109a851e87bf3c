"""Bundles that move, with producers and consumers on them.

May live here: several brokers on one loop, and raw clients that come back at once, late, in another order, or never.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics import handover as handovers
from equipoise.brokers.pulsar.topics.topic import TopicLimits
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import CommandSubscribe, ServerError
from equipoise.brokers.pulsar.wire.requests import AccessMode
from equipoise.brokers.runtime.service import Bundle
from equipoise.channel.core.errors import DeadlineExceeded
from equipoise.channel.core.ranges import TopicName, topic_hash
from tests.pulsar_speech import connect
from tests.unit.http.cluster import run
from tests.unit.pulsar.test_session import metric_becomes
from tests.unit.pulsar.wire_client import NAMESPACE, TOPIC, Brokers, Member, T, WireClient, brokers

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


def test_clients_are_sent_to_the_new_owner(tmp_path: Path) -> None:
    """Both are told its address, with the connection left open; entry ids go on, and what is still under way is ignored."""

    async def story() -> None:
        async with brokers(tmp_path, count=2) as running:
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

    run(story)


def test_messages_wait_for_a_consumer_that_is_late(tmp_path: Path) -> None:
    """Receipts go out when their time has come, though nothing else happens; messages wait on, and come in order."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=HASTY) as running:
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

    run(story)


def test_receipts_of_one_topic_do_not_wait_for_another_one(tmp_path: Path) -> None:
    """While a topic waits long for a consumer, the time of one that comes later is not overlooked."""
    other = next(name for n in range(999) if topic_hash(name := f"non-persistent://{NAMESPACE}/{n}") >> 30 != topic_hash(TOPIC) >> 30)

    async def story() -> None:
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

    run(story)


def test_receipts_wait_for_the_consumers(tmp_path: Path) -> None:
    """A message is receipted once the consumer that was there is back, and has got it."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=PATIENT) as running:
            _, there = await published_behind_a_move(running)
            await there.located()
            assert [] == there.names()
            await there.consumer(1, name="me")
            await there.receipt(1, 1)
            assert "1" == (await there.hear_message())[2]

    run(story)


def test_who_never_comes_back_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    """What waited is dropped and counted when the time is up, and a topic to which nobody came back is not kept."""

    async def story() -> None:
        settings = Settings(topics=TopicLimits(receipt_wait_ms=10, reconnect_wait_ms=150))
        async with brokers(tmp_path, count=2, settings=settings) as running:
            destination, there = await published_behind_a_move(running)
            await there.receipt(1, 1)
            await metric_becomes(destination, "messages_dropped_total", 1)
            there.vanish()
            await metric_becomes(destination, "topics", 0)

    run(story)


def test_a_topic_of_producers_alone_is_not_kept_without_them(tmp_path: Path) -> None:
    """A topic that came with its bundle only for the sake of its entry ids goes when nobody came to it."""

    async def story() -> None:
        other = next(name for n in range(999) if topic_hash(name := f"non-persistent://{NAMESPACE}/{n}") >> 30 == topic_hash(TOPIC) >> 30)
        settings = Settings(topics=TopicLimits(reconnect_wait_ms=100))
        async with brokers(tmp_path, count=2, settings=settings) as running:
            _, destination, client = await busy(running)
            await client.producer(2, other)
            client.publish(2, 0, "x")
            await client.receipt(2, 0)
            await running.transfer(destination)
            await metric_becomes(destination, "topics", 0)

    run(story)


def test_a_second_move_takes_along_what_waited(tmp_path: Path) -> None:
    """What was receipted, and waits for a consumer, goes on to the next owner, and is delivered there, once and in order."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=HASTY) as running:
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

    run(story)


def test_two_moves_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    """A message without its receipt when its bundle moves on is not handed on: its producer sends it again."""

    async def story() -> None:
        async with brokers(tmp_path, count=3, settings=PATIENT) as running:
            source, second, client = await busy(running)
            third = running.other_than(source, second)
            await running.transfer(second)
            await sent_away(client)
            there = await second.client()
            await there.producer(1, name="mine", epoch=1)
            there.publish(1, 1, "1")
            await there.located()
            await running.transfer(third)
            assert third.url == (await there.hear(T.CLOSE_PRODUCER)).close_producer.assignedBrokerServiceUrl
            assert "SEND_RECEIPT" not in there.names()
            last = await third.client()
            await last.consumer(1, name="me")
            await last.producer(1, name="mine", epoch=2)
            last.publish(1, 1, "1")
            last.publish(1, 2, "2")
            assert ["1", "2"] == [(await last.hear_message())[2] for _ in range(2)]
            await last.receipt(1, 1)

    run(story)


def test_a_quick_subscription_gets_nothing_twice_when_the_bundle_moves_on(tmp_path: Path) -> None:
    """A consumer that is back gets nothing of what has no receipt yet: its producer sends that again to the next owner."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=PATIENT) as running:
            source, destination, client = await busy(running)
            await client.consumer(2, subscription="slow", name="slow")
            client.publish(1, 1, "1")
            assert {(1, "1"), (2, "1")} == {(consumer, text) for consumer, _, text in [await client.hear_message() for _ in range(2)]}
            await running.transfer(destination)
            there = await destination.client()
            await there.consumer(1, name="me")
            await there.producer(1, name="mine", epoch=1)
            there.publish(1, 2, "2")
            await there.located()
            await running.transfer(source)
            assert [] == [name for name in there.names() if name in {"MESSAGE", "SEND_RECEIPT"}]
            back = await source.client()
            await back.producer(1, name="mine", epoch=2)
            back.publish(1, 2, "2")
            await back.consumer(1, name="me")
            await back.consumer(2, subscription="slow", name="slow")
            await back.receipt(1, 2)
            assert {(1, "2"), (2, "2")} == {(consumer, text) for consumer, _, text in [await back.hear_message() for _ in range(2)]}

    run(story)


def test_all_consumers_of_a_subscription_are_waited_for(tmp_path: Path) -> None:
    """They may come back in another order; what is published meanwhile goes to who should have it, and none to who comes first."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=HASTY) as running:
            source = running.owner_of()
            destination = running.other_than(source)
            client = await source.client()
            for number, name in ((1, "a"), (2, "b")):
                await client.consumer(number, kind=CommandSubscribe.Failover, name=name)
            await client.producer(1, name="mine")
            await running.transfer(destination)
            there = await destination.client()
            await there.consumer(2, kind=CommandSubscribe.Failover, name="b")
            await there.producer(1, name="mine", epoch=1)
            for number in range(4):
                there.publish(1, number, str(number))
                await there.receipt(1, number)
            assert "MESSAGE" not in there.names()
            await there.consumer(1, kind=CommandSubscribe.Failover, name="a")
            assert [(1, "0"), (1, "1"), (1, "2"), (1, "3")] == [(got[0], got[2]) for got in [await there.hear_message() for _ in range(4)]]

    run(story)


def test_a_shared_consumer_that_is_gone_holds_up_the_others_no_longer_than_receipts(tmp_path: Path) -> None:
    """It was closed as the bundle moved, say: once receipts are out, those who are back have everything."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=HASTY) as running:
            source = running.owner_of()
            destination = running.other_than(source)
            client = await source.client()
            for number, name in ((1, "a"), (2, "b")):
                await client.consumer(number, kind=CommandSubscribe.Shared, name=name)
            await client.producer(1, name="mine")
            await running.transfer(destination)
            there = await destination.client()
            await there.consumer(2, kind=CommandSubscribe.Shared, name="b")
            await there.producer(1, name="mine", epoch=1)
            there.publish(1, 1, "1")
            assert "1" == (await there.hear_message())[2]

    run(story)


def test_a_consumer_without_a_name_is_known_again(tmp_path: Path) -> None:
    """The new owner gives it another name than the former one did, and waits for it all the same, and no longer."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=PATIENT) as running:
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

    run(story)


def test_a_client_at_the_wrong_broker_is_sent_to_the_right_one(tmp_path: Path) -> None:
    """It may open a producer and a consumer there, is sent on at their first use, and loses nothing that was receipted."""

    async def story() -> None:
        async with brokers(tmp_path, count=2) as running:
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

    run(story)


def test_a_producer_that_wants_a_topic_alone_is_not_let_in_at_the_wrong_broker(tmp_path: Path) -> None:
    """Success would promise that no other producer is there, which only the owner knows."""

    async def story() -> None:
        async with brokers(tmp_path, count=2) as running:
            client = await running.other_than(running.owner_of()).client()
            client.ask_producer(1, access_mode=AccessMode.EXCLUSIVE)
            assert ServerError.ServiceNotReady == (await client.hear(T.ERROR)).error.error

    run(story)


def test_a_consumer_of_a_topic_without_an_owner_is_sent_to_look_it_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the longest wait it is no error, which would end the consumers of some clients for good; no broker is named."""

    async def story() -> None:
        async with brokers(tmp_path) as running:
            (member,) = running.members

            async def serve(topic: TopicName) -> None:
                raise DeadlineExceeded(what=f"an owner of {topic.full}", waited_ms=0)

            monkeypatch.setattr(member.service, "serve", serve)
            client = await member.client()
            await client.consumer(1)
            assert not (await client.hear(T.CLOSE_CONSUMER)).close_consumer.HasField("assignedBrokerServiceUrl")

    run(story)


@pytest.mark.parametrize("comes", [True, False])
def test_who_comes_before_the_bundle_is_held(comes: bool, tmp_path: Path) -> None:
    """A destination that is told to prepare answers nobody until the bundle comes, or until it is told that it does not."""

    async def story() -> None:
        async with brokers(tmp_path, count=2) as running:
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

    run(story)


def test_a_client_in_java_has_longer_to_take_its_messages(tmp_path: Path) -> None:
    """Its PONG does not show that its program has them; others are sent on meanwhile."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=Settings(settle_java_ms=500)) as running:
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

    run(story)


@pytest.mark.parametrize("language", ["Python", "Java"])
def test_programs_have_as_long_as_the_operator_says(language: str, tmp_path: Path) -> None:
    """Where programs are slow the consumers of a bundle that moves are sent on later, in whichever language; the producers at once."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, config={"pulsar_settle_ms": 400}) as running:
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

    run(story)


def test_a_client_that_does_not_answer_keeps_no_move(tmp_path: Path) -> None:
    """Who does not say that it has taken what it was sent is told where to go all the same, a moment later."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=Settings(drain_wait_ms=20)) as running:
            _, destination, client = await busy(running)
            client.answers_pings = False
            await running.transfer(destination)
            assert (destination.url, destination.url) == await sent_away(client)

    run(story)


def test_a_handover_that_cannot_be_read_costs_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topics begin anew, which is counted; nobody is waited for."""
    encoded = handovers.encode({})
    monkeypatch.setattr(handovers, "encode", lambda _: encoded._replace(handover=b"nonsense"))

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=PATIENT) as running:
            _, destination, _ = await busy(running)
            await running.transfer(destination)
            assert 1 == await destination.metric("handovers_damaged_total")
            there = await destination.client()
            await there.producer(1, name="mine", epoch=1)
            there.publish(1, 1, "1")
            await there.receipt(1, 1)

    run(story)
