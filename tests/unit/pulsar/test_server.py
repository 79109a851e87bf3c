"""Test the server: names, metrics, log lines, and counts of what connections keep in memory."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.pulsar.connections import Pool
from equipoise.brokers.pulsar.link import ClientLink
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
)
from equipoise.brokers.pulsar.wire.requests import Violation
from equipoise.brokers.runtime import snapshots
from equipoise.channel.core.ranges import even_boundaries
from tests.docs.metrics_page import documented, misdescribed
from tests.pulsar.pulsar_speech import connect, lookup, ping, send
from tests.pulsar.pulsar_speech import entry as entry_of
from tests.unit.http.cluster import PATIENCE_MS, until
from tests.unit.http.test_channel_loss import QUICK, Logs
from tests.unit.pulsar.test_session import metric_becomes
from tests.unit.pulsar.wire_client import Brokers, Member, brokers, with_brokers
from tests.unit.security.signing import SETTINGS, token


async def breach(member: Member) -> None:
    """Connect, violate the protocol, and wait for the end of the connection."""
    client = await member.client(handshake=False)
    client.write(send(1, 0, entry_of()))
    await client.closed()


@with_brokers(count=2)
async def test_generated_names_are_unique(running: Brokers) -> None:
    names = [await (await running.owner_of().client()).producer(number) for number in range(3)]
    assert 3 == len(set(names))
    assert all(running.owner_of().worker.broker_id in name for name in names)


async def test_a_namespace_that_may_be_new_is_not_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that lost the channel holds the questions about it."""
    logs, topic = Logs(), "non-persistent://public/new/orders"
    monkeypatch.setattr(snapshots, "open_log", logs.open)
    async with brokers(tmp_path, count=2, config={**QUICK, "lookup_ms": PATIENCE_MS}) as running:
        seeing, cut_off = running.members
        client = await cut_off.client()
        try:
            logs.go(first=1)
            agent, clock = cut_off.worker.agent, cut_off.worker.clock
            await until(lambda: agent.out_of_touch_ms(clock.now()) is not None)
            new = CreateNamespace(name="public/new", boundaries=even_boundaries(1))
            await seeing.worker.request(new, timeout_ms=PATIENCE_MS)
            client.write(lookup(client.request_id(), topic))
            client.ask(BaseCommand.PARTITIONED_METADATA, topic=topic)
            client.write(ping())
            await client.receive(BaseCommand.PONG)
            assert {"LOOKUP_RESPONSE", "PARTITIONED_METADATA_RESPONSE"}.isdisjoint(client.names())
            logs.come_back()
            answer = (
                await client.receive(BaseCommand.PARTITIONED_METADATA_RESPONSE)
            ).partitioned_metadata_response
            assert (CommandPartitionedTopicMetadataResponse.Success, 0) == (
                answer.response,
                answer.partitions,
            )
            found = (await client.receive(BaseCommand.LOOKUP_RESPONSE)).lookup_response
            assert CommandLookupTopicResponse.Connect == found.response
        finally:
            logs.come_back()  # Otherwise the broker would have to be killed.


async def test_every_metric_is_documented_and_exported_from_the_start(tmp_path: Path) -> None:
    """A series that appears with its first event has no rate."""
    async with brokers(tmp_path) as running:
        text = str(await running.members[0].get("/metrics"))
        told = {
            line.split()[2]
            for line in text.splitlines()
            if line.startswith("# TYPE equipoise_pulsar_")
        }
        assert told == {name for name in documented() if name.startswith("equipoise_pulsar_")}
        assert {} == misdescribed(text)
        reasons = [
            violation.value
            for violation in Violation
            if f'disconnections_total{{broker="{running.members[0].worker.broker_id}",reason="{violation.value}"}} 0.0'  # noqa: E501
            in text
        ]
        assert [violation.value for violation in Violation] == reasons


async def test_log_lines_about_refused_clients_are_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each client has one line a minute of its kind, whether it breaks the protocol, sends wrong
    credentials, or is one too many.
    """
    caplog.set_level(logging.INFO)

    async with brokers(tmp_path, config=SETTINGS, token=token()) as running:
        (member,) = running.members
        for _ in range(10):
            await breach(member)
            client = await member.client(handshake=False)
            client.write(connect(token="forged"))
            await client.closed()
        await metric_becomes(member, "connections", 0)
        found = [
            (line.message, line.__dict__.get("reason"))
            for line in caplog.records
            if "client" in line.__dict__
        ]
        assert [
            ("disconnected a Pulsar client", "not_authenticated"),
            ("disconnected a Pulsar client", "unexpected_command"),
        ] == sorted(each for each in found if each[1])
        assert 3 == len(found)
        audit = member.worker.access.audit
        due = audit.due("another", "missing")
        assert due is not None
        assert {"client": "another", "left_out": 30 - 3} == due


async def test_a_failing_tick_disconnects_only_its_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, victims = ClientLink.tick, list[ClientLink]()

    def failing(link: ClientLink, now_ms: int) -> None:
        if not victims or link in victims:
            victims[:] = [link]
            raise RuntimeError("boom")
        tick(link, now_ms)

    async with brokers(
        tmp_path, settings=Settings(tick_ms=20), config={"pulsar_keep_alive_ms": 100}
    ) as running:
        first, second = await running.members[0].client(), await running.members[0].client()
        with monkeypatch.context() as broken:
            broken.setattr(ClientLink, "tick", failing)
            await first.closed()
            await second.receive(BaseCommand.PING)
        assert not second.is_closed
    assert "the sweep of a Pulsar client failed" in caplog.text


def test_a_pool_counts_bytes_by_holder() -> None:
    """The current holders have equal shares."""
    pool = Pool[str](bytes_max=10)
    for holder, bytes_, expected in (
        ("a", 6, (6, False, 10)),
        ("b", 4, (10, False, 5)),
        ("a", 7, (11, True, 5)),
        ("a", 0, (4, False, 10)),
    ):
        pool.hold(holder, bytes_)
        assert expected == (pool.bytes, pool.is_exceeded, pool.share_bytes)
    assert (0, 4) == (pool.held_by("a"), pool.held_by("b"))
    assert (False, True) == (pool.would_exceed(6), pool.would_exceed(7))


def test_the_oldest_holder_above_its_share_has_to_go() -> None:
    """A holder keeps its age until it holds nothing."""
    pool = Pool[str](bytes_max=12)
    for holder, bytes_, expected in (
        ("little", 1, None),
        ("a", 1, None),
        ("b", 6, "b"),
        ("a", 6, "a"),
        ("a", 0, None),
        ("a", 6, "b"),
    ):
        pool.hold(holder, bytes_)
        assert expected == pool.oldest_above_share
