"""Policies for the topics of a namespace: set over HTTP, enforced on the wire."""

from __future__ import annotations

import asyncio

import pytest

from equipoise.brokers.agent.requests import Intent
from equipoise.brokers.pulsar.topics.topic import Topic
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import BaseCommand, ServerError
from equipoise.channel.core.reader import Folded
from tests.unit.http.cluster import until
from tests.unit.pulsar.wire_client import NAMESPACE, TOPIC, Brokers, T, WireClient, with_brokers

BASE = f"/admin/v2/namespaces/{NAMESPACE}"


async def put(running: Brokers, name: str, body: object, method: str = "POST") -> None:
    """Change a policy at a broker, and wait until all have read it."""
    status, answer = await running.members[0].ask(method, f"{BASE}/{name}", body)
    assert 204 == status, answer
    await running.settled()


async def refused(client: WireClient, request_id: int) -> tuple[int, str]:
    """Wait for the refusal of a producer or a consumer."""
    error = (
        await client.receive(T.ERROR, lambda command: command.error.request_id == request_id)
    ).error
    return error.error, error.message


@with_brokers(config={"admin_ms": 300})
async def test_all_properties_of_a_request_are_set_within_one_deadline(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes 100 ms here, and a request has 300."""
    (member,) = running.members
    usual = member.worker.request

    async def slow(intent: Intent, *, timeout_ms: int, requested_by: str | None) -> Folded:
        await asyncio.sleep(0.1)
        return await usual(intent, timeout_ms=timeout_ms, requested_by=requested_by)

    monkeypatch.setattr(member.worker, "request", slow)
    assert (
        504
        == (
            await member.ask("PUT", f"{BASE}/properties", {str(number): "" for number in range(9)})
        )[0]
    )
    # A JSON object.
    assert 9 > len(await member.get(f"{BASE}/properties"))  # type: ignore[arg-type]


@with_brokers()
async def test_properties_are_bounded(running: Brokers) -> None:
    (member,) = running.members
    properties = {f"k{number}": "" for number in range(257)}
    assert 400 == (await member.ask("PUT", f"{BASE}/properties", properties))[0]


@with_brokers(count=2)
async def test_the_maximum_of_topics_holds_in_a_burst(running: Brokers) -> None:
    """At all brokers at once. At the limit each of the brokers may refuse one topic for that of
    another.
    """
    await put(running, "maxTopicsPerNamespace", 5)
    clients = {member: await member.client() for member in running.members}
    names = [f"{TOPIC}{number}" for number in range(24)]
    for number, name in enumerate(names):
        clients[running.owner_of(name)].ask_producer(number, name)

    def answers(kind: BaseCommand.Type) -> int:
        return sum(
            command.type == kind for client in clients.values() for command, _ in client.inbox
        )

    await until(lambda: answers(T.PRODUCER_SUCCESS) + answers(T.ERROR) == len(names))
    assert answers(T.PRODUCER_SUCCESS) in (4, 5)


@with_brokers()
async def test_policies_apply_after_a_failure(
    running: Brokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (member,) = running.members
    client = await member.client()
    await client.producer(1)
    with monkeypatch.context() as broken:
        broken.setattr(Topic, "limit", None)
        await put(running, "maxProducersPerTopic", 7)
        await until(lambda: "could not be applied" in caplog.text)
    await put(running, "maxProducersPerTopic", 1)
    assert ServerError.ProducerBusy == (await refused(client, client.ask_producer(3)))[0]
