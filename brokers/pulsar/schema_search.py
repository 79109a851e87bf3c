"""Find a schema here, at the broker that serves its topic, or at another broker.

Clients ask any broker, but register a schema only at the owner of their topic.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from typing import Final
from urllib.parse import quote

from equipoise.brokers.pulsar.peers import Peers
from equipoise.brokers.pulsar.topics.names import partitioned_name
from equipoise.brokers.pulsar.topics.schemas import VERSION_BYTES, Schemas
from equipoise.brokers.pulsar.wire.errors import NotAnswered
from equipoise.brokers.pulsar.wire.requests import Schema
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.ranges import TopicName

# Different schemas being searched at a time: each question goes to all other brokers and is answered within 5 s.
_ASKED_MAX: Final = 256

Found = tuple[bytes, Schema]


class SchemaSearch:
    """The schemas of the cluster, as one broker finds them."""

    def __init__(self, schemas: Schemas, peers: Peers) -> None:
        """Search `schemas` here, and `peers` for the rest."""
        self._schemas = schemas
        self._peers = peers
        self._asked: dict[tuple[str, bytes | None], asyncio.Task[Found | None]] = {}

    def known(self, topic: TopicName, version: bytes | None) -> Found | None:
        """Return the schema of a topic that is known here. `version` None means the newest."""
        return self._schemas.find(partitioned_name(topic.full), version)

    async def find(self, topic: TopicName, version: bytes | None) -> Found | None:
        """Return the schema of a topic from any broker, or None. The topic's owner decides which is the newest.

        Raises `Overloaded`, and `NotAnswered` if the schema is not found and another broker does not answer.
        """
        known = self.known(topic, version)
        if known is not None and (version is not None or self._peers.is_served_here(topic)):
            return known
        if version is not None and len(version) != VERSION_BYTES:
            return None
        # Concurrent equal questions share one answer.
        asked = self._asked.get((topic.full, version))
        if asked is None:
            if len(self._asked) >= _ASKED_MAX:
                raise Overloaded(what="the list of running schema searches", limit=_ASKED_MAX)
            asked = self._asked[topic.full, version] = asyncio.get_running_loop().create_task(self._ask(topic, version))
            asked.add_done_callback(lambda done: self._finished(topic, version, done))
        try:
            return await asyncio.shield(asked) or known
        except NotAnswered:
            if known is None:
                raise
            return known

    async def forget(self, topic: TopicName) -> None:
        """Delete all schemas of a topic, here and at every other broker. Raise `NotAnswered` if another broker does not answer."""
        self._schemas.forget(partitioned_name(topic.full))
        await self._peers.ask_everyone(_path_of(topic), method="DELETE")

    def _finished(self, topic: TopicName, version: bytes | None, task: asyncio.Task[Found | None]) -> None:
        del self._asked[topic.full, version]
        if not task.cancelled():
            task.exception()  # Waiting callers get the exception; retrieve it in case there are none.

    async def _ask(self, topic: TopicName, version: bytes | None) -> Found | None:
        path = _path_of(topic)
        answer = await self._peers.first_answer(topic, path if version is None else f"{path}/{int.from_bytes(version, 'big')}")
        if answer is None:
            return None
        schema = read(answer)
        made = self._schemas.add(partitioned_name(topic.full), schema, is_newest=False)
        return None if version is not None and made != version else (made, schema)


def _path_of(topic: TopicName) -> str:
    return f"/admin/v2/schemas/{topic.namespace}/{quote(topic.local, safe='')}/schema"


def document(schema: Schema) -> dict[str, object]:
    """Return a schema as JSON values for another broker. The version follows from the schema."""
    definition = b64encode(schema.definition).decode("ascii")
    return {"name": schema.name, "kind": schema.kind, "definition": definition, "properties": [list(pair) for pair in schema.properties]}


def read(answer: object) -> Schema:
    """Read a schema from a `document`. Raise `NotAnswered`."""
    try:
        name, kind, definition, pairs = (answer[key] for key in ("name", "kind", "definition", "properties"))  # type: ignore[index]
        properties = tuple((str(key), str(value)) for key, value in pairs)
        return Schema(name=str(name), kind=int(kind), definition=b64decode(definition, validate=True), properties=properties)
    except (TypeError, KeyError, ValueError) as error:
        problem = f"a broker answers {answer!r:.80}, which is not a schema; ask again when all brokers run the same release"
        raise NotAnswered(problem) from error
