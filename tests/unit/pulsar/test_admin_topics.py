"""Test topics over HTTP that operators create, unload and delete, and what of Pulsar's
administration is absent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from equipoise.brokers.pulsar.admin import namespaces
from equipoise.brokers.pulsar.admin.partitions import Partitions
from equipoise.brokers.pulsar.admin.topics import TopicPaths
from equipoise.brokers.pulsar.schemas import SCHEMA_BYTES_MAX
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics.stats import Stats, topic_stats
from equipoise.brokers.pulsar.topics.topic import Topic
from equipoise.brokers.runtime.service import Ownership, Peer
from equipoise.channel.core.ranges import TopicName
from tests.unit.pulsar.test_admin import PATH, TOPICS, field, refused, used
from tests.unit.pulsar.wire_client import NAMESPACE, TOPIC, Brokers, T, with_brokers

FLEETING = Settings(inactive_ms=1)
"""Created topics go at once."""


async def listed(running: Brokers) -> object:
    """Return the topics of the namespace."""
    return await running.members[0].get(TOPICS)


@with_brokers(settings=FLEETING)
async def test_a_created_topic_that_nobody_uses_goes(running: Brokers) -> None:
    (member,) = running.members
    assert 204 == (await member.ask("PUT", f"{PATH}-idle"))[0]
    await used(running, TOPIC)
    while (topics := await listed(running)) != [TOPIC]:
        assert sorted([TOPIC, f"{TOPIC}-idle"]) == topics


async def spread(running: Brokers) -> Sequence[str]:
    """Create a topic with six partitions, which lie at both brokers. Return those that have a
    producer, one at each broker.
    """
    one, other = running.members
    await one.ask("PUT", f"{PATH}/partitions", 6)
    await running.settled()
    names = [f"{TOPIC}-partition-{index}" for index in range(6)]
    chosen = [
        next(name for name in names if running.owner_of(name) is member) for member in (one, other)
    ]
    for name in chosen:
        await used(running, name)
    return sorted(chosen)


@with_brokers(count=2)
async def test_nothing_is_deleted_if_the_number_of_partitions_changes_meanwhile(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = running.members
    names = await spread(running)
    set_alone = Partitions._set_partitions  # noqa: SLF001

    async def set_late(
        topics: Partitions,
        topic: TopicName,
        count: int | None,
        *,
        before: int | None,
        requested_by: str | None,
    ) -> None:
        if count is None:
            assert 204 == (await other.ask("POST", f"{PATH}/partitions", 7))[0]
        await set_alone(topics, topic, count, before=before, requested_by=requested_by)

    monkeypatch.setattr(Partitions, "_set_partitions", set_late)
    assert 409 == (await refused(one, "DELETE", f"{PATH}/partitions?force=true"))[0]
    assert names == await listed(running)
    assert 7 == field(await one.get(f"{PATH}/partitions"), "partitions")


@with_brokers(count=2)
async def test_nothing_is_deleted_if_a_broker_does_not_answer(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503: the request may be sent again."""
    one, other = running.members
    names = await spread(running)
    with monkeypatch.context() as patched:
        patched.setattr(other.service.hosting, "topics", None)
        for method, path in (
            ("DELETE", "partitions?force=true"),
            ("PUT", "unload"),
            ("GET", "partitioned-stats"),
        ):
            status, reason = await refused(one, method, f"{PATH}/{path}")
            assert (503, True) == (
                status,
                "does not answer for its topics: it answers 500" in reason,
            )
    assert names == await listed(running)
    assert 6 == field(await one.get(f"{PATH}/partitions"), "partitions")


@with_brokers(count=2)
async def test_a_partition_that_a_client_begins_to_use_meanwhile_stays(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the client had come after the deletion."""
    one, other = running.members
    await one.ask("PUT", f"{PATH}/partitions", 6)
    await running.settled()
    set_alone = Partitions._set_partitions  # noqa: SLF001

    async def set_early(
        topics: Partitions,
        topic: TopicName,
        count: int | None,
        *,
        before: int | None,
        requested_by: str | None,
    ) -> None:
        await set_alone(topics, topic, count, before=before, requested_by=requested_by)
        for index in range(6):
            await used(running, f"{TOPIC}-partition-{index}")

    monkeypatch.setattr(Partitions, "_set_partitions", set_early)
    assert 204 == (await one.ask("DELETE", f"{PATH}/partitions"))[0]
    assert [f"{TOPIC}-partition-{index}" for index in range(6)] == await listed(running)
    assert [] == await other.get(f"{TOPICS}/partitioned")


@with_brokers(count=2)
async def test_a_broker_that_lags_changes_its_partitions_too(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not read that the topic has partitions."""
    one = running.members[0]
    names = await spread(running)
    read = TopicPaths._partitions  # noqa: SLF001

    def lagging(paths: TopicPaths, topic: TopicName) -> int:
        return read(paths, topic) if paths._worker is one.worker else 0  # noqa: SLF001

    monkeypatch.setattr(TopicPaths, "_partitions", lagging)
    for name in names:
        await (await running.owner_of(name).client()).consumer(1, name, name="me")
    # A document.
    assert names == list(field(await one.get(f"{PATH}/partitioned-stats"), "partitions"))  # type: ignore[call-overload]
    # As above.
    assert names == list(field(await one.get(f"{PATH}/partitioned-internalStats"), "partitions"))  # type: ignore[call-overload]
    assert 204 == (await one.ask("DELETE", f"{PATH}/subscription/s?force=true"))[0]
    assert [] == await one.get(f"{PATH}/subscriptions")
    assert 204 == (await one.ask("PUT", f"{PATH}/unload"))[0]
    assert [] == field(await one.get(f"{PATH}/partitioned-stats"), "publishers")
    assert 204 == (await one.ask("DELETE", f"{PATH}/partitions?force=true"))[0]
    assert [] == await listed(running)


@with_brokers()
async def test_of_two_concurrent_creations_one_is_refused(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (member,) = running.members
    both, route = asyncio.Barrier(2), member.service.host.route

    async def route_together(namespace: str, key: str, *, timeout_ms: int) -> Ownership | Peer:
        await both.wait()
        return await route(namespace, key, timeout_ms=timeout_ms)

    monkeypatch.setattr(member.service.host, "route", route_together)
    answers = await asyncio.gather(*(member.ask("PUT", PATH) for _ in range(2)))
    assert [204, 409] == sorted(status for status, _ in answers)


@with_brokers()
async def test_a_topic_that_moves_is_created_later(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (member,) = running.members

    async def moved(*_: str, timeout_ms: int) -> Peer:
        assert timeout_ms > 0
        return Peer(broker="other")

    monkeypatch.setattr(member.service.host, "route", moved)
    assert (503, f"topic {TOPIC} is moving to another broker; try again") == await refused(
        member, "PUT", PATH
    )


@with_brokers(bundles=4)
async def test_stats_of_a_broker_let_clients_be_served_between_bundles(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle that closes meanwhile has none."""
    (member,) = running.members
    names = {running.bundle_of(f"{TOPIC}-{number}"): f"{TOPIC}-{number}" for number in range(16)}
    for name in names.values():
        await member.ask("PUT", f"{TOPICS}/{name.rpartition('/')[2]}")
    last = max(names)
    loop = asyncio.get_running_loop()

    def stats(topic: Topic, *, owner_broker: str) -> Stats:
        loop.call_soon(member.service.hosting.close, last, None)
        return topic_stats(topic, owner_broker=owner_broker)

    monkeypatch.setattr(namespaces, "topic_stats", stats)
    found = field(await member.get("/admin/v2/broker-stats/topics"), NAMESPACE)
    assert isinstance(found, dict)
    assert [bundle.rpartition("/")[2] for bundle in sorted(names)][:-1] == list(found)


_DEEP = '{"type":"array","items":' * 3_000 + '"int"' + "}" * 3_000


@pytest.mark.parametrize(
    ("kind", "definition", "problem"),
    [
        ("KEY_VALUE", r'{"key":"\ud800","value":""}', "texts in UTF-8"),
        ("KEY_VALUE", f'{{"key":{_DEEP},"value":""}}', "nested too deeply"),
        ("STRING", "x" * SCHEMA_BYTES_MAX, f"the largest may have {SCHEMA_BYTES_MAX}"),
        (
            "KEY_VALUE",
            json.dumps({"key": "x" * SCHEMA_BYTES_MAX, "value": ""}),
            f"the largest may have {SCHEMA_BYTES_MAX}",
        ),
    ],
)
@with_brokers()
async def test_a_definition_that_is_none_is_refused(
    running: Brokers, kind: str, definition: str, problem: str
) -> None:
    (member,) = running.members
    path = f"/admin/v2/schemas/{NAMESPACE}/orders/schema"
    status, reason = await refused(member, "POST", path, {"type": kind, "schema": definition})
    assert (400, True) == (status, problem in reason), reason
    assert 404 == (await refused(member, "GET", path))[0]


@pytest.mark.parametrize("half", [_DEEP.encode(), b"\xff", rb'"\ud800"', b"[" * 100_000])
@with_brokers()
async def test_any_key_value_schema_of_a_client_is_shown(running: Brokers, half: bytes) -> None:
    (member,) = running.members
    client = await member.client()
    pair = {"name": "s", "schema_data": len(half).to_bytes(4, "big") + half + bytes(4), "type": 15}
    client.ask(T.GET_OR_CREATE_SCHEMA, topic=TOPIC, schema=pair)
    await client.receive(T.GET_OR_CREATE_SCHEMA_RESPONSE)
    await client.producer(1, schema=pair)
    path = f"/admin/v2/schemas/{NAMESPACE}/orders"
    shown = await member.get(f"{path}/schema")
    assert [shown] == field(await member.get(f"{path}/schemas"), "getSchemaResponses")
    data = field(shown, "data")
    assert isinstance(data, str)
    assert "" == json.loads(data)["value"]
