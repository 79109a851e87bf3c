"""Decide whether a topic may have a new schema, by Pulsar's compatibility strategies. This module is pure.

`avro` compares the schemas, by the rules of Apache Avro that Pulsar uses, too. Schemas of JSON and Protobuf classes are Avro records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro.errors import AvroException
from avro.schema import Schema as AvroSchema
from avro.schema import parse

from equipoise.brokers.balancing.topic_policies import Compatibility
from equipoise.brokers.pulsar.topics.schemas import version_of
from equipoise.brokers.pulsar.wire.requests import Schema

KINDS: Final = (
    *("NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE", "DATE", "TIME"),
    *("TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME", "PROTOBUF_NATIVE"),
)
"""Pulsar's names of schema types, by number."""

_RECORDS: Final = frozenset({KINDS.index("JSON"), KINDS.index("PROTOBUF"), KINDS.index("AVRO")})
_UNCHECKED: Final = frozenset({KINDS.index("KEY_VALUE"), KINDS.index("PROTOBUF_NATIVE")})

_BACKWARD: Final = frozenset({Compatibility.BACKWARD, Compatibility.BACKWARD_TRANSITIVE, Compatibility.FULL, Compatibility.FULL_TRANSITIVE})
_FORWARD: Final = frozenset({Compatibility.FORWARD, Compatibility.FORWARD_TRANSITIVE, Compatibility.FULL, Compatibility.FULL_TRANSITIVE})
_TRANSITIVE: Final = frozenset({Compatibility.BACKWARD_TRANSITIVE, Compatibility.FORWARD_TRANSITIVE, Compatibility.FULL_TRANSITIVE})


def misfit_of_producer(schema: Schema, known: Sequence[Schema], strategy: Compatibility) -> str | None:
    """Return why producers of a topic must not use a new schema; None if they may. `known` are the topic's schemas, the newest last."""
    if not _is_new(schema, known, strategy):
        return None
    if strategy is Compatibility.ALWAYS_INCOMPATIBLE:
        return "the topic has another schema, and the strategy ALWAYS_INCOMPATIBLE allows no second one"
    for before in known if strategy in _TRANSITIVE else known[-1:]:
        problem = _misfit_of_kinds(schema, before, strategy)
        if problem is None and strategy in _BACKWARD:
            problem = _misfit_of_reader(schema, before, "the new schema cannot read messages of the one before")
        if problem is None and strategy in _FORWARD:
            problem = _misfit_of_reader(before, schema, "the schema before cannot read messages of the new one")
        if problem is not None:
            return f"{problem} (strategy {strategy})"
    return None


def misfit_of_consumer(schema: Schema, known: Sequence[Schema], strategy: Compatibility) -> str | None:
    """Return why a consumer must not read a topic with a schema; None if it may. It must be able to read what producers send."""
    if not _is_new(schema, known, strategy):
        return None
    if strategy is Compatibility.ALWAYS_INCOMPATIBLE:
        return "the topic has another schema, and the strategy ALWAYS_INCOMPATIBLE allows no second one"
    for before in known if strategy in _TRANSITIVE else known[-1:]:
        problem = _misfit_of_kinds(schema, before, strategy) or _misfit_of_reader(
            schema, before, "the consumer's schema cannot read messages of the topic's"
        )
        if problem is not None:
            return f"{problem} (strategy {strategy})"
    return None


def _is_new(schema: Schema, known: Sequence[Schema], strategy: Compatibility) -> bool:
    """Return whether a schema must be compared with those before."""
    if strategy in {Compatibility.UNDEFINED, Compatibility.ALWAYS_COMPATIBLE} or not known:
        return False
    version = version_of(schema)
    return all(version_of(each) != version for each in known)


def _misfit_of_kinds(schema: Schema, before: Schema, strategy: Compatibility) -> str | None:
    if schema.kind != before.kind:
        return f"the topic has a schema of type {_kind_name(before)}, and the new one is of type {_kind_name(schema)}"
    if schema.kind in _UNCHECKED:
        return f"schemas of type {_kind_name(schema)} cannot be compared by this server; use ALWAYS_COMPATIBLE in place of {strategy}"
    return None


def _misfit_of_reader(reader: Schema, writer: Schema, what: str) -> str | None:
    """Return `what` with the first difference if messages of `writer` cannot be read with `reader`. Only records can differ."""
    if reader.kind not in _RECORDS:
        return None
    try:
        checker = ReaderWriterCompatibilityChecker()  # type: ignore[no-untyped-call]
        result = checker.get_compatibility(_parsed(reader), _parsed(writer))
    except (AvroException, ValueError) as error:
        return f"a schema is not an Avro schema: {error}"
    if result.compatibility is SchemaCompatibilityType.compatible:
        return None
    where = next(iter(sorted(result.locations)), "/")
    return f"{what}: {next(iter(sorted(result.messages)), 'they differ')} at {where}"


def _parsed(schema: Schema) -> AvroSchema:
    return parse(schema.definition.decode())


def _kind_name(schema: Schema) -> str:
    return KINDS[schema.kind] if 0 <= schema.kind < len(KINDS) else str(schema.kind)
