"""Keep the schemas that clients register, in a bounded table in memory, and find those that other
brokers have.

Non-persistent topics have no schema history. A schema lasts as long as the broker; its version is a
digest of its content, so it is the same on every broker. Clients send their schema whenever they
connect, so a move hands over none. They ask any broker, but register a schema only at the owner of
their topic.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import OrderedDict
from typing import Final
from urllib.parse import quote

from equipoise.brokers.pulsar.peers import Peers
from equipoise.brokers.pulsar.topics.names import partitioned_name
from equipoise.brokers.pulsar.wire.errors import not_answered
from equipoise.brokers.pulsar.wire.limits import Limits
from equipoise.brokers.pulsar.wire.requests import VERSION_BYTES, Schema, version_of
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.ranges import TopicName

# A schema of the usual size takes 0.5 KiB, and its row another 0.5 KiB: 16 MiB in total.
SCHEMAS_MAX: Final = 16_384
# Names, definitions and properties of one schema, wherever it comes from: the largest command.
SCHEMA_BYTES_MAX: Final = Limits().command_bytes_max
# The same of all schemas.
SCHEMAS_BYTES_MAX: Final = 64 * 1024 * 1024

KINDS: Final = (
    *("NONE", "STRING", "JSON", "PROTOBUF", "AVRO", "BOOLEAN", "INT8", "INT16", "INT32", "INT64"),
    *("FLOAT", "DOUBLE", "DATE", "TIME", "TIMESTAMP", "KEY_VALUE", "INSTANT", "LOCAL_DATE"),
    *("LOCAL_TIME", "LOCAL_DATE_TIME", "PROTOBUF_NATIVE"),
)
"""Pulsar's names of schema types, by number."""


class Schemas:
    """Schemas by topic and version. When the table is full, the least recently used schema is
    dropped.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._schemas: OrderedDict[tuple[str, bytes], Schema] = OrderedDict()
        self._versions: dict[str, OrderedDict[bytes, None]] = {}
        self._bytes = 0

    def add(self, topic: str, schema: Schema, *, is_newest: bool = True) -> bytes:
        """Store a schema and return its version. A schema that the topic does not have yet becomes
        its newest.

        If `is_newest` is False (another broker has it, in one version or another), it becomes the
        newest only if the topic has no other.
        """
        version = version_of(schema)
        before = self._schemas.get((topic, version))
        self._bytes += size_of(schema) - (0 if before is None else size_of(before))
        self._schemas[topic, version] = schema
        self._schemas.move_to_end((topic, version))
        versions = self._versions.setdefault(topic, OrderedDict())
        if version not in versions:
            versions[version] = None
            versions.move_to_end(version, last=is_newest)
        while len(self._schemas) > SCHEMAS_MAX or self._bytes > SCHEMAS_BYTES_MAX:
            (of, old), dropped = self._schemas.popitem(last=False)
            self._bytes -= size_of(dropped)
            del self._versions[of][old]
            if not self._versions[of]:
                del self._versions[of]
        return version

    def forget(self, topic: str) -> None:
        """Drop all schemas of a topic."""
        for version in self._versions.pop(topic, ()):
            self._bytes -= size_of(self._schemas.pop((topic, version)))

    def all_of(self, topic: str) -> list[tuple[bytes, Schema]]:
        """Return the known schemas of a topic with their versions, the newest last."""
        return [
            (version, self._schemas[topic, version]) for version in self._versions.get(topic, ())
        ]

    def find(self, topic: str, version: bytes | None) -> tuple[bytes, Schema] | None:
        """Return a topic's schema and its version, or None if it is unknown. `version` None means
        the newest.
        """
        wanted = next(reversed(self._versions.get(topic, ())), None) if version is None else version
        schema = None if wanted is None else self._schemas.get((topic, wanted))
        if wanted is None or schema is None:
            return None
        self._schemas.move_to_end((topic, wanted))
        return wanted, schema


def size_of(schema: Schema) -> int:
    """Return the bytes that a schema counts for in the bounds."""
    return (
        len(schema.name)
        + len(schema.definition)
        + sum(len(key) + len(value) for key, value in schema.properties)
    )


class ClusterSchemas:
    """The schemas of the cluster, as one broker finds them."""

    def __init__(self, schemas: Schemas, peers: Peers) -> None:
        """Look in `schemas` first, and ask `peers` for the rest."""
        self._schemas = schemas
        self._peers = peers

    async def find(self, topic: TopicName, version: bytes | None) -> tuple[bytes, Schema] | None:
        """Return a schema of a topic from any broker, or None. `version` None means the newest,
        which the topic's owner knows.

        Raises `PeerError` if the schema is not found and another broker does not answer.
        """
        name = partitioned_name(topic.full)
        known = self._schemas.find(name, version)
        if known is not None and (version is not None or self._peers.is_served_here(topic)):
            return known
        path = _path_of(topic)
        if version is not None:
            if len(version) != VERSION_BYTES:
                return None
            path += f"/{int.from_bytes(version, 'big')}"
        try:
            answer = await self._peers.first_answer(topic, path)
        except PeerError:
            if known is None:
                raise
            return known
        if answer is None:
            return known
        schema = read(answer)
        # The owner's newest is also the newest here, unless a client registered one meanwhile: this
        # broker may own the topic next, and clients send their schemas in any order.
        is_newest = version is None and known == self._schemas.find(name, None)
        made = self._schemas.add(name, schema, is_newest=is_newest)
        return known if version is not None and made != version else (made, schema)

    async def forget(self, topic: TopicName) -> None:
        """Delete all schemas of a topic, here and at every other broker. Raise `PeerError` if
        another broker does not answer.
        """
        self._schemas.forget(partitioned_name(topic.full))
        await self._peers.ask_everyone(_path_of(topic), method="DELETE")


def _path_of(topic: TopicName) -> str:
    return f"/admin/v2/schemas/{topic.namespace}/{quote(topic.local, safe='')}/schema"


def document(schema: Schema) -> dict[str, object]:
    """Return a schema as JSON values for another broker. The version follows from the schema."""
    definition = b64encode(schema.definition).decode("ascii")
    return {
        "name": schema.name,
        "kind": schema.kind,
        "definition": definition,
        "properties": [list(pair) for pair in schema.properties],
    }


def read(answer: object) -> Schema:
    """Read a schema from a `document`. Raise `PeerError`."""
    try:
        name, kind, definition, pairs = (
            answer[key]  # type: ignore[index]
            for key in ("name", "kind", "definition", "properties")
        )
        properties = tuple((str(key), str(value)) for key, value in pairs)
        return Schema(
            name=str(name),
            kind=int(kind),
            definition=b64decode(definition, validate=True),
            properties=properties,
        )
    except (TypeError, KeyError, ValueError) as error:
        problem = (
            f"a broker answers {answer!r:.80}, which is not a schema; ask again when all brokers"
            " run the same release"
        )
        raise not_answered(problem) from error
