"""Test the table of schemas."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar import schemas as module
from equipoise.brokers.pulsar.schemas import Schemas
from equipoise.brokers.pulsar.wire.requests import Schema


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
