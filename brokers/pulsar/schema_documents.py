"""Schemas as Pulsar's REST interface spells them.

May live here: versions and schemas to and from what JSON and paths can say. No IO.
"""

from __future__ import annotations

import json
from typing import Final

from equipoise.brokers.pulsar.topics.schemas import VERSION_BYTES
from equipoise.brokers.pulsar.wire.requests import Schema

# Pulsar's names of its types, by their numbers.
_KINDS: Final = (
    *("NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE", "DATE", "TIME"),
    *("TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME", "PROTOBUF_NATIVE"),
)
_KEY_VALUE: Final = _KINDS.index("KEY_VALUE")

_LENGTH_BYTES: Final = 4


def version_in(text: str | None) -> bytes | None:
    """The version that a path names with a number, or that a broker could have given; None for none."""
    return None if text is None else (int(text) % (1 << 8 * VERSION_BYTES)).to_bytes(VERSION_BYTES, "big")


def schema_document(version: bytes, schema: Schema) -> dict[str, object]:
    """What Pulsar answers; there is no time at which it was stored."""
    return {
        "version": int.from_bytes(version, "big"),
        "type": _KINDS[schema.kind] if 0 <= schema.kind < len(_KINDS) else "NONE",
        "timestamp": 0,
        "data": _data_of(schema),
        "properties": dict(schema.properties),
    }


def _data_of(schema: Schema) -> str:
    """The definition as a text. Of a pair it is two behind one another, each with its length before it, and becomes one JSON object."""
    if schema.kind != _KEY_VALUE:
        return schema.definition.decode("utf-8", "replace")
    halves = {}
    rest = schema.definition
    for half in ("key", "value"):
        end = _LENGTH_BYTES + max(int.from_bytes(rest[:_LENGTH_BYTES], "big", signed=True), 0)
        halves[half], rest = _json_of(rest[_LENGTH_BYTES:end]), rest[end:]
    return json.dumps(halves)


def _json_of(definition: bytes) -> object:
    """Itself if it is JSON, as the definitions of structures are; else as a text, such as the empty one of a string."""
    try:
        return json.loads(definition)
    except ValueError:
        return definition.decode("utf-8", "replace")
