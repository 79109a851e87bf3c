"""Test topics over HTTP and on the command line: lists, partitions, stats, load."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.pulsar.admin.partitions import Partitions
from equipoise.brokers.pulsar.admin.pulsar_admin import PulsarAdmin
from equipoise.brokers.pulsar.server import Server
from equipoise.brokers.runtime.service import Ownership
from equipoise.brokers.runtime.worker import Lookups
from equipoise.channel.core.ranges import TopicName, even_boundaries
from tests.docs.openapi import operations
from tests.unit.http.cluster import Gate
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

TOPICS = f"/admin/v2/non-persistent/{NAMESPACE}"
PATH = f"{TOPICS}/orders"


async def refused(member: Member, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Return the status and the reason of an error."""
    status, answer = await member.ask(method, path, body)
    assert isinstance(answer, dict), (status, answer)
    return status, str(answer["reason"])


def field(document: object, *path: str) -> object:
    """Return a field of a document."""
    for name in path:
        assert isinstance(document, dict)
        document = document[name]
    return document


async def used(running: Brokers, topic: str, *, producer_id: int = 1) -> WireClient:
    """Connect a client with a producer to the owner of a topic."""
    client = await running.owner_of(topic).client()
    await client.producer(producer_id, topic)
    return client


@with_brokers()
async def test_a_name_that_no_policy_can_have_gets_no_partitions(running: Brokers) -> None:
    path = f"{PATH}{'x' * 1_000}/partitions"
    assert 400 == (await refused(running.members[0], "PUT", path, 4))[0]


async def test_one_of_two_concurrent_changes_of_partitions_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal names the current count, so partitions never become fewer by accident."""
    both = asyncio.Barrier(2)

    async def set_together(
        topics: Partitions,
        topic: TopicName,
        count: int | None,
        *,
        before: int | None,
        requested_by: str | None,
    ) -> None:
        await both.wait()
        await set_alone(topics, topic, count, before=before, requested_by=requested_by)

    set_alone = Partitions._set_partitions  # noqa: SLF001
    monkeypatch.setattr(Partitions, "_set_partitions", set_together)

    async with brokers(tmp_path, count=2) as running:
        one, other = running.members
        for method, counts in (("PUT", (8, 4)), ("POST", (32, 16))):
            asked = (
                member.ask(method, f"{PATH}/partitions", count)
                for member, count in zip((one, other), counts, strict=True)
            )
            answers = await asyncio.gather(*asked)
            assert [204, 409] == sorted(status for status, _ in answers)
            count = next(
                count for count, (status, _) in zip(counts, answers, strict=True) if status == 204
            )
            told = next(answer for status, answer in answers if status == 409)
            assert isinstance(told, dict)
            assert f"is now {count}" in str(told["reason"])
            await running.settled()
            for member in (one, other):
                assert count == field(await member.get(f"{PATH}/partitions"), "partitions")


@with_brokers(count=3)
async def test_a_topic_that_moves_is_not_missing_in_the_list(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question waits until its bundle is open again."""
    source = running.owner_of()
    destination = running.other_than(source)
    asker = await running.other_than(source, destination).client()
    await (await source.client()).consumer(1, name="me")
    may_open, opening, open_ = asyncio.Event(), asyncio.Event(), destination.service.open

    async def open_late(ownership: Ownership, handover: bytes | None) -> None:
        opening.set()
        await may_open.wait()
        await open_(ownership, handover)

    monkeypatch.setattr(destination.service, "open", open_late)
    moving = asyncio.ensure_future(running.transfer(destination))
    await opening.wait()
    asker.ask_topics()
    for _ in range(20):  # Longer than the questions to all brokers take.
        for member in (source, destination):
            assert [] == field(await member.get(f"{TOPICS}?local=true"), "topics")
    assert [] == asker.names()
    may_open.set()
    answer = (
        await asker.receive(T.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    ).get_topics_of_namespace_response
    assert [TOPIC] == list(answer.topics)
    await moving


@with_brokers(count=2)
async def test_an_incomplete_list_is_refused(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would make clients drop the missing topics."""
    one, other = running.members
    monkeypatch.setattr(other.service.hosting, "in_namespace", None)
    client = await one.client()
    client.ask_topics()
    error = (await client.receive(T.ERROR)).error
    assert "does not answer for its topics: it answers 500" in error.message


@with_brokers(config={"balance_interval_ms": 4})
async def test_the_load_report_has_pulsars_names(running: Brokers) -> None:
    (member,) = running.members
    client = await member.client()
    for number in (1, 2):
        await client.consumer(number, subscription=f"s{number}")
    await client.producer(1)
    bundle = running.bundle_of()

    async def reported() -> Mapping[str, float]:
        report = await member.get("/admin/v2/broker-stats/load-report")
        stats = field(report, "lastStats", bundle)
        assert isinstance(stats, dict)
        return stats

    # That clients came is work, too, and counts as calls once.
    while (await reported()).get("consumerCount") != 2:
        pass
    rates: Mapping[str, float] = {}
    while not rates.get("msgRateIn"):
        client.publish(1, 0, "x")
        await client.receipt(1, 0)
        rates = await reported()
    assert (1, 2, 1) == (rates["producerCount"], rates["consumerCount"], rates["topics"])
    assert rates["msgRateOut"] == pytest.approx(2 * rates["msgRateIn"])
    assert rates["msgThroughputOut"] == pytest.approx(2 * rates["msgThroughputIn"])
    assert rates["calls_per_second"] == pytest.approx(3 * rates["msgRateIn"])
    assert 3 == rates["sessions"]


def bare(path: str) -> str:
    """Return a path without the patterns of its variables."""
    return re.sub(r"{(\w+):[^{}]*(?:{[^{}]*}[^{}]*)*}", r"{\1}", path)


@with_brokers(others={"shop/*": Gate()})
async def test_topics_that_clients_cannot_use_are_refused_over_http(running: Brokers) -> None:
    (member,) = running.members
    await member.worker.request(
        CreateNamespace(name="shop/orders", boundaries=even_boundaries(1)), timeout_ms=PATIENCE_MS
    )
    await running.settled()
    lookup = "/lookup/v2/topic"
    theirs = "/admin/v2/non-persistent/shop/orders/t/partitions"
    for method, body in (("GET", None), ("PUT", 3)):
        status, reason = await refused(member, method, theirs, body)
        assert (412, "namespace shop/orders does not accept Pulsar clients") == (status, reason)
    for domain in ("persistent", "non-persistent"):
        told = await member.get(f"{lookup}/{domain}/shop/orders/t")
        assert isinstance(told, dict)
        assert ("", "", True) == (
            told["brokerUrl"],
            told["nativeUrl"],
            told["httpUrl"].startswith("http://"),
        )


@pytest.mark.parametrize(
    "path",
    [
        "/ws/v2/producer/non-persistent/public/default/t",
        "/ws/v2/consumer/persistent/public/default/t/s",
        "/ws/producer/t",
        "/ws/",
    ],
)
@with_brokers()
async def test_a_websocket_client_is_answered_501(running: Brokers, path: str) -> None:
    (member,) = running.members
    handshake = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": 22 * "A" + "==",
    }
    for headers in (handshake, {}):
        async with member.http.get(member.http_url + path, headers=headers) as response:
            answer = await response.json()
            reason = (
                "this server has no WebSocket interface; use a client of Pulsar's binary protocol"
                f" at {member.url}"
            )
            assert (501, {"reason": reason, "error": "NotSupported"}) == (response.status, answer)


async def test_every_path_is_documented(tmp_path: Path) -> None:
    async with brokers(tmp_path) as running:
        (member,) = running.members
        lookups = Lookups(member.worker)
        routes = PulsarAdmin(
            member.worker, Server(member.service, member.worker, lookups), lookups
        ).documented()
        served = {f"{route.method} {bare(route.path)}" for route in routes}
        assert served == operations(of_topics=True)
