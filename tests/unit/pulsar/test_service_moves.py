"""Bundles that move, split, merge and lose their broker, with producers and consumers on them.

May live here: several brokers on one loop, and raw clients that come back at once, late, in another order, or never.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from brokers.agent.intents import MergeBundles, SplitBundle
from brokers.pulsar import handover as handovers
from brokers.pulsar.pulsar_api_pb2 import CommandSubscribe, ServerError
from brokers.pulsar.settings import Settings
from brokers.pulsar.topic import TopicLimits
from channel.ranges import topic_hash
from tests.unit.http.cluster import run
from tests.unit.pulsar.test_session import metric_becomes
from tests.unit.pulsar.wire_client import NAMESPACE, PATIENCE_MS, TOPIC, Brokers, Member, T, WireClient, brokers

PATIENT = Settings(topics=TopicLimits(receipt_wait_ms=60_000, reconnect_wait_ms=120_000))
"""Receipts and messages wait until whoever was there is back."""

HASTY = Settings(topics=TopicLimits(receipt_wait_ms=30, reconnect_wait_ms=120_000))
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


def test_receipts_wait_for_the_consumers(tmp_path: Path) -> None:
    """A message is receipted once the consumer that was there is back, and has got it."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=PATIENT) as running:
            _, destination, _ = await busy(running)
            await running.transfer(destination)
            there = await destination.client()
            await there.producer(1, name="mine", epoch=1)
            there.publish(1, 1, "1")
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
            _, destination, _ = await busy(running)
            await running.transfer(destination)
            there = await destination.client()
            await there.producer(1, name="mine", epoch=1)
            there.publish(1, 1, "1")
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


def test_all_consumers_of_a_subscription_are_waited_for(tmp_path: Path) -> None:
    """They may come back in another order; what is published meanwhile goes to both, and none of it to the first alone."""

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
            for number in range(4):
                there.publish(1, number, str(number))
                await there.receipt(1, number)
            assert [] == there.names()
            await there.consumer(1, kind=CommandSubscribe.Shared, name="a")
            got = [await there.hear_message() for _ in range(4)]
            assert {1, 2} == {consumer for consumer, _, _ in got}
            assert ["0", "1", "2", "3"] == sorted(text for _, _, text in got)

    run(story)


def test_a_client_at_the_wrong_broker_is_sent_to_the_right_one(tmp_path: Path) -> None:
    """A producer is told to look up again, a consumer where to go at once."""

    async def story() -> None:
        async with brokers(tmp_path, count=2) as running:
            owner = running.owner_of()
            client = await running.other_than(owner).client()
            client.ask_producer(1)
            assert ServerError.ServiceNotReady == (await client.hear(T.ERROR)).error.error
            client.ask_consumer(1)
            assert ServerError.ServiceNotReady == (await client.hear(T.ERROR)).error.error
            assert owner.url == (await client.hear(T.CLOSE_CONSUMER)).close_consumer.assignedBrokerServiceUrl
            assert owner.url == await client.located()

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


def test_splits_and_merges_touch_no_session(tmp_path: Path) -> None:
    """Under traffic, a bundle is cut and joined again: nobody is sent away, and every message arrives, with its receipt."""

    async def story() -> None:
        async with brokers(tmp_path, bundles=1) as running:
            (member,) = running.members
            client = await member.client()
            await client.consumer(1)
            await client.producer(1)
            sent = 0

            async def exchange() -> None:
                nonlocal sent
                client.publish(1, sent, str(sent))
                assert str(sent) == (await client.hear_message())[2]
                await client.receipt(1, sent)
                sent += 1

            await exchange()
            for _ in range(3):
                whole = running.bundle_of()
                intent = SplitBundle(bundle=whole, algorithm="range_equally_divide", reason="a test")
                offset = await member.worker.request(intent, timeout_ms=PATIENCE_MS)
                client.publish(1, sent, "meanwhile")
                await member.worker.reached(offset, timeout_ms=PATIENCE_MS)
                await running.settled()
                assert "meanwhile" == (await client.hear_message())[2]
                await client.receipt(1, sent)
                sent += 1
                await exchange()
                left = running.view.bundles_of(NAMESPACE)[0].name
                await member.worker.request(MergeBundles(left=left, reason="a test"), timeout_ms=PATIENCE_MS)
                await running.settled()
                await exchange()
            assert 1 == len(running.view.bundles_of(NAMESPACE))
            assert [] == client.names()
            assert 0 == await member.metric("receipts_withheld_total")

    run(story)


def test_a_receipt_that_waits_survives_a_merge(tmp_path: Path) -> None:
    """Though one of the two tokens ends, what was taken before is receipted after, under the token of the union."""

    async def story() -> None:
        async with brokers(tmp_path, count=2, bundles=2, settings=PATIENT) as running:
            _, destination, client = await busy(running)
            lone = next(name for name in [f"{TOPIC}{n}" for n in range(99)] if running.bundle_of(name) != running.bundle_of())
            if running.owner_of(lone) is not destination:
                await running.transfer(destination, lone)
            await running.transfer(destination)
            there = await destination.client()
            await there.producer(1, name="mine", epoch=1)
            there.publish(1, 1, "1")
            await there.located()
            left = running.view.bundles_of(NAMESPACE)[0].name
            await destination.worker.request(MergeBundles(left=left, reason="a test"), timeout_ms=PATIENCE_MS)
            await running.settled()
            assert 1 == len(running.view.bundles_of(NAMESPACE))
            await there.consumer(1, name="me")
            await there.receipt(1, 1)
            assert "1" == (await there.hear_message())[2]
            assert 0 == await destination.metric("receipts_withheld_total")
            assert not client.is_closed

    run(story)


def test_evidence_names_the_message(tmp_path: Path) -> None:
    """Each receipt leaves a line with the topic, the token, and which message of which producer it was."""
    path = tmp_path / "evidence"

    async def story() -> None:
        async with brokers(tmp_path, config={"evidence": path}) as running:
            client = await running.members[0].client()
            await client.producer(1, name="mine")
            for number in (4, 5):
                client.publish(1, number, "x")
                await client.receipt(1, number)

    run(story)
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert ["mine:4", "mine:5"] == [line["message"] for line in lines]
    assert all(line["key"] == f"{NAMESPACE}/{TOPIC}" for line in lines)


def test_without_the_right_to_serve_there_is_no_receipt(tmp_path: Path) -> None:
    """A broker whose lease has run out takes no message; the producer has to connect anew, so that it does not wait in vain."""

    async def story() -> None:
        async with brokers(tmp_path) as running:
            (member,) = running.members
            client = await member.client()
            await client.consumer(1)
            await client.producer(1)
            member.worker.agent.lease.lose()
            client.publish(1, 0, "unheard")
            closed = (await client.hear(T.CLOSE_PRODUCER)).close_producer
            assert (1, "") == (closed.producer_id, closed.assignedBrokerServiceUrl)
            assert [] == [name for name in client.names() if name in {"SEND_RECEIPT", "MESSAGE"}]
            assert 1 == await member.metric("receipts_withheld_total")

    run(story)


def test_clients_of_a_dead_broker_are_held_until_there_is_an_owner(tmp_path: Path) -> None:
    """A lookup at a living broker is answered once the bundle has a new owner, and producers and consumers find all in order there."""

    async def story() -> None:
        async with brokers(tmp_path, count=2) as running:
            source, survivor, _ = await busy(running)
            waiting = await survivor.client()
            await source.worker.abort()
            # The dead broker is named until its lease has run out; then lookups are held.
            while survivor.url != await waiting.located():  # noqa: ASYNC110 - it is to be asked again and again
                await asyncio.sleep(0.02)
            await waiting.consumer(1, name="me")
            await waiting.producer(1, name="mine", epoch=1)
            waiting.publish(1, 1, "1")
            assert "1" == (await waiting.hear_message())[2]

    run(story)
