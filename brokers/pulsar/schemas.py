"""The schemas that clients told this broker of, for other clients that ask.

May live here: a bounded table in memory. Topics that are not stored have no history either: a schema lasts as long as the
broker, and its version is made of its content, so that it means the same at every broker that a topic moves to.
"""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import Final

from brokers.pulsar.requests import Schema

# At 256 KiB each, the largest command: 256 MiB at the very worst, and some 4 MiB with schemas of the usual size.
SCHEMAS_MAX: Final = 1_024

_VERSION_BYTES: Final = 8


class Schemas:
    """Schemas by topic and version; of too many the one unused for longest is forgotten."""

    def __init__(self) -> None:
        """None are known."""
        self._schemas: OrderedDict[tuple[str, bytes], Schema] = OrderedDict()
        self._versions: dict[str, OrderedDict[bytes, None]] = {}

    def add(self, topic: str, schema: Schema) -> bytes:
        """Know a schema, and return its version: 8 bytes, which clients read as a number."""
        version = _version(schema)
        self._schemas[topic, version] = schema
        self._schemas.move_to_end((topic, version))
        versions = self._versions.setdefault(topic, OrderedDict())
        versions[version] = None
        versions.move_to_end(version)
        if len(self._schemas) > SCHEMAS_MAX:
            (gone, gone_version), _ = self._schemas.popitem(last=False)
            del self._versions[gone][gone_version]
            if not self._versions[gone]:
                del self._versions[gone]
        return version

    def find(self, topic: str, version: bytes | None) -> tuple[bytes, Schema] | None:
        """A topic's schema of this version, or, with None, the newest; with its version."""
        wanted = next(reversed(self._versions.get(topic, ())), None) if version is None else version
        schema = None if wanted is None else self._schemas.get((topic, wanted))
        if wanted is None or schema is None:
            return None
        self._schemas.move_to_end((topic, wanted))
        return wanted, schema


def _version(schema: Schema) -> bytes:
    """Positive as a signed number of 64 bits, which is what Java makes of it."""
    digest = blake2b(f"{schema.kind}\n".encode() + schema.definition, digest_size=_VERSION_BYTES).digest()
    return bytes((digest[0] & 0x7F,)) + digest[1:]
