"""Serve the lists of topics: of a namespace, a domain and a bundle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.named import bundle_named, namespace_named
from equipoise.brokers.errors import InvalidRequest
from equipoise.brokers.http.admin.namespaces import NAMESPACE_PATH, RANGE
from equipoise.brokers.http.answers import json_answer
from equipoise.brokers.http.bodies import bundle_of, flag_of, namespace_of, parameter_of, texts_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.pulsar.admin.topic_paths import DOMAIN_PATH, TopicPaths
from equipoise.brokers.pulsar.topics.names import NON_PERSISTENT, partitions_in
from equipoise.brokers.pulsar.topics.stats import Stats, topic_stats
from equipoise.brokers.pulsar.wire.requests import TopicsMode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.ranges import bundle_name, parse_range, topic_hash

_BUNDLE_PATH: Final = f"{DOMAIN_PATH}/{RANGE}"


class Lists(TopicPaths):
    """The lists of topics, as one broker answers them."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get(f"{NAMESPACE_PATH}/topics", self.of_namespace),
            web.get(f"{NAMESPACE_PATH}/{{bundle}}/topicHashPositions", self.positions),
            web.get(DOMAIN_PATH, self.of_domain),
            web.get(f"{DOMAIN_PATH}/partitioned", self.partitioned),
            web.get(_BUNDLE_PATH, self.of_bundle),
            web.get("/admin/v2/broker-stats/topics", self.of_broker),
        )

    async def of_namespace(self, request: web.Request) -> web.Response:
        """List the topics of a namespace, whichever broker serves them; `mode` chooses the domain,
        as in Pulsar.
        """
        return json_answer(await self._topics_of(namespace_of(request), _mode_of(request)))

    async def of_domain(self, request: web.Request) -> web.Response:
        """List the topics of a namespace in one domain, or of its bundle with the range `bundle`.

        With `local=true` only those served here, and the bundles that they are of, which is what
        brokers ask each other.
        """
        namespace = namespace_named(ready_view(self._worker), namespace_of(request)).name
        mode = (
            TopicsMode.NON_PERSISTENT
            if request.match_info["domain"] == NON_PERSISTENT
            else TopicsMode.PERSISTENT
        )
        if mode is TopicsMode.NON_PERSISTENT and flag_of(request, "local"):
            return json_answer(self._server.peers.here(namespace).document())
        range_ = parameter_of(request, "bundle")
        if not range_:
            return json_answer(await self._topics_of(namespace, mode))
        bundle = bundle_named(
            ready_view(self._worker), bundle_name(namespace, *parse_range(range_))
        )
        return json_answer(_in_bundle(bundle, await self._topics_of(namespace, mode)))

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
        return json_answer(
            sorted(topic for topic in partitions_in(namespace.policies) if topic.startswith(domain))
        )

    async def positions(self, request: web.Request) -> web.Response:
        """Return the hash of each topic of a bundle, or of those named in `topics`, which may be
        given often, or with commas.
        """
        bundle = bundle_named(ready_view(self._worker), bundle_of(request))
        topics = _in_bundle(
            bundle, await self._topics_of(bundle.namespace, TopicsMode.NON_PERSISTENT)
        )
        wanted = texts_of(request, "topics")
        hashes = {topic: topic_hash(topic) for topic in topics if not wanted or topic in wanted}
        return json_answer(
            {
                "namespace": bundle.namespace,
                "bundle": request.match_info["bundle"],
                "topicHashPositions": hashes,
            }
        )

    async def of_broker(self, _request: web.Request) -> web.Response:
        """Return the stats of each topic that this broker serves, by namespace, bundle and
        domain.
        """
        found: dict[str, dict[str, Mapping[str, Mapping[str, Stats]]]] = {}
        for name in sorted(self._hosting.bundles):
            await asyncio.sleep(0)  # Clients are served between bundles.
            hosted = self._hosting.bundles.get(name)
            if hosted is None:
                continue
            namespace, _, range_ = name.rpartition("/")
            stats = {
                topic: topic_stats(hosted.topics[topic].topic, owner_broker=self._worker.broker_id)
                for topic in sorted(hosted.topics)
            }
            if stats:
                found.setdefault(namespace, {})[range_] = {NON_PERSISTENT: stats}
        return json_answer(found)

    async def _topics_of(self, namespace: str, mode: TopicsMode) -> Sequence[str]:
        return await self._server.directory.topics_of(
            namespace_named(ready_view(self._worker), namespace).name, mode
        )


def _in_bundle(bundle: BundleEntry, topics: Sequence[str]) -> Sequence[str]:
    return [topic for topic in topics if bundle.contains(topic_hash(topic))]


def _mode_of(request: web.Request) -> TopicsMode:
    """Return the parameter `mode`. Raise `InvalidRequest`."""
    text = parameter_of(request, "mode") or TopicsMode.ALL.name
    if text not in TopicsMode.__members__:
        raise InvalidRequest(
            what="the parameter mode",
            problem=f"{text[:64]!r} is not one of {', '.join(TopicsMode.__members__)}",
        )
    return TopicsMode[text]
