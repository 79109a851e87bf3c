"""Decide whether a topic may have a new schema, by Pulsar's compatibility strategies. This module
is pure.

`avro` compares the schemas, by the rules of Apache Avro that Pulsar uses, too. Schemas of JSON and
Protobuf classes are Avro records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from avro.compatibility import (
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaCompatibilityType,
)
from avro.errors import AvroException
from avro.schema import RecordSchema, parse
from avro.schema import Schema as AvroSchema

from equipoise.brokers.balancing.topic_policies import Compatibility
from equipoise.brokers.pulsar.wire.requests import Schema

KINDS: Final = (
    *(
        "NONE",
        "STRING",
        "JSON",
        "PROTOBUF",
        "AVRO",
        "BOOLEAN",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "FLOAT",
        "DOUBLE",
        "DATE",
        "TIME",
    ),
    *(
        "TIMESTAMP",
        "KEY_VALUE",
        "INSTANT",
        "LOCAL_DATE",
        "LOCAL_TIME",
        "LOCAL_DATE_TIME",
        "PROTOBUF_NATIVE",
    ),
)
"""Pulsar's names of schema types, by number."""

_RECORDS: Final = frozenset({KINDS.index("JSON"), KINDS.index("PROTOBUF"), KINDS.index("AVRO")})
# A comparison is quadratic: these bounds hold all comparisons of one decision to about a second of
# a thread.
COMPARED_BYTES_MAX: Final = 64 * 1024
COMPARED_VERSIONS_MAX: Final = 32
_STEPS_MAX: Final = 40_000
# Avro builds a table of the writer's fields for each field of the reader: so many entries take as
# long as one step, 10 us.
_FIELDS_PER_STEP: Final = 256
# So many bytes are parsed in one step.
_BYTES_PER_STEP: Final = 64
_ERROR_CHARACTERS_MAX: Final = 200

_UNCHECKED: Final = frozenset({KINDS.index("KEY_VALUE"), KINDS.index("PROTOBUF_NATIVE")})

UNCOMPARED: Final = frozenset({Compatibility.UNDEFINED, Compatibility.ALWAYS_COMPATIBLE})
"""The strategies that allow every schema."""

_BACKWARD: Final = frozenset(
    {
        Compatibility.BACKWARD,
        Compatibility.BACKWARD_TRANSITIVE,
        Compatibility.FULL,
        Compatibility.FULL_TRANSITIVE,
    }
)
_FORWARD: Final = frozenset(
    {
        Compatibility.FORWARD,
        Compatibility.FORWARD_TRANSITIVE,
        Compatibility.FULL,
        Compatibility.FULL_TRANSITIVE,
    }
)
_TRANSITIVE: Final = frozenset(
    {
        Compatibility.BACKWARD_TRANSITIVE,
        Compatibility.FORWARD_TRANSITIVE,
        Compatibility.FULL_TRANSITIVE,
    }
)


def misfit_of_producer(
    schema: Schema, known: Sequence[Schema], strategy: Compatibility
) -> str | None:
    """Return why producers of a topic must not use a new schema; None if they may. `known` are the
    topic's schemas, the newest last.
    """
    compared = compared_with(schema, known, strategy, is_consumers=False)
    return _misfit(
        schema, compared, strategy, reads=strategy in _BACKWARD, is_read=strategy in _FORWARD
    )


def misfit_of_consumer(
    schema: Schema, known: Sequence[Schema], strategy: Compatibility
) -> str | None:
    """Return why a consumer must not read a topic with a schema; None if it may. It must be able to
    read what producers send.

    As in Pulsar, FULL_TRANSITIVE also demands the reverse.
    """
    compared = compared_with(schema, known, strategy, is_consumers=True)
    return _misfit(
        schema, compared, strategy, reads=True, is_read=strategy is Compatibility.FULL_TRANSITIVE
    )


def compared_with(
    schema: Schema, known: Sequence[Schema], strategy: Compatibility, *, is_consumers: bool
) -> Sequence[Schema]:
    """Return the `known` schemas of a topic that a producer's or a consumer's schema is compared
    with, the newest last.

    They are the newest, or all for transitive strategies, without the schema itself. A schema that
    the topic has is not new for a producer, and is compared with none. As in Pulsar,
    FORWARD_TRANSITIVE compares a consumer's schema with the newest only.
    """
    if strategy in UNCOMPARED:
        return ()
    content = (schema.kind, schema.definition)
    if not is_consumers and any((each.kind, each.definition) == content for each in known):
        return ()
    is_transitive = strategy in _TRANSITIVE and not (
        is_consumers and strategy is Compatibility.FORWARD_TRANSITIVE
    )
    newest = known[-COMPARED_VERSIONS_MAX:] if is_transitive else known[-1:]
    return [each for each in newest if (each.kind, each.definition) != content]


def _misfit(
    schema: Schema,
    compared: Sequence[Schema],
    strategy: Compatibility,
    *,
    reads: bool,
    is_read: bool,
) -> str | None:
    """Return why a schema does not fit others. `reads`: it must read their messages. `is_read`:
    they must read its messages.
    """
    if compared and strategy is Compatibility.ALWAYS_INCOMPATIBLE:
        return (
            "the topic has another schema, and the strategy ALWAYS_INCOMPATIBLE allows no"
            " second one"
        )
    steps = _Steps()
    for other in compared:
        problem = _misfit_of_kinds(schema, other, strategy)
        if problem is None and reads:
            problem = _misfit_of_reader(
                schema, other, "the schema cannot read messages of the topic's", steps
            )
        if problem is None and is_read:
            problem = _misfit_of_reader(
                other, schema, "the topic's schema cannot read messages of the new one", steps
            )
        if problem is not None:
            return f"{problem} (strategy {strategy})"
    return None


def problem_of_definition(schema: Schema) -> str | None:
    """Return why a definition is not one of its type; None if it is. Only records have a definition
    that can be wrong.
    """
    if schema.kind not in _RECORDS:
        return None
    try:
        _parsed(schema)
    except _NOT_AVRO as error:
        return (
            f"the definition of a schema of type {_kind_name(schema)} must be an Avro schema:"
            f" {_brief(error)}"
        )
    return None


def _misfit_of_kinds(schema: Schema, before: Schema, strategy: Compatibility) -> str | None:
    if schema.kind != before.kind:
        return (
            f"the topic has a schema of type {_kind_name(before)}, and the new one is of type"
            f" {_kind_name(schema)}"
        )
    if schema.kind in _UNCHECKED:
        return (
            f"schemas of type {_kind_name(schema)} cannot be compared by this server; use"
            f" ALWAYS_COMPATIBLE in place of {strategy}"
        )
    return None


def _misfit_of_reader(reader: Schema, writer: Schema, what: str, steps: _Steps) -> str | None:
    """Return `what` with the first difference if messages of `writer` cannot be read with `reader`.
    Only records can differ.
    """
    if reader.kind not in _RECORDS:
        return None
    largest = max(len(reader.definition), len(writer.definition))
    if largest > COMPARED_BYTES_MAX:
        return (
            f"a schema has {largest} bytes, and schemas of more than {COMPARED_BYTES_MAX} bytes are"
            " not compared; use a smaller one"
        )
    try:
        steps.take((len(reader.definition) + len(writer.definition)) // _BYTES_PER_STEP)
        result = _Checker(steps).get_compatibility(_parsed(reader), _parsed(writer))
    except _TooManyStepsError:
        return "the schemas have too many fields and types to be compared; use smaller ones"
    except _NOT_AVRO as error:
        return f"a schema is not an Avro schema: {_brief(error)}"
    if result.compatibility is SchemaCompatibilityType.compatible:
        return None
    where = next(iter(sorted(result.locations)), "/")
    return (
        f"{what}: {next(iter(sorted(result.messages)), 'they differ'):.{_ERROR_CHARACTERS_MAX}} at"
        f" {where:.{_ERROR_CHARACTERS_MAX}}"
    )


class _TooManyStepsError(Exception):
    """The comparisons of one decision would take too long."""


class _Steps:
    """The steps that are left to the comparisons of one decision."""

    def __init__(self) -> None:
        self._left = _STEPS_MAX

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooManyStepsError


class _Checker(ReaderWriterCompatibilityChecker):
    """Avro's comparison with a bound."""

    def __init__(self, steps: _Steps) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._steps = steps

    def get_compatibility(
        self,
        reader: AvroSchema,
        writer: AvroSchema,
        reference_token: str = ReaderWriterCompatibilityChecker.ROOT_REFERENCE_TOKEN,
        location: list[str] | None = None,
    ) -> SchemaCompatibilityResult:
        self._steps.take(1)
        return super().get_compatibility(reader, writer, reference_token, location)

    def check_reader_writer_record_fields(
        self, reader: RecordSchema, writer: RecordSchema, location: list[str]
    ) -> SchemaCompatibilityResult:
        self._steps.take(len(reader.fields) * len(writer.fields) // _FIELDS_PER_STEP)
        return super().check_reader_writer_record_fields(reader, writer, location)


# What `avro` raises for a text that is no schema. It calls itself for nested types, and expects
# types where it reads texts.
_NOT_AVRO: Final = (AvroException, ValueError, RecursionError, TypeError, AttributeError, KeyError)


def _brief(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "its types are nested too deeply"
    return f"{error!s:.{_ERROR_CHARACTERS_MAX}}"


def _parsed(schema: Schema) -> AvroSchema:
    # Like Pulsar, accept names that Avro does not, such as the `$` of nested Java classes.
    return parse(schema.definition.decode(), validate_enum_symbols=False, validate_names=False)


def _kind_name(schema: Schema) -> str:
    return KINDS[schema.kind] if 0 <= schema.kind < len(KINDS) else str(schema.kind)
