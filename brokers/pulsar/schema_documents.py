"""Convert schemas and their versions to and from the JSON and paths of Pulsar's REST interface."""

from __future__ import annotations

import json
from typing import Final

from equipoise.brokers.pulsar.topics.schemas import VERSION_BYTES
from equipoise.brokers.pulsar.wire.requests import Schema

# Pulsar's type names, indexed by type number.
_KINDS: Final = (
    *("NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64", "FLOAT", "DOUBLE", "DATE", "TIME"),
    *("TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE", "LOCAL_TIME", "LOCAL_DATE_TIME", "PROTOBUF_NATIVE"),
)
_KEY_VALUE: Final = _KINDS.index("KEY_VALUE")

_LENGTH_BYTES: Final = 4


def version_in(text: str | None) -> bytes | None:
    """Return the version that the number in a path names, or None without one."""
    return None if text is None else (int(text) % (1 << 8 * VERSION_BYTES)).to_bytes(VERSION_BYTES, "big")


def schema_document(version: bytes, schema: Schema) -> dict[str, object]:
    """Return a schema as Pulsar's JSON. The timestamp is 0, because schemas are not stored."""
    return {
        "version": int.from_bytes(version, "big"),
        "type": _KINDS[schema.kind] if 0 <= schema.kind < len(_KINDS) else "NONE",
        "timestamp": 0,
        "data": _data_of(schema),
        "properties": dict(schema.properties),
    }


def _data_of(schema: Schema) -> str:
    """Return the definition as text. Convert a key/value definition (two parts, each after its length) to one JSON object."""
    if schema.kind != _KEY_VALUE:
        return schema.definition.decode("utf-8", "replace")
    halves = {}
    rest = schema.definition
    for half in ("key", "value"):
        end = _LENGTH_BYTES + max(int.from_bytes(rest[:_LENGTH_BYTES], "big", signed=True), 0)
        halves[half], rest = _json_of(rest[_LENGTH_BYTES:end]), rest[end:]
    return json.dumps(halves)


def _json_of(definition: bytes) -> object:
    """Return a definition parsed as JSON (structures), or else as text (such as the empty one of a string)."""
    try:
        return json.loads(definition)
    except ValueError:
        return definition.decode("utf-8", "replace")
