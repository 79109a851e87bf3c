"""Schema compatibility: Pulsar's strategies over Avro's rules."""

from __future__ import annotations

import json

import pytest

from equipoise.brokers.balancing.topic_policies import Compatibility
from equipoise.brokers.pulsar.topics.compatibility import (
    COMPARED_BYTES_MAX,
    COMPARED_VERSIONS_MAX,
    KINDS,
    misfit_of_consumer,
    misfit_of_producer,
    problem_of_definition,
)
from equipoise.brokers.pulsar.wire.requests import Schema

C = Compatibility


def record(*fields: dict[str, object], kind: str = "AVRO") -> Schema:
    """The schema of a record with these fields."""
    definition = json.dumps({"type": "record", "name": "Order", "fields": fields}).encode()
    return Schema(name="s", kind=KINDS.index(kind), definition=definition, properties=())


ID: dict[str, object] = {"name": "id", "type": "long"}
NOTE: dict[str, object] = {"name": "note", "type": "string"}
OPTIONAL: dict[str, object] = {"name": "note", "type": ["null", "string"], "default": None}

ONE, WITH_NOTE, WITH_OPTIONAL = record(ID), record(ID, NOTE), record(ID, OPTIONAL)


@pytest.mark.parametrize(
    ("before", "new", "allowed"),
    [
        # A reader with the new field finds none in old messages; a reader without it skips it.
        (ONE, WITH_NOTE, {C.ALWAYS_COMPATIBLE, C.FORWARD, C.FORWARD_TRANSITIVE, C.UNDEFINED}),
        (WITH_NOTE, ONE, {C.ALWAYS_COMPATIBLE, C.BACKWARD, C.BACKWARD_TRANSITIVE, C.UNDEFINED}),
        (ONE, WITH_OPTIONAL, set(C) - {C.ALWAYS_INCOMPATIBLE}),
        (ONE, record({"name": "id", "type": "string"}), {C.ALWAYS_COMPATIBLE, C.UNDEFINED}),
        (ONE, record(ID, kind="JSON"), {C.ALWAYS_COMPATIBLE, C.UNDEFINED}),
        (ONE, ONE, set(C)),
    ],
)
def test_a_strategy_allows_a_new_schema_or_not(
    before: Schema, new: Schema, allowed: set[Compatibility]
) -> None:
    assert allowed == {
        strategy for strategy in C if misfit_of_producer(new, [before], strategy) is None
    }


def test_a_transitive_strategy_looks_at_all_schemas() -> None:
    known = [WITH_NOTE, ONE]
    again = record(ID, {"name": "note", "type": ["null", "long"], "default": None})
    assert misfit_of_producer(again, known, C.BACKWARD) is None
    assert "strategy BACKWARD_TRANSITIVE" in (
        misfit_of_producer(again, known, C.BACKWARD_TRANSITIVE) or ""
    )


def test_the_first_schema_of_a_topic_is_allowed() -> None:
    assert all(misfit_of_producer(ONE, [], strategy) is None for strategy in C)


@pytest.mark.parametrize(
    "strategy", [C.BACKWARD, C.BACKWARD_TRANSITIVE, C.FORWARD, C.FORWARD_TRANSITIVE, C.FULL]
)
def test_a_consumer_must_read_what_producers_send(strategy: Compatibility) -> None:
    assert misfit_of_consumer(ONE, [WITH_NOTE], strategy) is None
    assert "at /" in (misfit_of_consumer(WITH_NOTE, [ONE], strategy) or "")


def test_producers_must_be_read_by_a_consumer_and_read_it_with_full_transitive() -> None:
    assert "the topic's schema cannot read" in (
        misfit_of_consumer(ONE, [WITH_NOTE], C.FULL_TRANSITIVE) or ""
    )
    assert misfit_of_consumer(WITH_OPTIONAL, [ONE], C.FULL_TRANSITIVE) is None


@pytest.mark.parametrize(
    ("strategy", "is_refused"),
    {C.FORWARD_TRANSITIVE: False, C.BACKWARD_TRANSITIVE: True, C.FULL_TRANSITIVE: True}.items(),
)
def test_a_consumer_is_compared_with_all_schemas_or_the_newest(
    strategy: Compatibility, is_refused: bool
) -> None:
    """It reads the newest one, but not the one before, which has another type."""
    known = [record({"name": "id", "type": "string"}), ONE]
    assert is_refused == (misfit_of_consumer(WITH_OPTIONAL, known, strategy) is not None)


def test_a_consumer_must_read_the_newest_schema_also_if_the_topic_had_its_own_before() -> None:
    assert misfit_of_consumer(WITH_NOTE, [WITH_NOTE, ONE], C.FORWARD) is not None
    assert misfit_of_consumer(ONE, [WITH_NOTE, ONE], C.FORWARD) is None
    assert misfit_of_producer(WITH_NOTE, [WITH_NOTE, ONE], C.FORWARD) is None


def test_types_without_records_agree_and_unknown_ones_are_refused() -> None:
    text, text_again = (
        Schema(name="s", kind=KINDS.index("STRING"), definition=each, properties=())
        for each in (b"", b"x")
    )
    assert misfit_of_producer(text_again, [text], C.FULL) is None
    pair = Schema(name="s", kind=KINDS.index("KEY_VALUE"), definition=b"x", properties=())
    other = Schema(name="s", kind=KINDS.index("KEY_VALUE"), definition=b"y", properties=())
    assert "cannot be compared" in (misfit_of_producer(other, [pair], C.FULL) or "")
    assert "not an Avro schema" in (
        misfit_of_producer(
            ONE, [Schema(name="s", kind=4, definition=b"\xff", properties=())], C.FULL
        )
        or ""
    )


def union(count: int, prefix: str) -> Schema:
    """A choice of records, which are compared each with each."""
    records = [
        {"type": "record", "name": f"{prefix}{index}", "fields": []} for index in range(count)
    ]
    return Schema(
        name="s", kind=KINDS.index("AVRO"), definition=json.dumps(records).encode(), properties=()
    )


def nested(depth: int) -> Schema:
    """Arrays in arrays."""
    definition = b'{"type":"array","items":' * depth + b'"int"' + b"}" * depth
    return Schema(name="s", kind=KINDS.index("AVRO"), definition=definition, properties=())


def test_large_schemas_are_not_compared() -> None:
    large = record({"name": "id", "type": "long", "doc": "d" * COMPARED_BYTES_MAX})
    for new, before in ((large, ONE), (ONE, large)):
        assert f"more than {COMPARED_BYTES_MAX} bytes are not compared" in (
            misfit_of_producer(new, [before], C.FORWARD) or ""
        )
        assert f"more than {COMPARED_BYTES_MAX} bytes are not compared" in (
            misfit_of_consumer(new, [before], C.FORWARD) or ""
        )
    assert misfit_of_producer(large, [ONE], C.ALWAYS_COMPATIBLE) is None


def test_comparisons_that_take_too_long_are_refused() -> None:
    """One pair of schemas with too many choices, or too many pairs of schemas."""
    assert "too many fields and types" in (
        misfit_of_producer(union(300, "A"), [union(300, "B")], C.BACKWARD) or ""
    )
    fields = [{"name": f"f{index}", "type": "int", "default": 0} for index in range(600)]
    known = [
        record(*fields, {"name": f"g{index}", "type": "int", "default": 0})
        for index in range(COMPARED_VERSIONS_MAX)
    ]
    new = record(*fields, ID | {"default": 0})
    assert misfit_of_producer(new, known, C.FULL) is None
    assert "too many fields and types" in (misfit_of_producer(new, known, C.FULL_TRANSITIVE) or "")


def test_a_transitive_strategy_looks_at_the_newest_schemas_of_many() -> None:
    known = [
        WITH_NOTE,
        *(record(ID | {"doc": str(index)}) for index in range(COMPARED_VERSIONS_MAX)),
    ]
    again = record(ID, {"name": "note", "type": ["null", "long"], "default": None})
    assert misfit_of_producer(again, known, C.BACKWARD_TRANSITIVE) is None
    assert misfit_of_producer(again, known[:-1], C.BACKWARD_TRANSITIVE) is not None


def test_schemas_that_are_nested_too_deeply_are_refused() -> None:
    for new, before in ((nested(2_000), ONE), (ONE, nested(600))):
        assert "nested too deeply" in (misfit_of_producer(new, [before], C.FULL) or "")
        assert "nested too deeply" in (misfit_of_consumer(new, [before], C.FULL) or "")
    assert "nested too deeply" in (problem_of_definition(nested(600)) or "")


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
@pytest.mark.parametrize(
    "definition", [b"", b"\xff", b"{}", b"7", b'"Order"', b'{"type":"record"}', b"x" * 9_999]
)
def test_the_definition_of_a_record_must_be_an_avro_schema(kind: str, definition: bytes) -> None:
    problem = problem_of_definition(
        Schema(name="s", kind=KINDS.index(kind), definition=definition, properties=())
    )
    assert problem is not None
    assert f"of type {kind} must be an Avro schema" in problem
    assert len(problem) < 400


def test_names_of_nested_java_classes_are_accepted() -> None:
    definition = json.dumps(
        {"type": "record", "name": "Order$Line", "namespace": "shop.Order$", "fields": [ID]}
    ).encode()
    of_java = Schema(name="s", kind=KINDS.index("AVRO"), definition=definition, properties=())
    assert problem_of_definition(of_java) is None
    assert (
        misfit_of_producer(
            of_java, [Schema(name="s", kind=4, definition=definition + b" ", properties=())], C.FULL
        )
        is None
    )
