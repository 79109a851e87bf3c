"""Test the table of schemas, and schemas that are registered at one broker and asked at another."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar import schemas as module
from equipoise.brokers.pulsar.admin.schemas import schema_document, version_in
from equipoise.brokers.pulsar.schemas import Schemas
from equipoise.brokers.pulsar.wire.errors import not_answered
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import CommandGetSchemaResponse, ServerError
from equipoise.brokers.pulsar.wire.requests import Schema
from equipoise.channel.core.errors import PeerError
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
        raise not_answered("no answer")

    monkeypatch.setattr("equipoise.brokers.pulsar.peers.Peers._ask", fail)
    assert ServerError.MetadataError == (await found(client)).error_code


def test_the_answer_of_another_broker_is_checked() -> None:
    its = Schema(name="é", kind=15, definition=bytes(range(256)), properties=(("a", "b"),))
    assert its == module.read(module.document(its))
    document = module.document(its)
    wrong: tuple[object, ...] = (
        None,
        [],
        {},
        {**document, "definition": "!"},
        {**document, "properties": [1]},
    )
    for nonsense in wrong:
        with pytest.raises(PeerError):
            module.read(nonsense)


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


# --- the table ---


def schema(definition: bytes, kind: int = 2) -> Schema:
    """A schema with this definition."""
    return Schema(name="s", kind=kind, definition=definition, properties=())


def test_the_newest_schema_is_found_and_older_ones_by_version() -> None:
    """A schema that is added again, by a producer that comes back, is no newer than before."""
    schemas = Schemas()
    first, second = schemas.add("t", schema(b"1")), schemas.add("t", schema(b"2"))
    assert (second, schema(b"2")) == schemas.find("t", None)
    assert (first, schema(b"1")) == schemas.find("t", first)
    assert first == schemas.add("t", schema(b"1"))
    assert (second, schema(b"2")) == schemas.find("t", None)
    assert schemas.find("other", None) is None
    assert schemas.find("t", b"12345678") is None


def test_a_version_depends_on_type_and_definition() -> None:
    """Java reads it as a positive number."""
    one, other = Schemas(), Schemas()
    version = one.add("t", schema(b"x"))
    assert version == other.add("u", schema(b"x"))
    assert version != one.add("t", schema(b"x", kind=3))
    assert all(one.add("t", schema(bytes((n,))))[0] < 128 for n in range(64))
    assert 8 == len(version)


def test_the_least_recently_used_schema_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCHEMAS_MAX", 2)
    schemas = Schemas()
    version = schemas.add("a", schema(b"a"))
    schemas.add("b", schema(b"b"))
    assert schemas.find("a", version) is not None
    schemas.add("c", schema(b"c"))
    assert [True, False, True] == [schemas.find(topic, None) is not None for topic in "abc"]


def test_an_older_schema_is_the_newest_once_that_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SCHEMAS_MAX", 2)
    schemas = Schemas()
    old = schemas.add("t", schema(b"old"))
    schemas.add("t", schema(b"new"))
    assert schemas.find("t", old) is not None
    schemas.add("other", schema(b"x"))
    assert (old, schema(b"old")) == schemas.find("t", None)


def test_schemas_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema that is added twice counts once."""
    monkeypatch.setattr(module, "SCHEMAS_BYTES_MAX", 25)
    schemas = Schemas()
    for topic in "aabc":
        schemas.add(topic, schema(topic.encode() * 9))
    assert [False, True, True] == [schemas.find(topic, None) is not None for topic in "abc"]


def test_the_schema_of_another_broker_is_the_newest_only_if_it_is_the_only_one() -> None:
    schemas = Schemas()
    elsewhere = schemas.add("t", schema(b"1"), is_newest=False)
    assert (elsewhere, schema(b"1")) == schemas.find("t", None)
    newest = schemas.add("t", schema(b"2"))
    for definition in (b"1", b"2", b"3"):
        schemas.add("t", schema(definition), is_newest=False)
    assert (newest, schema(b"2")) == schemas.find("t", None)
