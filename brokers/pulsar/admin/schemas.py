"""Serve the schemas of topics, which brokers keep in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import web
from pydantic import Field, TypeAdapter

from equipoise.brokers.balancing.named import namespace_named
from equipoise.brokers.balancing.topic_policies import Compatibility, PulsarModel
from equipoise.brokers.errors import invalid_request
from equipoise.brokers.http.answers import done, json_answer
from equipoise.brokers.http.bodies import flag_of, required_body_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.pulsar import schemas
from equipoise.brokers.pulsar.admin.topics import TopicPaths, topic_of
from equipoise.brokers.pulsar.schemas import KINDS, SCHEMA_BYTES_MAX, size_of
from equipoise.brokers.pulsar.topics.names import partitioned_name
from equipoise.brokers.pulsar.wire.requests import VERSION_BYTES, Schema, version_of
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.ranges import TopicName, topic_hash

_SCHEMAS: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


class SchemaBody(PulsarModel):
    """Pulsar's PostSchemaPayload. `type` is one of Pulsar's names, such as AVRO; `schema` is the
    definition as text.
    """

    type: str
    definition: str = Field(default="", alias="schema")
    properties: dict[str, str] = Field(default_factory=dict)

    def schema_of(self, topic: TopicName) -> Schema:
        """Return the schema that a client would register. Raise `CallerError`."""
        if self.type not in KINDS:
            raise invalid_request(
                what="the type of the schema",
                problem=f"{self.type[:64]!r} is not one of {', '.join(KINDS)}",
            )
        kind = KINDS.index(self.type)
        definition = _key_value(self.definition) if kind == _KEY_VALUE else self.definition.encode()
        schema = Schema(
            name=topic.local,
            kind=kind,
            definition=definition,
            properties=tuple(sorted(self.properties.items())),
        )
        if size_of(schema) > SCHEMA_BYTES_MAX:
            problem = (
                f"it has {size_of(schema)} bytes with its name and properties; the largest may have"
                f" {SCHEMA_BYTES_MAX}"
            )
            raise invalid_request(what="the schema", problem=problem)
        return schema


_SCHEMA_BODY: Final = TypeAdapter[SchemaBody | None](SchemaBody | None)
_EXPECTED: Final = "a schema with type, schema and properties"


class SchemaPaths(TopicPaths):
    """The paths of schemas, as one broker answers them."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get(f"{_SCHEMAS}/schema", self.schema),
            web.get(f"{_SCHEMAS}/schema/{{version:[0-9]{{1,19}}}}", self.schema),
            web.get(f"{_SCHEMAS}/schemas", self.schemas),
            web.post(f"{_SCHEMAS}/schema", self.upload),
            web.delete(f"{_SCHEMAS}/schema", self.delete),
            web.post(f"{_SCHEMAS}/compatibility", self.compatibility),
            web.post(f"{_SCHEMAS}/version", self.version),
        )

    async def schema(self, request: web.Request) -> web.Response:
        """Return a schema of a topic, of one version or the newest, as long as any broker knows it.

        With `local=true` what is known here, as brokers ask each other; 204 if nothing is.
        """
        topic = topic_of(request)
        version = version_in(request.match_info.get("version"))
        if flag_of(request, "local"):
            known = self._service.schemas.find(partitioned_name(topic.full), version)
            return done() if known is None else json_answer(schemas.document(known[1]))
        found = await self._server.schemas.find(topic, version)
        if found is None:
            raise _no_schema(topic, "a schema" if version is None else "this schema version")
        return json_answer(schema_document(*found))

    async def schemas(self, request: web.Request) -> web.Response:
        """Return the schemas of a topic that its owner knows, oldest first."""
        topic = topic_of(request)
        await self._here(request, topic.namespace, topic_hash(topic.full))
        known = self._service.schemas.all_of(partitioned_name(topic.full))
        if not known:
            raise _no_schema(topic, "a schema")
        return json_answer({"getSchemaResponses": [schema_document(*found) for found in known]})

    async def upload(self, request: web.Request) -> web.Response:
        """Register a schema at the owner of a topic, as its newest. It lasts as long as the brokers
        that know it.
        """
        topic = topic_of(request)
        schema = (await required_body_of(request, _SCHEMA_BODY, _EXPECTED)).schema_of(topic)
        self._server.directory.check_namespace(topic.namespace)
        await self._here(request, topic.namespace, topic_hash(topic.full))
        version = self._service.schemas.add(partitioned_name(topic.full), schema)
        return json_answer(_version_document(version), status=HTTPStatus.ACCEPTED)

    async def delete(self, request: web.Request) -> web.Response:
        """Delete all schemas of a topic at every broker. A client that still uses one registers it
        again when it reconnects.

        With `local=true` only here, which is what brokers ask each other.
        """
        topic = topic_of(request)
        if flag_of(request, "local"):
            self._service.schemas.forget(partitioned_name(topic.full))
            return done()
        known = await self._server.schemas.find(topic, None)
        if known is None:
            raise _no_schema(topic, "a schema")
        await self._server.schemas.forget(topic)
        return json_answer({"version": int.from_bytes(known[0], "big")})

    async def compatibility(self, request: web.Request) -> web.Response:
        """Return that producers of a topic may use a schema: schemas are not compared here."""
        topic = topic_of(request)
        (await required_body_of(request, _SCHEMA_BODY, _EXPECTED)).schema_of(topic)
        namespace = namespace_named(ready_view(self._worker), topic.namespace)
        self._server.directory.check_namespace(namespace.name)
        return json_answer(
            {
                "compatibility": True,
                "schemaCompatibilityStrategy": Compatibility.ALWAYS_COMPATIBLE,
            }
        )

    async def version(self, request: web.Request) -> web.Response:
        """Return the version of a schema. It is a digest of the schema, registered or not."""
        schema = (await required_body_of(request, _SCHEMA_BODY, _EXPECTED)).schema_of(
            topic_of(request)
        )
        return json_answer(_version_document(version_of(schema))["version"])


def _no_schema(topic: TopicName, what: str) -> NotFound:
    return NotFound(
        f"no broker knows {what} of {topic.full}; a schema lasts as long as the brokers that it was"
        " sent to"
    )


def _version_document(version: bytes) -> dict[str, object]:
    return {"version": {"version": int.from_bytes(version, "big")}}


_KEY_VALUE: Final = KINDS.index("KEY_VALUE")

_LENGTH_BYTES: Final = 4


def version_in(text: str | None) -> bytes | None:
    """Return the version that the number in a path names, or None without one."""
    return (
        None
        if text is None
        else (int(text) % (1 << 8 * VERSION_BYTES)).to_bytes(VERSION_BYTES, "big")
    )


def schema_document(version: bytes, schema: Schema) -> dict[str, object]:
    """Return a schema as Pulsar's JSON. The timestamp is 0, because schemas are not stored."""
    return {
        "version": int.from_bytes(version, "big"),
        "type": KINDS[schema.kind] if 0 <= schema.kind < len(KINDS) else "NONE",
        "timestamp": 0,
        "data": _data_of(schema),
        "properties": dict(schema.properties),
    }


def _data_of(schema: Schema) -> str:
    """Return the definition as text. Convert a key/value definition (two parts, each after its
    length) to one JSON object.
    """
    if schema.kind != _KEY_VALUE:
        return schema.definition.decode("utf-8", "replace")
    halves = []
    rest = schema.definition
    for half in ("key", "value"):
        end = _LENGTH_BYTES + max(int.from_bytes(rest[:_LENGTH_BYTES], "big", signed=True), 0)
        definition, rest = rest[_LENGTH_BYTES:end], rest[end:]
        halves.append(f'"{half}": {_json_of(definition)}')
    return f"{{{', '.join(halves)}}}"


def _json_of(definition: bytes) -> str:
    """Return a definition as JSON: itself (structures), or else a text (such as the empty one of a
    string, or one nested too deeply).
    """
    try:
        return json.dumps(json.loads(definition))
    except (ValueError, RecursionError):
        return json.dumps(definition.decode("utf-8", "replace"))


def _key_value(text: str) -> bytes:
    """Return a key/value definition as clients send it: two parts, each after its length. Raise
    `CallerError`.
    """
    try:
        halves = json.loads(text)
        parts = [
            (halves[half] if isinstance(halves[half], str) else json.dumps(halves[half])).encode()
            for half in ("key", "value")
        ]
    except RecursionError:
        raise invalid_request(
            what="the schema", problem="its types are nested too deeply; use fewer levels"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise invalid_request(
            what="the schema",
            problem="a KEY_VALUE schema is a JSON object with key and value, texts in UTF-8",
        ) from None
    return b"".join(len(part).to_bytes(_LENGTH_BYTES, "big") + part for part in parts)
