"""The schemas that clients told this broker of, for other clients that ask.

May live here: a bounded table in memory. Topics that are not stored have no history either: a schema lasts as long as the
broker, and its version is made of its content, so that it means the same at every broker that a topic moves to. Producers and
consumers bring theirs to each broker that they connect to, so that nothing need be handed over.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

from equipoise.brokers.pulsar.wire.requests import Schema

# Of the usual size, half a kibibyte and a row as large: 16 MiB.
SCHEMAS_MAX: Final = 16_384
# Names, definitions and properties of all of them. One may have 256 KiB, the largest command.
SCHEMAS_BYTES_MAX: Final = 64 * 1024 * 1024

VERSION_BYTES: Final = 8
"""Of the version of a schema, which clients read as a number, the first byte first."""


class Schemas:
    """Schemas by topic and version; of too many the one unused for longest is forgotten."""

    def __init__(self) -> None:
        """None are known."""
        self._schemas: OrderedDict[tuple[str, bytes], Schema] = OrderedDict()
        self._versions: dict[str, OrderedDict[bytes, None]] = {}
        self._bytes = 0

    def add(self, topic: str, schema: Schema, *, is_newest: bool = True) -> bytes:
        """Know a schema, and return its version.

        Unless it `is_newest` it is that only if no other is known of the topic: what a consumer reads by is no news.
        """
        version = version_of(schema)
        before = self._schemas.get((topic, version))
        self._bytes += _size_of(schema) - (0 if before is None else _size_of(before))
        self._schemas[topic, version] = schema
        self._schemas.move_to_end((topic, version))
        versions = self._versions.setdefault(topic, OrderedDict())
        if is_newest or version not in versions:
            versions[version] = None
            versions.move_to_end(version, last=is_newest)
        while len(self._schemas) > SCHEMAS_MAX or self._bytes > SCHEMAS_BYTES_MAX:
            self._forget_one()
        return version

    def _forget_one(self) -> None:
        (topic, version), schema = self._schemas.popitem(last=False)
        self._bytes -= _size_of(schema)
        del self._versions[topic][version]
        if not self._versions[topic]:
            del self._versions[topic]

    def find(self, topic: str, version: bytes | None) -> tuple[bytes, Schema] | None:
        """A topic's schema of this version, or, with None, the newest; with its version."""
        wanted = next(reversed(self._versions.get(topic, ())), None) if version is None else version
        schema = None if wanted is None else self._schemas.get((topic, wanted))
        if wanted is None or schema is None:
            return None
        self._schemas.move_to_end((topic, wanted))
        return wanted, schema


def _size_of(schema: Schema) -> int:
    return len(schema.name) + len(schema.definition) + sum(len(key) + len(value) for key, value in schema.properties)


def version_of(schema: Schema | None) -> bytes:
    """Positive as a signed number of 64 bits, which is what Java makes of it; empty for no schema."""
    if schema is None:
        return b""
    digest = blake2b(f"{schema.kind}\n".encode() + schema.definition, digest_size=VERSION_BYTES).digest()
    return bytes((digest[0] & 0x7F,)) + digest[1:]
