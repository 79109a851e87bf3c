"""Test schemas over several brokers: registered at one, asked at another."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar import cluster_schemas
from equipoise.brokers.pulsar.admin.schemas import schema_document, version_in
from equipoise.brokers.pulsar.wire.errors import NotAnswered
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import CommandGetSchemaResponse, ServerError
from equipoise.brokers.pulsar.wire.requests import Schema
from tests.unit.pulsar.wire_client import (
    TOPIC,
    Brokers,
    T,
    WireClient,
    with_brokers,
)

JSON, AUTO_CONSUME = 2, 21
OLD, NEW = b'{"type": "record", "name": "old"}', b'{"type": "record", "name": "new"}'


def schema(definition: bytes = OLD, kind: int = JSON) -> dict[str, object]:
    """A schema as clients send it."""
    return {"name": "s", "schema_data": definition, "type": kind}


async def producer(
    client: WireClient,
    producer_id: int,
    its: dict[str, object],
    topic: str = TOPIC,
    *,
    name: str = "p",
) -> bytes:
    """Open a producer with a schema. Return the version."""
    request_id = client.ask_producer(producer_id, topic, name=name, schema=its)
    answer = await client.receive(
        T.PRODUCER_SUCCESS, lambda command: command.producer_success.request_id == request_id
    )
    return answer.producer_success.schema_version


async def consumer(client: WireClient, consumer_id: int, its: dict[str, object]) -> None:
    """Subscribe with a schema."""
    await client.consumer(consumer_id, subscription=str(consumer_id), schema=its)


async def found(
    client: WireClient, version: bytes | None = None, topic: str = TOPIC
) -> CommandGetSchemaResponse:
    """Return the answer to GET_SCHEMA."""
    request_id = client.ask(T.GET_SCHEMA, topic=topic, schema_version=version)
    return (
        await client.receive(
            T.GET_SCHEMA_RESPONSE,
            lambda command: command.get_schema_response.request_id == request_id,
        )
    ).get_schema_response


@with_brokers(count=3)
async def test_any_broker_finds_the_schema_of_a_producer(running: Brokers) -> None:
    """PRODUCER_SUCCESS has its version, also for a second request."""
    owner = running.owner_of()
    client = await owner.client()
    version = await producer(client, 1, schema())
    assert 8 == len(version)
    assert version == await producer(client, 1, schema())
    for member in running.members:
        answer = await found(await member.client(), version)
        assert (version, OLD) == (answer.schema_version, answer.schema.schema_data)
    newer = await producer(client, 2, schema(NEW), name="q")
    for member in running.members:
        there = await member.client()
        assert newer == (await found(there)).schema_version
        assert OLD == (await found(there, version)).schema.schema_data


@with_brokers(count=2)
async def test_a_schema_outlives_a_move(running: Brokers) -> None:
    source = running.owner_of()
    destination = running.other_than(source)
    version = await producer(await source.client(), 1, schema())
    await running.transfer(destination)
    there = await destination.client()
    assert version == (await found(there, version)).schema_version
    assert version == await producer(there, 1, schema(), name="other")
    await source.stop()
    assert version == (await found(there)).schema_version


@with_brokers()
async def test_the_schema_of_a_consumer_is_found_and_not_the_newest(running: Brokers) -> None:
    """A consumer that accepts any schema registers none."""
    client = await running.members[0].client()
    await consumer(client, 1, schema(b"", AUTO_CONSUME))
    assert ServerError.TopicNotFound == (await found(client)).error_code
    await consumer(client, 2, schema(OLD))
    assert OLD == (await found(client)).schema.schema_data
    newer = await producer(client, 1, schema(NEW))
    await consumer(client, 3, schema(OLD))
    assert newer == (await found(client)).schema_version


@with_brokers(count=2)
async def test_the_partitions_of_a_topic_have_one_schema(running: Brokers) -> None:
    owner = running.owner_of(f"{TOPIC}-partition-1")
    version = await producer(await owner.client(), 1, schema(), f"{TOPIC}-partition-1")
    for member in running.members:
        client = await member.client()
        for topic in (TOPIC, f"{TOPIC}-partition-0"):
            assert version == (await found(client, version, topic)).schema_version


@with_brokers(count=2)
async def test_an_unknown_schema_is_answered(
    running: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a broker does not answer, the error makes clients retry."""
    here = running.other_than(running.owner_of())
    client = await here.client()
    for version in (None, b"12345678", b"1", b""):
        assert ServerError.TopicNotFound == (await found(client, version)).error_code
    assert (
        ServerError.NotAllowedError
        == (await found(client, None, "persistent://public/default/x")).error_code
    )

    async def fail(*_: object) -> object:
        raise NotAnswered("no answer")

    monkeypatch.setattr("equipoise.brokers.pulsar.peers.Peers._ask", fail)
    assert ServerError.MetadataError == (await found(client)).error_code


def test_the_answer_of_another_broker_is_checked() -> None:
    its = Schema(name="é", kind=15, definition=bytes(range(256)), properties=(("a", "b"),))
    assert its == cluster_schemas.read(cluster_schemas.document(its))
    document = cluster_schemas.document(its)
    wrong: tuple[object, ...] = (
        None,
        [],
        {},
        {**document, "definition": "!"},
        {**document, "properties": [1]},
    )
    for nonsense in wrong:
        with pytest.raises(NotAnswered):
            cluster_schemas.read(nonsense)


def test_a_key_value_schema_is_one_object() -> None:
    """A half that is not JSON becomes text."""
    halves = b"\x00\x00\x00\x00" + len(OLD).to_bytes(4, "big") + OLD
    document = schema_document(
        b"\x00" * 8, Schema(name="s", kind=15, definition=halves, properties=())
    )
    assert '{"key": "", "value": {"type": "record", "name": "old"}}' == document["data"]
    assert ("KEY_VALUE", "NONE") == (
        document["type"],
        schema_document(b"", Schema(name="s", kind=99, definition=b"", properties=()))["type"],
    )
    assert (None, b"\x00" * 7 + b"\x11") == (version_in(None), version_in("17"))
