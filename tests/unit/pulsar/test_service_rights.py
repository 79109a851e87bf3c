"""Test that messages, receipts and handovers pass the second check of ownership."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

from equipoise.brokers.agent.requests import MergeBundles, Transfer
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics.topic import TopicState
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import CommandSubscribe
from equipoise.brokers.runtime.service import Ownership, Peer
from equipoise.channel.system.clocks import Deadline, now_ms
from tests.pulsar.topics import flowed
from tests.unit.pulsar.test_service_moves import HASTY, PATIENT, busy, published_behind_a_move
from tests.unit.pulsar.test_session import metric_becomes
from tests.unit.pulsar.wire_client import (
    NAMESPACE,
    PATIENCE_MS,
    TOPIC,
    Brokers,
    Member,
    T,
    WireClient,
    brokers,
    with_brokers,
)

ELSEWHERE = Peer(broker="elsewhere")


def served_at(member: Member) -> Served:
    """Return the topic that a broker serves."""
    served = member.service.hosting.topics.get(TOPIC)
    assert served is not None
    return served


async def holding(running: Brokers) -> tuple[Member, WireClient]:
    """Move the topic. Return its owner and a client. Entry 2, `1`, and its receipt wait for a
    consumer without permits.
    """
    destination, there = await published_behind_a_move(running)
    await there.consumer(1, name="me", permits=0)
    return destination, there


async def test_every_receipt_leaves_evidence_beside_a_client_that_does_not_read(
    tmp_path: Path,
) -> None:
    """A write to that client calls the topic again before the receipt."""
    path = tmp_path / "evidence"
    numbers = range(12)

    async with brokers(tmp_path, config={"evidence": path}) as running:
        (member,) = running.members
        silent, client = await member.client(), await member.client()
        await silent.consumer(1)
        await silent.stop_reading()
        await client.producer(1, name="mine")
        for number in numbers:
            client.publish(1, number, "x", padding=2_000_000)
            await client.receipt(1, number)
        assert not next(iter(served_at(member).topic.consumers)).is_writable
        silent.vanish()
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [(f"mine:{number}", f"{NAMESPACE}/{TOPIC}") for number in numbers] == [
        (line["message"], line["key"]) for line in lines
    ]


@with_brokers(count=2, settings=PATIENT)
async def test_permits_without_a_lease_take_effect_with_the_next_lease(running: Brokers) -> None:
    destination, there = await holding(running)
    lease = destination.worker.agent.lease
    skew_max_ms, lease.skew_max_ms = lease.skew_max_ms, -(10**9)
    there.flow(1, 10)
    # There is no event for it.
    while not next(iter(served_at(destination).topic.consumers)).permits:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert [] == there.names()
    lease.skew_max_ms = skew_max_ms
    assert "1" == (await there.receive_message())[2]
    await there.receipt(1, 1)


@with_brokers(count=2, settings=PATIENT)
async def test_an_entry_that_fails_its_second_check_is_not_delivered(running: Brokers) -> None:
    """It gets no receipt and is not handed over. Its producer must reconnect."""
    destination, there = await holding(running)
    served = served_at(destination)
    (consumer,) = served.topic.consumers
    outcome = flowed(served.topic, consumer, 10, now_ms())
    assert [2] == [each.entry_id for _, each in outcome.deliveries]
    destination.worker.agent.lease.lose()
    served.carry_out(outcome)
    assert (10, 1) == (
        consumer.permits,
        destination.service.counts.receipts_withheld,
    )
    assert () == served.topic.state().entries
    await there.receive(T.CLOSE_PRODUCER)
    assert 0 == await there.partitions(TOPIC)
    assert [] == [name for name in there.names() if name in {"MESSAGE", "SEND_RECEIPT"}]


@with_brokers(count=2, settings=HASTY)
async def test_a_bundle_that_returns_to_its_former_owner_keeps_its_messages(
    running: Brokers,
) -> None:
    """Its destination died before it took over."""
    destination, there = await published_behind_a_move(running)
    await there.receipt(1, 1)
    service, former = destination.service, served_at(destination).ownership
    handover = await service.close(former.bundle, ELSEWHERE, Deadline.after(timeout_ms=PATIENCE_MS))
    assert handover is not None
    former.fetch = None
    await service.open(former, handover)
    await there.consumer(1, name="me")
    assert "1" == (await there.receive_message())[2]
    assert await service.fetch(former.bundle, former.token) is None


@with_brokers(count=2, bundles=2, settings=HASTY)
async def test_a_merge_right_after_a_transfer_loses_nothing(running: Brokers) -> None:
    """One half is still opening, so both are closed without a destination."""
    _, destination, _ = await busy(running)
    lone = next(
        name
        for name in [f"{TOPIC}{n}" for n in range(99)]
        if running.bundle_of(name) != running.bundle_of()
    )
    if running.owner_of(lone) is not destination:
        await running.transfer(destination, lone)
    is_let = asyncio.Event()
    # Here the next owner waits for the former one.
    handovers = destination.service.handovers
    states = handovers.states

    async def slow(ownership: Ownership, handover: bytes | None) -> Mapping[str, TopicState]:
        await is_let.wait()
        return await states(ownership, handover)

    handovers.states = slow  # type: ignore[method-assign]
    worker = destination.worker
    moving = Transfer(bundle=running.bundle_of(), destination=worker.broker_id, reason="a test")
    await worker.request(moving, timeout_ms=PATIENCE_MS)
    await running.settled()
    left = running.view.bundles_of(NAMESPACE)[0].name
    await worker.request(MergeBundles(left=left, reason="a test"), timeout_ms=PATIENCE_MS)
    await running.settled()
    is_let.set()
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    there.publish(1, 1, "1")
    await there.receipt(1, 1)
    await there.consumer(1, name="me")
    assert (1, 2, "1") == await there.receive_message()


async def test_a_fenced_topic_notifies_no_consumer(tmp_path: Path) -> None:
    """Its client may have given the id to another consumer."""
    failover = CommandSubscribe.Failover
    async with brokers(tmp_path, count=2, settings=Settings(drain_wait_ms=PATIENCE_MS)) as running:
        source = running.owner_of()
        destination = running.other_than(source)
        slow, quick, client = [await source.client() for _ in range(3)]
        await slow.consumer(1, name="a", kind=failover)
        await quick.consumer(1, name="b", kind=failover)
        await client.producer(1)
        slow.answers_pings = False
        client.publish(1, 0, "0")
        await slow.receive_message()
        await running.transfer(destination)
        await quick.receive(T.CLOSE_CONSUMER)
        await running.transfer(source)
        third = await source.client()
        await third.consumer(1, name="a", kind=failover)
        await quick.consumer(1, name="b", kind=failover)
        await quick.located()
        quick.inbox.clear()
        connections = await source.metric("connections")
        slow.vanish()
        await metric_becomes(source, "connections", connections - 1)
        await quick.located()
        assert [] == quick.names()


@with_brokers(count=2, settings=PATIENT)
async def test_an_entry_with_a_receipt_is_delivered_beside_a_refused_one(running: Brokers) -> None:
    """The former owner sent its receipt."""
    source = running.owner_of()
    destination, there = await holding(running)
    served_at(destination).topic.release_receipts()
    producer = next(iter(served_at(destination).topic.producers.values()))
    served_at(destination).release_receipts(producer)
    await running.transfer(source)
    back = await source.client()
    await back.producer(1, name="mine", epoch=2)
    await back.consumer(1, name="me", permits=0)
    back.publish(1, 2, "2")
    assert 0 == await back.partitions(TOPIC)
    served = served_at(source)
    (consumer,) = served.topic.consumers
    outcome = flowed(served.topic, consumer, 10, now_ms())
    assert ([2, 3], [3]) == (
        [each.entry_id for _, each in outcome.deliveries],
        [each.entry_id for each in outcome.receipts],
    )
    lease = source.worker.agent.lease
    skew_ms, lease.skew_max_ms = lease.skew_max_ms, -(10**9)
    served.carry_out(outcome)
    lease.skew_max_ms = skew_ms
    assert "1" == (await back.receive_message())[2]
    await back.receive(T.CLOSE_PRODUCER)
    assert "MESSAGE" not in back.names()
    there.vanish()
