"""Answer for the topics of namespaces, domains and bundles, and serve the paths of their lists,
backlogs and subscriptions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.named import bundle_named, namespace_named
from equipoise.brokers.errors import counted, invalid_request
from equipoise.brokers.http.admin.namespaces import LARGEST, NAMESPACE_PATH, RANGE
from equipoise.brokers.http.answers import done, json_answer
from equipoise.brokers.http.bodies import bundle_of, flag_of, namespace_of, parameter_of, texts_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.pulsar.admin.topics import DOMAIN_PATH, TopicPaths
from equipoise.brokers.pulsar.peers import Listing
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.topics.names import NON_PERSISTENT, partitions_in
from equipoise.brokers.pulsar.topics.stats import Stats, topic_stats
from equipoise.brokers.pulsar.wire.requests import TopicsMode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.ranges import bundle_name, parse_range, topic_hash

_BUNDLE: Final = f"{NAMESPACE_PATH}/{RANGE}"
_BUNDLE_PATH: Final = f"{DOMAIN_PATH}/{RANGE}"
_LOADS: Final = "/admin/v2/broker-stats/load-report"


class NamespacesWithTopics(TopicPaths):
    """The paths of namespaces that depend on their topics, as one broker answers them."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
            web.get(f"{NAMESPACE_PATH}/topics", self.of_namespace),
            web.get(f"{NAMESPACE_PATH}/{{bundle}}/topicHashPositions", self.positions),
            web.get(DOMAIN_PATH, self.of_domain),
            web.get(f"{DOMAIN_PATH}/partitioned", self.partitioned),
            web.get(_BUNDLE_PATH, self.of_bundle),
            web.get("/admin/v2/broker-stats/topics", self.of_broker),
            web.post(f"{NAMESPACE_PATH}/unsubscribe/{{subscription}}", self.unsubscribe),
            web.post(f"{_BUNDLE}/unsubscribe/{{subscription}}", self.unsubscribe_bundle),
        )

    async def in_use(self, namespace: str) -> Sequence[str]:
        """Return the topics of a namespace, sorted. A bundle without a server has none, and nor has
        a broker without Pulsar's service.
        """
        if self._worker.service_of(namespace) is not self._service:
            return []
        answers = await self._server.peers.ask_everyone(
            f"/admin/v2/{NON_PERSISTENT}/{namespace}", method="GET"
        )
        listings = [*map(Listing.read, answers), self._server.peers.here(namespace)]
        return sorted({topic for listing in listings for topic in listing.topics})

    async def weights(self, namespace: str, by: str) -> Mapping[str, float]:
        """Return the number of topics (`LARGEST`) or the bytes per second (`HOT`) of bundles by
        name.
        """
        return await (
            self._topics_by_bundle(namespace) if by == LARGEST else self._loads_by_bundle(namespace)
        )

    async def _topics_by_bundle(self, namespace: str) -> Mapping[str, float]:
        topics = await self._server.directory.topics_of(namespace, TopicsMode.NON_PERSISTENT)
        bundles = (self._worker.view.bundle_at(namespace, topic_hash(topic)) for topic in topics)
        return Counter(bundle.name for bundle in bundles if bundle is not None)

    async def _loads_by_bundle(self, namespace: str) -> Mapping[str, float]:
        """Return the bytes per second of each bundle in the last sample of its broker."""
        loads = {
            name: load.bytes_per_second for name, load in self._worker.loads.latest().loads.items()
        }
        for answer in await self._server.peers.ask_all(namespace, _LOADS):
            stats = answer.get("lastStats") if isinstance(answer, dict) else None
            loads |= {name: float(each["bytes_per_second"]) for name, each in (stats or {}).items()}
        bundles = self._worker.view.bundles_of(namespace)
        return {bundle.name: loads[bundle.name] for bundle in bundles if bundle.name in loads}

    async def unsubscribe(self, request: web.Request) -> web.Response:
        """Delete a subscription of all topics of a namespace. 412 if it has consumers, and then it
        stays on all topics.

        With `local=true` delete those without consumers here, or with `check=true` none, and list
        the topics where it has some, which is what brokers ask each other.
        """
        namespace = namespace_named(ready_view(self._worker), namespace_of(request)).name
        name, path = request.match_info["subscription"], request.rel_url.raw_path
        if flag_of(request, "local"):
            if not flag_of(request, "check"):
                _unsubscribe(self._hosting.in_namespace(namespace), name)
            return json_answer(_in_use(self._hosting.in_namespace(namespace), name))
        # Delete nothing before all brokers have answered that it is unused.
        for question in (f"{path}?check=true", path):
            answers = await self._server.peers.ask_all(namespace, question, method="POST")
            elsewhere = [
                topic for answer in answers if isinstance(answer, list) for topic in answer
            ]
            _check_unused(name, [*_in_use(self._hosting.in_namespace(namespace), name), *elsewhere])
        _unsubscribe(self._hosting.in_namespace(namespace), name)
        return done()

    async def unsubscribe_bundle(self, request: web.Request) -> web.Response:
        """Delete a subscription of all topics of a bundle. 412 if it has consumers, and then it
        stays on all topics.
        """
        bundle, name = (
            bundle_named(ready_view(self._worker), bundle_of(request)),
            request.match_info["subscription"],
        )
        await self._here(request, bundle.namespace, bundle.low)
        hosted = self._hosting.bundles.get(bundle.name)
        topics = [] if hosted is None else [*hosted.topics.values()]
        _check_unused(name, _in_use(topics, name))
        _unsubscribe(topics, name)
        return done()

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


def _unsubscribe(topics: Sequence[Served], name: str) -> None:
    """Delete a subscription of topics where it has no consumers."""
    for served in topics:
        subscription = served.topic.subscriptions.get(name)
        if subscription is not None and not subscription.consumers:
            served.delete_subscription(name)


def _in_use(topics: Sequence[Served], name: str) -> Sequence[str]:
    """Return the names of the topics where a subscription has consumers."""
    having = [(served.name, served.topic.subscriptions.get(name)) for served in topics]
    return [
        topic
        for topic, subscription in having
        if subscription is not None and subscription.consumers
    ]


def _check_unused(name: str, in_use: Sequence[str]) -> None:
    if in_use:
        raise CallerError(
            f"subscription {name} has consumers on {counted(len(in_use), 'topic')}, such as"
            f" {min(in_use)}; stop them first"
        )


def _in_bundle(bundle: BundleEntry, topics: Sequence[str]) -> Sequence[str]:
    return [topic for topic in topics if bundle.contains(topic_hash(topic))]


def _mode_of(request: web.Request) -> TopicsMode:
    """Return the parameter `mode`. Raise `CallerError`."""
    text = parameter_of(request, "mode") or TopicsMode.ALL.name
    if text not in TopicsMode.__members__:
        raise invalid_request(
            what="the parameter mode",
            problem=f"{text[:64]!r} is not one of {', '.join(TopicsMode.__members__)}",
        )
    return TopicsMode[text]
