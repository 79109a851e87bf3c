"""Find a schema here, at the broker that serves its topic, or at another broker.

Clients ask any broker, but register a schema only at the owner of their topic.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from urllib.parse import quote

from equipoise.brokers.pulsar.peers import Peers
from equipoise.brokers.pulsar.topics.names import partitioned_name
from equipoise.brokers.pulsar.topics.schemas import Schemas
from equipoise.brokers.pulsar.wire.errors import NotAnswered
from equipoise.brokers.pulsar.wire.requests import VERSION_BYTES, Schema
from equipoise.channel.core.ranges import TopicName


class ClusterSchemas:
    """The schemas of the cluster, as one broker finds them."""

    def __init__(self, schemas: Schemas, peers: Peers) -> None:
        """Look in `schemas` first, and ask `peers` for the rest."""
        self._schemas = schemas
        self._peers = peers

    async def find(self, topic: TopicName, version: bytes | None) -> tuple[bytes, Schema] | None:
        """Return a schema of a topic from any broker, or None. `version` None means the newest,
        which the topic's owner knows.

        Raises `NotAnswered` if the schema is not found and another broker does not answer.
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
        except NotAnswered:
            if known is None:
                raise
            return known
        if answer is None:
            return known
        schema = read(answer)
        made = self._schemas.add(name, schema, is_newest=False)
        return known if version is not None and made != version else (made, schema)

    async def forget(self, topic: TopicName) -> None:
        """Delete all schemas of a topic, here and at every other broker. Raise `NotAnswered` if
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
    """Read a schema from a `document`. Raise `NotAnswered`."""
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
        raise NotAnswered(problem) from error
