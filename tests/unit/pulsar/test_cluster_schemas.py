"""Test schemas over several brokers: registered at one, asked at another."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar import schemas as cluster_schemas
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
