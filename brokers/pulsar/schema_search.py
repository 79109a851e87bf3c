"""Find a schema here, at the broker that serves its topic, or at another broker.

Clients ask any broker, but register a schema only at the owner of their topic.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Callable, Coroutine, Sequence
from typing import Final
from urllib.parse import quote

from equipoise.brokers.pulsar.peers import Peers
from equipoise.brokers.pulsar.topics.compatibility import COMPARED_VERSIONS_MAX
from equipoise.brokers.pulsar.topics.names import partitioned_name
from equipoise.brokers.pulsar.topics.schemas import VERSION_BYTES, Schemas
from equipoise.brokers.pulsar.wire.errors import NotAnswered
from equipoise.brokers.pulsar.wire.requests import Schema
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.ranges import TopicName

# In place of a version: all schemas of a topic.
_ALL: Final = b"*"

# Different schemas being searched at a time: each question goes to all other brokers and is
# answered within 5 s.
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
        """Return the schema of a topic from any broker, or None. The topic's owner decides which is
        the newest.

        Raises `Overloaded`, and `NotAnswered` if the schema is not found and another broker does
        not answer.
        """
        known = self.known(topic, version)
        if known is not None and (version is not None or self._peers.is_served_here(topic)):
            return known
        if version is not None and len(version) != VERSION_BYTES:
            return None
        try:
            return (
                await self._shared((topic.full, version), lambda: self._ask(topic, version))
                or known
            )
        except NotAnswered:
            if known is None:
                raise
            return known

    async def fetch(self, topic: TopicName) -> None:
        """Store the schemas of a topic that other brokers know, so that the newest is the same as
        at its former owner. Raises as `find`.
        """
        await self._shared((topic.full, _ALL), lambda: self._fetch(topic))

    def newest(self, topic: TopicName) -> Sequence[Schema]:
        """Return the schemas of a topic that are known here and that another broker needs, the
        newest last.
        """
        return [schema for _, schema in self._schemas.all_of(partitioned_name(topic.full))][
            -COMPARED_VERSIONS_MAX:
        ]

    async def _shared(
        self, key: tuple[str, bytes | None], ask: Callable[[], Coroutine[None, None, Found | None]]
    ) -> Found | None:
        """Share one answer among concurrent equal questions."""
        asked = self._asked.get(key)
        if asked is None:
            if len(self._asked) >= _ASKED_MAX:
                raise Overloaded(what="the list of running schema searches", limit=_ASKED_MAX)
            asked = self._asked[key] = asyncio.get_running_loop().create_task(ask())
            asked.add_done_callback(lambda done: self._finished(key, done))
        return await asyncio.shield(asked)

    async def forget(self, topic: TopicName) -> None:
        """Delete all schemas of a topic, here and at every other broker. Raise `NotAnswered` if
        another broker does not answer.
        """
        self._schemas.forget(partitioned_name(topic.full))
        await self._peers.ask_everyone(_path_of(topic), method="DELETE")

    def _finished(self, key: tuple[str, bytes | None], task: asyncio.Task[Found | None]) -> None:
        del self._asked[key]
        if not task.cancelled():
            # Waiting callers get the exception; retrieve it in case there are none.
            task.exception()

    async def _ask(self, topic: TopicName, version: bytes | None) -> Found | None:
        path = _path_of(topic)
        answer = await self._peers.first_answer(
            topic, path if version is None else f"{path}/{int.from_bytes(version, 'big')}"
        )
        if answer is None:
            return None
        schema = read(answer)
        made = self._schemas.add(partitioned_name(topic.full), schema, is_newest=False)
        return None if version is not None and made != version else (made, schema)

    async def _fetch(self, topic: TopicName) -> None:
        answers = await self._peers.answers(f"{_path_of(topic)}s")
        lists = [[read(each) for each in answer] for answer in answers if isinstance(answer, list)]
        # Each owner fetched the schemas of the one before, so the longest list is that of the last
        # owner.
        longest = max(lists, key=len, default=None)
        if longest:
            self._schemas.learn(partitioned_name(topic.full), longest)


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
