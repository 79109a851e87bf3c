"""Schema compatibility: Pulsar's strategies over Avro's rules."""

from __future__ import annotations

import json

import pytest

from equipoise.brokers.balancing.topic_policies import Compatibility
from equipoise.brokers.pulsar.topics.compatibility import KINDS, misfit_of_consumer, misfit_of_producer
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
def test_a_strategy_allows_a_new_schema_or_not(before: Schema, new: Schema, allowed: set[Compatibility]) -> None:
    assert allowed == {strategy for strategy in C if misfit_of_producer(new, [before], strategy) is None}


def test_a_transitive_strategy_looks_at_all_schemas() -> None:
    known = [WITH_NOTE, ONE]
    again = record(ID, {"name": "note", "type": ["null", "long"], "default": None})
    assert misfit_of_producer(again, known, C.BACKWARD) is None
    assert "strategy BACKWARD_TRANSITIVE" in (misfit_of_producer(again, known, C.BACKWARD_TRANSITIVE) or "")


def test_the_first_schema_of_a_topic_is_allowed() -> None:
    assert all(misfit_of_producer(ONE, [], strategy) is None for strategy in C)


@pytest.mark.parametrize("strategy", [C.BACKWARD, C.FORWARD, C.FULL, C.FULL_TRANSITIVE])
def test_a_consumer_must_read_what_producers_send(strategy: Compatibility) -> None:
    assert misfit_of_consumer(ONE, [WITH_NOTE], strategy) is None
    assert "at /" in (misfit_of_consumer(WITH_NOTE, [ONE], strategy) or "")


def test_types_without_records_agree_and_unknown_ones_are_refused() -> None:
    text, text_again = (Schema(name="s", kind=KINDS.index("STRING"), definition=each, properties=()) for each in (b"", b"x"))
    assert misfit_of_producer(text_again, [text], C.FULL) is None
    pair = Schema(name="s", kind=KINDS.index("KEY_VALUE"), definition=b"x", properties=())
    other = Schema(name="s", kind=KINDS.index("KEY_VALUE"), definition=b"y", properties=())
    assert "cannot be compared" in (misfit_of_producer(other, [pair], C.FULL) or "")
    assert "not an Avro schema" in (misfit_of_producer(ONE, [Schema(name="s", kind=4, definition=b"\xff", properties=())], C.FULL) or "")
