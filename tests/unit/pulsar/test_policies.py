"""Policies for the topics of a namespace: set over HTTP, enforced on the wire."""

from __future__ import annotations

import asyncio
import json

import pytest

from equipoise.brokers.agent.requests import Intent
from equipoise.brokers.pulsar import hosting, served
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


@pytest.mark.parametrize(
    ("method", "name", "body"),
    [
        ("POST", "maxProducersPerTopic", -1),
        ("POST", "maxProducersPerTopic", None),
        ("POST", "publishRate", {"publishThrottlingRateInMsg": "many"}),
        ("POST", "dispatchRate", {"dispatchThrottlingRateInMsg": 5, "relativeToPublishRate": True}),
        ("POST", "subscriptionTypesEnabled", ["Sharing"]),
        (
            "POST",
            "autoTopicCreation",
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 3},
        ),
        (
            "POST",
            "autoTopicCreation",
            {"allowAutoTopicCreation": False, "defaultNumPartitions": 10**23},
        ),
        (
            "POST",
            "autoTopicCreation",
            {"allowAutoTopicCreation": False, "defaultNumPartitions": 10**1_100},
        ),
    ],
)
@with_brokers()
async def test_an_impossible_policy_is_refused(
    running: Brokers, method: str, name: str, body: object
) -> None:
    (member,) = running.members
    status, answer = await member.ask(method, f"{BASE}/{name}", body)
    assert 400 == status, answer
    assert "Value error" not in json.dumps(answer)
    assert 200 == (await member.ask("GET", BASE))[0]


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
async def test_properties_are_kept_one_by_one(running: Brokers) -> None:
    (member,) = running.members
    await put(running, "properties", {"a": "1", "b": "2"}, "PUT")
    await put(running, "property/c/3", None, "PUT")
    assert {"a": "1", "b": "2", "c": "3"} == await member.get(f"{BASE}/properties")
    assert (200, "2") == await member.ask("GET", f"{BASE}/property/b")
    assert (200, "2") == await member.ask("DELETE", f"{BASE}/property/b")
    assert (204, "") == await member.ask("GET", f"{BASE}/property/b")
    for unfit in ({"d": "4", "": "5"}, {f"k{number}": "" for number in range(257)}):
        assert 400 == (await member.ask("PUT", f"{BASE}/properties", unfit))[0]
    assert {"a": "1", "c": "3"} == await member.get(f"{BASE}/properties"), (
        "a refused request sets none of them"
    )
    await put(running, "properties", None, "DELETE")
    assert {} == await member.get(f"{BASE}/properties")


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
async def test_a_producer_above_its_rate_is_read_later_and_loses_nothing(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 messages at 20 per second of the test's clock: 20 at once, and 20 after each second. A
    change of the rate is noticed meanwhile.
    """
    now_ms = served.now_ms()
    for module in (hosting, served):
        monkeypatch.setattr(module, "now_ms", lambda: now_ms)
    await put(running, "publishRate", {"publishThrottlingRateInMsg": 20})
    owner = running.owner_of()
    client = await owner.client()
    await client.producer(1)
    for number in range(60):
        client.publish(1, number, str(number))
    for published in (20, 40, 60):
        for number in range(published - 20, published):
            await client.receipt(1, number)
        assert published == owner.service.counts.published
        now_ms += 1_000 if published < 60 else 0
    client.publish(1, 60, "last")
    await put(running, "publishRate", None, "DELETE")
    await client.receipt(1, 60)


@with_brokers()
async def test_messages_above_the_dispatch_rate_are_dropped_and_counted(running: Brokers) -> None:
    await put(
        running,
        "subscriptionDispatchRate",
        {"dispatchThrottlingRateInMsg": 3, "ratePeriodInSecond": 86_400},
    )
    member = running.owner_of()
    client = await member.client()
    await client.consumer(1)
    await client.producer(1)
    for number in range(10):
        client.publish(1, number, str(number))
    for number in range(10):
        await client.receipt(1, number)
    assert ["0", "1", "2"] == [(await client.receive_message())[2] for _ in range(3)]
    assert 7 == await member.metric("messages_dropped_total")
    await put(running, "subscriptionDispatchRate", None, "DELETE")
    client.publish(1, 10, "after")
    assert "after" == (await client.receive_message())[2]


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
