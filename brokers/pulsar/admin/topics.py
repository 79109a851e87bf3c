"""Serve the topic paths of Pulsar's REST interface: lists, partitions, stats and schemas.

The broker that serves a topic or bundle answers for it; others redirect there (307), as Pulsar does. `docs/reference/http.md` compares the
answers with Pulsar's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from aiohttp import web
from pydantic import TypeAdapter

from equipoise.brokers.agent.intents import SetPolicy
from equipoise.brokers.balancing.named import bundle_named, namespace_named
from equipoise.brokers.errors import InvalidRequest, Rejected
from equipoise.brokers.http.answers import done, json_answer
from equipoise.brokers.http.bodies import Integer, body_of, bundle_of, namespace_of, parameter_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.pulsar import schema_search
from equipoise.brokers.pulsar.topics.names import NON_PERSISTENT, PARTITIONS_MAX, partitioned_name, partitions_in, policy_of, served_topic
from equipoise.brokers.pulsar.topics.schemas import VERSION_BYTES
from equipoise.brokers.pulsar.topics.stats import Stats, partitioned_stats, topic_stats
from equipoise.brokers.pulsar.wire.requests import Schema, TopicsMode
from equipoise.brokers.runtime.lookups import Lookups
from equipoise.brokers.runtime.service import own_http
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.ranges import TopicName, parse_topic, topic_hash
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX, Reason

if TYPE_CHECKING:
    from equipoise.brokers.pulsar.server import Server

_NAMESPACE: Final = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
_BUNDLE: Final = _NAMESPACE + "/{bundle:0x[0-9a-f]{8}_0x[0-9a-f]{8}}"
_TOPIC: Final = _NAMESPACE + "/{topic}"

_SCHEMA: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema"

_PARTITIONS_BODY: Final = TypeAdapter[int | None](Integer | None)


class Topics:
    """The topic paths of one broker."""

    def __init__(self, worker: Worker, server: Server, lookups: Lookups) -> None:
        """`server` answers for local topics and asks other brokers; `lookups` finds the broker to redirect to."""
        self._worker = worker
        self._lookups = lookups
        self._server = server
        self._hosting = server.service.hosting

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get("/admin/v2/namespaces/{tenant}/{namespace}/topics", self.of_namespace),
            web.get(_NAMESPACE, self.of_domain),
            web.get(f"{_NAMESPACE}/partitioned", self.partitioned),
            web.get(_BUNDLE, self.of_bundle),
            web.get(f"{_TOPIC}/partitions", self.partitions),
            web.put(f"{_TOPIC}/partitions", self.create_partitions),
            web.post(f"{_TOPIC}/partitions", self.add_partitions),
            web.delete(f"{_TOPIC}/partitions", self.delete_partitions),
            web.get(f"{_TOPIC}/partitioned-stats", self.partitioned_stats),
            web.get(f"{_TOPIC}/stats", self.stats),
            web.get(f"{_TOPIC}/subscriptions", self.subscriptions),
            web.get(_SCHEMA, self.schema),
            web.get(_SCHEMA + "/{version:[0-9]{1,19}}", self.schema),
        )

    def is_pulsars(self, topic: TopicName) -> bool:
        """Return whether Pulsar's service serves a topic, and not another one. Raise `NotServed` for a persistent topic."""
        if self._worker.service_of(topic.namespace) is not self._server.service:
            return False
        served_topic(topic.full)
        return True

    async def all_fetched(self) -> None:
        """Wait until next owners have fetched what they need over HTTP. Call this before HTTP ends."""
        await self._server.service.all_fetched()

    # --- lists ---

    async def of_namespace(self, request: web.Request) -> web.Response:
        """List the topics of a namespace, whichever broker serves them; `mode` chooses the domain, as in Pulsar."""
        return json_answer(await self._topics_of(namespace_of(request), _mode_of(request)))

    async def of_domain(self, request: web.Request) -> web.Response:
        """List the topics of a namespace in one domain.

        With `local=true` only those served here, and the bundles that they are of, which is what brokers ask each other.
        """
        namespace = namespace_named(ready_view(self._worker), namespace_of(request)).name
        mode = TopicsMode.NON_PERSISTENT if request.match_info["domain"] == NON_PERSISTENT else TopicsMode.PERSISTENT
        if mode is TopicsMode.NON_PERSISTENT and parameter_of(request, "local") == "true":
            return json_answer(self._server.peers.here(namespace).document())
        return json_answer(await self._topics_of(namespace, mode))

    async def of_bundle(self, request: web.Request) -> web.Response:
        """List the topics of one bundle."""
        bundle = bundle_named(ready_view(self._worker), bundle_of(request))
        await self._here(request, bundle.namespace, bundle.low)
        hosted = self._hosting.bundles.get(bundle.name)
        is_served = hosted is not None and request.match_info["domain"] == NON_PERSISTENT
        return json_answer(sorted(hosted.topics) if hosted is not None and is_served else [])

    async def partitioned(self, request: web.Request) -> web.Response:
        """List the partitioned topics of a namespace in one domain."""
        namespace = namespace_named(ready_view(self._worker), namespace_of(request))
        domain = f"{request.match_info['domain']}://"
        return json_answer(sorted(topic for topic in partitions_in(namespace.policies) if topic.startswith(domain)))

    async def _topics_of(self, namespace: str, mode: TopicsMode) -> Sequence[str]:
        return await self._server.topics_of(namespace_named(ready_view(self._worker), namespace).name, mode)

    # --- partitions ---

    async def partitions(self, request: web.Request) -> web.Response:
        """Return the number of partitions of a topic; 0 if it is not partitioned, in use or not."""
        return json_answer({"partitions": await self._server.partitions_of(_topic_of(request)), "deleted": False, "properties": {}})

    async def create_partitions(self, request: web.Request) -> web.Response:
        """Make a topic a partitioned topic."""
        topic = _partitionable(request)
        count = await _count_of(request)
        partitions = self._partitions(topic)
        self._server.check_namespace(topic.namespace)
        if partitions:
            raise Rejected(
                key=topic.full, reason=Reason.ILLEGAL_TRANSITION, problem="it already exists", offset=None, action="create topic"
            )
        await self._set_partitions(topic, count, before=None)
        return done()

    async def add_partitions(self, request: web.Request) -> web.Response:
        """Add partitions to a partitioned topic; never fewer, because clients may use them."""
        topic = _partitionable(request)
        count = await _count_of(request)
        before = self._partitions(topic)
        if not before:
            raise _no_topic(topic)
        if count <= before:
            raise InvalidRequest(what="the number of partitions", problem=f"{count} is not more than the current number, {before}")
        await self._set_partitions(topic, count, before=before)
        return done()

    async def delete_partitions(self, request: web.Request) -> web.Response:
        """Make a partitioned topic a plain one. Partitions go when no client uses them."""
        topic = _partitionable(request)
        before = self._partitions(topic)
        if not before:
            raise _no_topic(topic)
        await self._set_partitions(topic, None, before=before)
        return done()

    def _partitions(self, topic: TopicName) -> int:
        namespace = namespace_named(ready_view(self._worker), topic.namespace)
        return partitions_in(namespace.policies).get(topic.full, 0)

    async def _set_partitions(self, topic: TopicName, count: int | None, *, before: int | None) -> None:
        """Set the number of partitions. Raise `Rejected` if it is no longer `before`, because of a concurrent change."""
        intent = SetPolicy(name=topic.namespace, policy=policy_of(topic.full), value=count, expected=before)
        await self._worker.request(intent, timeout_ms=self._worker.config.admin_ms)

    # --- stats ---

    async def stats(self, request: web.Request) -> web.Response:
        """Return the stats of one topic; 404 if no client uses it."""
        topic = await self._served(request)
        served = self._hosting.topics.get(topic.full)
        if served is None:
            raise _no_topic(topic)
        return json_answer(topic_stats(served.topic, owner_broker=self._worker.broker_id))

    async def partitioned_stats(self, request: web.Request) -> web.Response:
        """Return the stats of a partitioned topic: of all partitions together, and of each unless `perPartition=false`.

        With `local=true` only those of each partition that is served here, by name, which is what brokers ask each other.
        """
        topic = _partitionable(request)
        partitions = self._partitions(topic)
        stats = self._local_stats(topic)
        if parameter_of(request, "local") == "true":
            return json_answer(stats)
        if not partitions:
            raise _no_topic(topic)
        for answer in await self._server.peers.ask_all(topic.namespace, request.rel_url.raw_path):
            stats |= answer if isinstance(answer, dict) else {}
        is_each_wanted = parameter_of(request, "perPartition") != "false"
        return json_answer(partitioned_stats(stats, partitions=partitions, is_each_wanted=is_each_wanted))

    def _local_stats(self, topic: TopicName) -> dict[str, Stats]:
        names = (f"{topic.full}-partition-{index}" for index in range(self._partitions(topic)))
        found = {name: served for name in names if (served := self._hosting.topics.get(name)) is not None}
        return {name: topic_stats(served.topic, owner_broker=self._worker.broker_id) for name, served in found.items()}

    async def subscriptions(self, request: web.Request) -> web.Response:
        """List the subscriptions of one topic by name."""
        topic = await self._served(request)
        served = self._hosting.topics.get(topic.full)
        if served is None:
            raise _no_topic(topic)
        return json_answer(sorted(served.topic.subscriptions))

    async def schema(self, request: web.Request) -> web.Response:
        """Return a schema of a topic, of one version or the newest, as long as any broker knows it.

        With `local=true` what is known here, as brokers ask each other; 204 if nothing is.
        """
        named = request.match_info
        topic = parse_topic(f"{NON_PERSISTENT}://{named['tenant']}/{named['namespace']}/{named['topic']}")
        version = version_in(named.get("version"))
        if parameter_of(request, "local") == "true":
            known = self._server.schemas.known(topic, version)
            return done() if known is None else json_answer(schema_search.document(known[1]))
        found = await self._server.schemas.find(topic, version)
        if found is None:
            raise NotFound(
                f"no broker knows {'a schema' if version is None else 'this schema version'} of {topic.full}; "
                "a schema lasts as long as the brokers that it was sent to"
            )
        return json_answer(schema_document(*found))

    async def _served(self, request: web.Request) -> TopicName:
        """Return the topic of a path if this broker serves it. Otherwise redirect the caller to its owner."""
        topic = _topic_of(request)
        await self._here(request, topic.namespace, topic_hash(topic.full))
        return topic

    async def _here(self, request: web.Request, namespace: str, point: int) -> None:
        """Return if this broker serves a point. Otherwise redirect the caller to its owner. Waits as any lookup does."""
        located = await self._lookups.locate(namespace, point, started_ns=time.monotonic_ns())
        if located.broker.broker != self._worker.broker_id:
            address = own_http(located.broker.joined.addresses) or ""
            raise web.HTTPTemporaryRedirect(location=address + request.path_qs)


def _no_topic(topic: TopicName) -> NotFound:
    return NotFound(f"there is no topic {topic.full} now; a non-persistent topic exists while it has a producer or a consumer")


def _topic_of(request: web.Request) -> TopicName:
    """Return the topic of a path. Raise `InvalidName`."""
    named = request.match_info
    return parse_topic(f"{named['domain']}://{named['tenant']}/{named['namespace']}/{named['topic']}")


def _partitionable(request: web.Request) -> TopicName:
    """Return the topic of a path, which may have partitions. Raise `InvalidRequest` if it may not."""
    topic = _topic_of(request)
    if partitioned_name(topic.full) != topic.full:
        raise InvalidRequest(what=f"the topic {topic.full}", problem="it is a partition; name the topic without -partition-N")
    if len(policy_of(topic.full)) > TEXT_CHARACTERS_MAX:
        raise InvalidRequest(
            what="the name of a partitioned topic", problem=f"it would make a policy of more than {TEXT_CHARACTERS_MAX} characters"
        )
    return topic


async def _count_of(request: web.Request) -> int:
    """Return the number in the body. Raise `InvalidRequest`."""
    count = await body_of(request, _PARTITIONS_BODY)
    if count is None or not 0 < count <= PARTITIONS_MAX:
        raise InvalidRequest(what="the body", problem=f"it must be a number of partitions from 1 to {PARTITIONS_MAX}, such as 4")
    return count


def _mode_of(request: web.Request) -> TopicsMode:
    """Return the parameter `mode`. Raise `InvalidRequest`."""
    text = parameter_of(request, "mode") or TopicsMode.ALL.name
    if text not in TopicsMode.__members__:
        raise InvalidRequest(what="the parameter mode", problem=f"{text[:64]!r} is not one of {', '.join(TopicsMode.__members__)}")
    return TopicsMode[text]


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
