"""Test ownership under producers and consumers: splits, merges, an expired lease, and a dead
broker.
"""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from equipoise.brokers.agent.requests import MergeBundles, SetSettings, SplitBundle
from equipoise.brokers.balancing.settings.settings_records import Changes
from equipoise.brokers.balancing.splitting.split_points import (
    FLOW_OR_QPS_EQUALLY_DIVIDE,
    TopicLoad,
)
from tests.unit.pulsar.test_service_moves import PATIENT, busy
from tests.unit.pulsar.wire_client import NAMESPACE, PATIENCE_MS, TOPIC, Brokers, with_brokers


@with_brokers(bundles=1)
async def test_a_split_by_load_applies_the_settings_in_force(running: Brokers) -> None:
    """A bundle of 800 messages/s exceeds a limit of 500, but not by a margin of 100 %."""
    (member,) = running.members
    await (await member.client()).producer(1)
    topics = tuple(TopicLoad(point=point, messages_per_second=400) for point in (1_000, 3_000))
    intent = SplitBundle(
        bundle=running.bundle_of(), algorithm=FLOW_OR_QPS_EQUALLY_DIVIDE, reason="a test"
    )
    with patch("equipoise.brokers.pulsar.service.topic_loads", return_value=topics):
        for margin, cuts in (("1", []), ("0.1", [2_001])):
            changes: Changes = {
                "limits.messages_per_second_max": 500,
                "split_points.margin": margin,
            }
            await member.worker.request(SetSettings(changes=changes), timeout_ms=PATIENCE_MS)
            await member.worker.request(intent, timeout_ms=PATIENCE_MS)
            await running.settled()
            assert cuts == [bundle.low for bundle in running.view.bundles_of(NAMESPACE)][1:]


@with_brokers(count=2, bundles=2, settings=PATIENT)
async def test_a_held_receipt_survives_a_merge(running: Brokers) -> None:
    """It is sent under the token of the union."""
    source, destination, client = await busy(running)
    lone = next(
        name
        for name in [f"{TOPIC}{n}" for n in range(99)]
        if running.bundle_of(name) != running.bundle_of()
    )
    await running.transfer(destination)
    # So that it is the token of the other bundle that goes on.
    if running.owner_of(lone) is destination:
        await running.transfer(source, lone)
    await running.transfer(destination, lone)
    assert (
        running.view.bundles[running.bundle_of()].token
        < running.view.bundles[running.bundle_of(lone)].token
    )
    there = await destination.client()
    await there.producer(1, name="mine", epoch=1)
    there.publish(1, 1, "1")
    await there.located()
    left = running.view.bundles_of(NAMESPACE)[0].name
    await destination.worker.request(
        MergeBundles(left=left, reason="a test"), timeout_ms=PATIENCE_MS
    )
    await running.settled()
    assert 1 == len(running.view.bundles_of(NAMESPACE))
    await there.consumer(1, name="me")
    await there.receipt(1, 1)
    assert "1" == (await there.receive_message())[2]
    assert 0 == await destination.metric("receipts_withheld_total")
    assert not client.is_closed


@with_brokers(count=2)
async def test_clients_of_a_dead_broker_are_held_until_there_is_an_owner(running: Brokers) -> None:
    source, survivor, _ = await busy(running)
    waiting = await survivor.client()
    await source.worker.abort()
    # The dead broker is named until its lease has run out; then lookups are held.
    # It is to be asked again and again.
    while survivor.url != await waiting.located():  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await waiting.consumer(1, name="me")
    await waiting.producer(1, name="mine", epoch=1)
    waiting.publish(1, 1, "1")
    assert "1" == (await waiting.receive_message())[2]
