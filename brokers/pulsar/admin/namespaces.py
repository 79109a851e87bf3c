"""Answer for the topics of namespaces and bundles, and serve the paths of their backlogs and
subscriptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from aiohttp import web

from equipoise.brokers.balancing.named import bundle_named, namespace_named
from equipoise.brokers.errors import counted
from equipoise.brokers.http.admin.namespaces import LARGEST, NAMESPACE_PATH, RANGE
from equipoise.brokers.http.answers import done, json_answer
from equipoise.brokers.http.bodies import bundle_of, flag_of, namespace_of
from equipoise.brokers.http.readiness import ready_view
from equipoise.brokers.pulsar.admin.topic_paths import TopicPaths
from equipoise.brokers.pulsar.peers import Listing
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.topics.names import NON_PERSISTENT
from equipoise.brokers.pulsar.wire.requests import TopicsMode
from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.ranges import topic_hash

_BUNDLE: Final = f"{NAMESPACE_PATH}/{RANGE}"
_LOADS: Final = "/admin/v2/broker-stats/load-report"


class NamespacesWithTopics(TopicPaths):
    """The paths of namespaces that depend on their topics, as one broker answers them."""

    def routes(self) -> Sequence[web.RouteDef]:
        """Return the routes."""
        return (
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
