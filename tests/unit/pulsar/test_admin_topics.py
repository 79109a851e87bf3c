"""Test topics over HTTP that operators create, unload and delete, and what of Pulsar's
administration is absent.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from urllib.parse import quote

import pytest

from equipoise.brokers.pulsar.admin import lists
from equipoise.brokers.pulsar.admin.partitions import Partitions
from equipoise.brokers.pulsar.admin.topic_paths import TopicPaths
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics.schemas import SCHEMA_BYTES_MAX
from equipoise.brokers.pulsar.topics.stats import Stats, topic_stats
from equipoise.brokers.pulsar.topics.topic import Topic
from equipoise.brokers.runtime.service import Ownership, Peer
from equipoise.channel.core.ranges import TopicName, topic_hash
from tests.unit.pulsar.test_admin import PATH, TOPICS, field, refused, used
from tests.unit.pulsar.test_service_moves import busy, redirected
from tests.unit.pulsar.wire_client import NAMESPACE, TOPIC, Brokers, T, with_brokers

FLEETING = Settings(inactive_ms=1)
"""Created topics go at once."""


async def listed(running: Brokers) -> object:
    """Return the topics of the namespace."""
    return await running.members[0].get(TOPICS)


@with_brokers(count=2)
async def test_a_created_topic_exists_until_it_is_deleted(running: Brokers) -> None:
    """Every broker gives the same answers."""
    for member in running.members:
        assert 204 == (await member.ask("PUT", PATH, {}))[0]
        assert (
            409,
            f"cannot create topic {TOPIC}: it already exists; use it, or delete it first",
        ) == await refused(member, "PUT", PATH)
        assert [TOPIC] == await member.get(TOPICS)
        assert [] == field(await member.get(f"{PATH}/stats"), "publishers")
        assert [] == await member.get(f"{PATH}/subscriptions")
        assert 204 == (await member.ask("DELETE", PATH))[0]
        assert [] == await member.get(TOPICS)
        assert 404 == (await refused(member, "DELETE", PATH))[0]
        assert 404 == (await refused(member, "GET", f"{PATH}/stats"))[0]


@with_brokers(count=2)
async def test_a_created_topic_moves_with_its_bundle(running: Brokers) -> None:
    source = running.owner_of()
    destination = running.other_than(source)
    await source.ask("PUT", PATH)
    await running.transfer(destination)
    assert (0, 1) == (await source.metric("topics"), await destination.metric("topics"))
    await running.transfer(source)
    assert [TOPIC] == await listed(running)
    assert 204 == (await source.ask("PUT", f"{PATH}/unload"))[0]
    assert [TOPIC] == await listed(running)


@with_brokers(settings=FLEETING)
async def test_a_created_topic_that_nobody_uses_goes(running: Brokers) -> None:
    (member,) = running.members
    assert 204 == (await member.ask("PUT", f"{PATH}-idle"))[0]
    await used(running, TOPIC)
    while (topics := await listed(running)) != [TOPIC]:
        assert sorted([TOPIC, f"{TOPIC}-idle"]) == topics


@with_brokers()
async def test_a_topic_is_created_only_once_with_partitions_or_without(running: Brokers) -> None:
    (member,) = running.members
    await member.ask("PUT", f"{PATH}/partitions", 2)
    reason = (
        f"cannot create topic {TOPIC}: it already exists, with 2 partitions; use it, or delete it"
        " with delete-partitioned-topic first"
    )
    assert (409, reason) == await refused(member, "PUT", PATH)
    assert (409, True) == (
        (told := await refused(member, "DELETE", PATH))[0],
        "delete-partitioned-topic" in told[1],
    )
    assert 409 == (await refused(member, "PUT", f"{PATH}/partitions", 2))[0]
    await member.ask("PUT", f"{PATH}-plain")
    status, reason = await refused(member, "PUT", f"{PATH}-plain/partitions", 2)
    assert (
        409,
        (
            f"cannot create partitioned topic {TOPIC}-plain: it already exists, without partitions;"
            " delete it first"
        ),
    ) == (
        status,
        reason,
    )
    named = {"properties": {"owner": "erin"}, "partitions": 2}
    for asked in (
        ("PUT", f"{PATH}-other", named["properties"]),
        ("PUT", f"{PATH}-other/partitions", named),
    ):
        assert (400, True) == (
            (told := await refused(member, *asked))[0],
            "keeps no properties" in told[1],
        )
    assert (
        204
        == (
            await member.ask("PUT", f"{PATH}-other/partitions", {"partitions": 2, "properties": {}})
        )[0]
    )


@with_brokers(count=2)
async def test_only_force_deletes_a_topic_that_has_clients(running: Brokers) -> None:
    owner, other, client = await busy(running)
    reason = f"topic {TOPIC} has 1 producers and 1 consumers; close them, or use --force"
    assert (412, reason) == await refused(other, "DELETE", PATH)
    assert [TOPIC] == await listed(running)
    assert 204 == (await other.ask("DELETE", f"{PATH}?force=true"))[0]
    assert ("", "") == await redirected(client)
    assert [] == await listed(running)
    assert 0 == await owner.metric("topics")


@with_brokers(count=2)
async def test_an_unloaded_topic_loses_no_message(running: Brokers) -> None:
    """Its clients look it up again, and its entries are counted on. What is published before the
    consumer is back waits for it.
    """
    owner, other, client = await busy(running)
    assert 404 == (await refused(other, "PUT", f"{PATH}-nobody/unload"))[0]
    assert 204 == (await other.ask("PUT", f"{PATH}/unload"))[0]
    assert ("", "") == await redirected(client)
    await client.producer(1, name="mine", epoch=1)
    client.publish(1, 1, "1")
    await client.receipt(1, 1)
    await client.consumer(1, name="me")
    assert (1, 2, "1") == await client.receive_message()
    assert owner is running.owner_of()
    assert 1 == await owner.metric("topics")


@with_brokers(count=2)
async def test_only_force_unsubscribes_consumers(running: Brokers) -> None:
    _, other, client = await busy(running)
    path = f"{PATH}/subscription/s"
    assert 404 == (await refused(other, "DELETE", f"{PATH}/subscription/nobody"))[0]
    assert (
        412,
        f"subscription s of topic {TOPIC} has 1 consumers; close them, or use --force",
    ) == await refused(other, "DELETE", path)
    assert 204 == (await other.ask("DELETE", f"{path}?force=true"))[0]
    assert "" == (await client.receive(T.CLOSE_CONSUMER)).close_consumer.assignedBrokerServiceUrl
    assert [] == await other.get(f"{PATH}/subscriptions")


@with_brokers(count=2)
async def test_partitions_are_unloaded_unsubscribed_and_deleted_together(running: Brokers) -> None:
    """They lie at both brokers."""
    one, other = running.members
    await one.ask("PUT", f"{PATH}/partitions", 6)
    await running.settled()
    names = [f"{TOPIC}-partition-{index}" for index in range(6)]
    assert {one, other} == {running.owner_of(name) for name in names}, (
        "the partitions must lie at both brokers"
    )
    clients = [await running.owner_of(name).client() for name in names]
    for client, name in zip(clients, names, strict=True):
        await client.consumer(1, name, name="me")
        await client.producer(1, name, name="mine")
    assert ["s"] == await one.get(f"{PATH}/subscriptions")
    stats = field(await one.get(f"{PATH}/partitioned-internalStats"), "partitions")
    assert isinstance(stats, dict)
    assert names == list(stats)
    assert 204 == (await one.ask("PUT", f"{PATH}/unload"))[0]
    for client, name in zip(clients, names, strict=True):
        assert ("", "") == await redirected(client)
        await client.consumer(1, name, name="me")
        await client.producer(1, name, name="mine", epoch=1)
    assert (412, True) == (
        (told := await refused(other, "DELETE", f"{PATH}/subscription/s"))[0],
        "6 consumers" in told[1],
    )
    assert 204 == (await other.ask("DELETE", f"{PATH}/subscription/s?force=true"))[0]
    for client in clients:
        await client.receive(T.CLOSE_CONSUMER)
    assert 404 == (await refused(other, "DELETE", f"{PATH}/subscription/s?force=true"))[0]
    assert (412, True) == (
        (told := await refused(other, "DELETE", f"{PATH}/partitions"))[0],
        "6 producers" in told[1],
    )
    assert 204 == (await other.ask("DELETE", f"{PATH}/partitions?force=true"))[0]
    for client in clients:
        await client.receive(T.CLOSE_PRODUCER)
    await running.settled()
    assert [] == await one.get(f"{TOPICS}/partitioned")
    assert [] == await listed(running)


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
        patched.setattr(other.service.hosting, "_topics", None)
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

    monkeypatch.setattr(lists, "topic_stats", stats)
    found = field(await member.get("/admin/v2/broker-stats/topics"), NAMESPACE)
    assert isinstance(found, dict)
    assert [bundle.rpartition("/")[2] for bundle in sorted(names)][:-1] == list(found)


@with_brokers(count=2)
async def test_lists_take_a_range(running: Brokers) -> None:
    one, other = running.members
    names = [f"{TOPIC}-{number}" for number in range(8)]
    for name in names:
        await one.ask("PUT", f"{TOPICS}/{name.rpartition('/')[2]}")
    bundle = running.bundle_of(names[0])
    range_ = bundle.rpartition("/")[2]
    expected = [name for name in names if running.bundle_of(name) == bundle]
    assert names != expected
    for member in (one, other):
        assert expected == await member.get(f"{TOPICS}?bundle={range_}&includeSystemTopic=false")
        assert [] == await member.get(f"/admin/v2/persistent/{NAMESPACE}?bundle={range_}")
        assert 404 == (await refused(member, "GET", f"{TOPICS}?bundle=0x00000000_0x00000001"))[0]
        assert 412 == (await refused(member, "GET", f"{TOPICS}?bundle=all"))[0]
        path = f"/admin/v2/namespaces/{NAMESPACE}/{range_}/topicHashPositions"
        hashes = {name: topic_hash(name) for name in expected}
        assert {
            "namespace": NAMESPACE,
            "bundle": range_,
            "topicHashPositions": hashes,
        } == await member.get(path)
        one_name = await member.get(
            f"{path}?topics={quote(expected[0], safe='')},{quote(TOPIC, safe='')}"
        )
        assert {expected[0]: topic_hash(expected[0])} == field(one_name, "topicHashPositions")
        two_names = await member.get(
            f"{path}?" + "&".join(f"topics={quote(name, safe='')}" for name in expected[:2])
        )
        assert {name: hashes[name] for name in expected[:2]} == field(
            two_names, "topicHashPositions"
        )
    stats = [await member.get("/admin/v2/broker-stats/topics") for member in (one, other)]
    found = {
        topic: of_topic["ownerBroker"]
        for of_broker in stats
        # A document is what it is.
        for of_bundle in of_broker[NAMESPACE].values()  # type: ignore[index]
        for topic, of_topic in of_bundle["non-persistent"].items()
    }
    assert {name: running.owner_of(name).worker.broker_id for name in names} == found


@with_brokers(count=2)
async def test_schemas_are_uploaded_and_deleted_at_any_broker(running: Brokers) -> None:
    one, other = running.members
    owner = running.owner_of()
    path = f"/admin/v2/schemas/{NAMESPACE}/orders"
    avro = {
        "type": "AVRO",
        "schema": '{"type":"record","name":"Order","fields":[]}',
        "properties": {"a": "b"},
    }
    status, answer = await running.other_than(owner).ask("POST", f"{path}/schema", avro)
    version = field(answer, "version", "version")
    assert (202, {"version": version}) == (
        status,
        (await one.ask("POST", f"{path}/version", avro))[1],
    )
    text = {"type": "STRING", "schema": "", "properties": {}}
    for member in (one, other):
        found = await member.get(f"{path}/schema")
        assert {
            "version": version,
            "timestamp": 0,
            "type": "AVRO",
            "data": avro["schema"],
            "properties": {"a": "b"},
        } == found
        compatible = (await member.ask("POST", f"{path}/compatibility", text))[1]
        assert {
            "compatibility": True,
            "schemaCompatibilityStrategy": "ALWAYS_COMPATIBLE",
        } == compatible
        for last in ("compatibility", "schema"):
            nowhere = f"/admin/v2/schemas/no/where/orders/{last}"
            assert 404 == (await refused(member, "POST", nowhere, text))[0]
    await one.ask("POST", f"{path}/schema", text)
    known = field(await other.get(f"{path}/schemas"), "getSchemaResponses")
    assert isinstance(known, list)
    assert ["AVRO", "STRING"] == [each["type"] for each in known]
    assert (200, {"version": known[1]["version"]}) == await running.other_than(owner).ask(
        "DELETE", f"{path}/schema?force=false"
    )
    for member in (one, other):
        assert 404 == (await refused(member, "GET", f"{path}/schema"))[0]
        assert 404 == (await refused(member, "GET", f"{path}/schema/{version}"))[0]
        assert 404 == (await refused(member, "GET", f"{path}/schemas"))[0]
        assert 404 == (await refused(member, "DELETE", f"{path}/schema"))[0]


@with_brokers()
async def test_a_key_value_schema_is_stored_as_clients_send_it(running: Brokers) -> None:
    (member,) = running.members
    path = f"/admin/v2/schemas/{NAMESPACE}/orders/schema"
    definition = '{"key": "", "value": {"type": "record", "name": "Order", "fields": []}}'
    assert 202 == (await member.ask("POST", path, {"type": "KEY_VALUE", "schema": definition}))[0]
    assert definition == field(await member.get(path), "data")
    for wrong in (
        {"type": "KEY_VALUE", "schema": "7"},
        {"type": "XML", "schema": ""},
        {"schema": ""},
        None,
    ):
        assert 400 == (await refused(member, "POST", path, wrong))[0]


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


@with_brokers()
async def test_a_deleted_topic_has_no_schema(running: Brokers) -> None:
    (member,) = running.members
    path = f"/admin/v2/schemas/{NAMESPACE}/orders/schema"
    await member.ask("POST", path, {"type": "STRING", "schema": ""})
    await member.ask("PUT", PATH)
    assert 204 == (await member.ask("DELETE", f"{PATH}?force=false&deleteSchema=true"))[0]
    assert 404 == (await refused(member, "GET", path))[0]


@with_brokers()
async def test_absent_features_of_topics_are_explained(running: Brokers) -> None:
    """A question gets Pulsar's default, a change a sentence. For a persistent topic, both name the
    topic to use.
    """
    (member,) = running.members
    for path, default in (
        ("retention", ""),
        ("permissions", {}),
        ("schemaValidationEnforced", False),
    ):
        assert (204 if default == "" else 200, default) == await member.ask("GET", f"{PATH}/{path}")
    for method, path, why in (
        ("POST", "retention", "non-persistent topics have no such thing"),
        ("POST", "terminate", "non-persistent topics have no such thing"),
        ("POST", "subscription/s/skip/7", "non-persistent topics have no such thing"),
        ("PUT", "subscription/s", "exists only with a consumer; connect one"),
        ("DELETE", "permissions/r", "grant them in the namespace"),
    ):
        status, reason = await refused(member, method, f"{PATH}/{path}")
        assert 405 == status
        assert f"/orders/{path}': " in reason
        assert reason.endswith((why, "permission`)")), reason
        persistent = f"{PATH}/{path}".replace("/non-persistent/", "/persistent/")
        status, reason = await refused(member, method, persistent)
        assert (412, True) == (status, "use non-persistent://" in reason)
    assert 405 == (await member.ask("POST", f"/admin/v2/namespaces/{NAMESPACE}/backlogQuota"))[0]
