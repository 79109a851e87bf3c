"""Test that the next owner fetches waiting messages, and that lost ones are reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from equipoise.brokers.pulsar.closed import Handovers
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics.topic import TopicLimits
from equipoise.brokers.runtime.state_stream import Arrival
from equipoise.channel.core.errors import PeerError
from tests.unit.http.cluster import run, until
from tests.unit.pulsar.test_service_moves import busy
from tests.unit.pulsar.wire_client import Brokers, Member, WireClient, brokers

Fetch = Callable[[Arrival], Awaitable[bytes | None]]

HASTY = TopicLimits(receipt_wait_ms=30, absent_wait_ms=120_000, reconnect_wait_ms=120_000)


async def waiting(running: Brokers) -> tuple[Member, Member]:
    """Return the owner of a topic and another broker. A message with a receipt waits there for a
    late consumer.
    """
    other, owner, _ = await busy(running)
    await running.transfer(owner)
    there = await owner.client()
    await there.producer(1, name="mine", epoch=1)
    there.publish(1, 1, "1")
    await there.receipt(1, 1)
    return owner, other


async def delivered(member: Member) -> str:
    """Return the message that the late consumer gets."""
    client: WireClient = await member.client()
    await client.consumer(1, name="me")
    return (await client.receive_message())[2]


def with_fetches(
    monkeypatch: pytest.MonkeyPatch, fetch: Callable[[Fetch, Arrival], Awaitable[bytes | None]]
) -> None:
    """Replace how next owners fetch. `fetch` gets the usual function."""
    usual = Arrival.whole
    monkeypatch.setattr(Arrival, "whole", lambda arrival: fetch(usual, arrival))


async def test_a_failed_fetch_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Arrival] = []

    async def fail_once(usual: Fetch, arrival: Arrival) -> bytes | None:
        asked.append(arrival)
        if len(asked) == 1:
            raise PeerError("a broken connection")
        return await usual(arrival)

    async with brokers(tmp_path, count=2, settings=Settings(topics=HASTY)) as running:
        _, destination = await waiting(running)
        with_fetches(monkeypatch, fail_once)
        await running.transfer(destination)
        assert "1" == await delivered(destination)
        assert (2, 0) == (len(asked), destination.service.counts.handovers_damaged)


def test_a_state_without_room_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The topics open and wait for their consumers, without the messages."""
    settings = Settings(topics=HASTY, closed_bytes_max=100)

    async def story() -> None:
        async with brokers(tmp_path, count=2, settings=settings) as running:
            source, destination = await waiting(running)
            await running.transfer(destination)
            await until(lambda: destination.service.counts.handovers_damaged == 1)
            assert 1 == source.service.counts.dropped
            assert 1 == await destination.metric("topics_waiting")

    with caplog.at_level(logging.WARNING):
        run(story)
    assert "lost 1 messages and the names of 1 topics" in caplog.text
    assert "its former owner is gone or no longer has it" in caplog.text


async def test_a_broker_that_stops_answers_a_slow_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = asyncio.Event()

    async def late(usual: Fetch, arrival: Arrival) -> bytes | None:
        await leaving.wait()
        await asyncio.sleep(0.1)  # The stop continues meanwhile.
        return await usual(arrival)

    usual_wait = Handovers.all_fetched

    async def all_fetched(handovers: Handovers) -> None:
        leaving.set()
        await usual_wait(handovers)

    monkeypatch.setattr(Handovers, "all_fetched", all_fetched)

    async with brokers(tmp_path, count=2, settings=Settings(topics=HASTY)) as running:
        source, destination = await waiting(running)
        with_fetches(monkeypatch, late)
        await source.stop()
        await destination.worker.until(
            lambda view: all(each.phase == "owned" for each in view.bundles.values()) or None,
            timeout_ms=20_000,
            what="all being owned",
        )
        assert "1" == await delivered(destination)
        assert 0 == destination.service.counts.handovers_damaged


def test_a_broker_that_stops_does_not_wait_without_fetches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It logs what is lost."""

    async def never(_usual: Fetch, _arrival: Arrival) -> bytes | None:
        raise PeerError("it cannot be reached")

    async def story() -> None:
        settings = Settings(topics=HASTY, next_fetch_ms=50)
        async with brokers(tmp_path, count=2, settings=settings) as running:
            source, _ = await waiting(running)
            with pytest.MonkeyPatch.context() as patch:
                with_fetches(patch, never)
                await source.stop()

    with caplog.at_level(logging.WARNING):
        run(story)
    assert "lost the states of 1 closed bundles" in caplog.text
