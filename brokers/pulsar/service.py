"""Serve Pulsar's non-persistent topics as a balanced `Service`: open, close, split and merge
bundles, and route each message.

Theory of operation: a bundle moves away like this.

1. The service fences its topics. They now ignore messages without a receipt, so producers send them
   again.
2. The service redirects the producers. The destination holds those that arrive before it owns the
   bundle.
3. The handover lists the subscriptions and the consumers to wait for. After it the bundle is gone
   here.
4. Meanwhile each client answers a PING behind all messages sent to it, which shows that it has
   received them. The service then redirects its consumers: a client discards messages that its
   program has not yet read when a consumer reconnects.

The destination creates the topics again, and holds receipts and messages until the former clients
are back (`brokers.pulsar.topics.topic`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final

from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.balancing.splitting.split_points import SplitQuestion, split_points
from equipoise.brokers.pulsar.closed import Handovers
from equipoise.brokers.pulsar.hosting import Hosting, topic_loads
from equipoise.brokers.pulsar.schemas import Schemas
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.settings import PolicyTable, Settings
from equipoise.brokers.pulsar.wire.errors import NotServed
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service, pulsar_address
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import TopicName
from equipoise.channel.core.records import Document
from equipoise.channel.system.clocks import Deadline
from equipoise.shedder.loads import BundleLoad

_NO_POLICIES: Final[Document] = {}


class PulsarService(Service):
    """The service of all bundles of one broker. `brokers.pulsar.server` connects clients to it."""

    def __init__(self, settings: Settings | None = None) -> None:
        """Use the default settings unless others are given."""
        self.settings = settings or Settings()
        self.policies = PolicyTable(self.settings.topics, self.policies_of)
        self.hosting = Hosting(
            self.settings,
            limits=self.policies.limits_of,
            tenant_topics_max=lambda: self._balancing().tenants.topics_max,
        )
        self.counts = self.hosting.counts
        self.handovers = Handovers(self.settings, self.counts, lambda: self.host.broker_id)
        self.schemas = Schemas()
        self._warming: dict[str, tuple[Bundle, asyncio.Future[None]]] = {}

    def policies_of(self, namespace: str) -> Document:
        """Return the current policies of a namespace; none if it does not exist."""
        view = self.host.view if isinstance(self.host, Worker) else None
        entry = None if view is None else view.namespaces.get(namespace)
        return _NO_POLICIES if entry is None else entry.policies

    def _balancing(self) -> BalancingSettings:
        """Return the settings in force."""
        if not isinstance(self.host, Worker):
            return BalancingSettings()
        return settings_in(self.host.view, self.host.config.base_settings)

    # --- calls by the worker ---

    # Clients are held by bundle.
    async def prepare(self, bundle: Bundle, source: Peer | None) -> None:  # noqa: ARG002
        """Hold clients that ask for this bundle from now on. The source redirects them here when it
        releases the bundle.
        """
        self._warming.setdefault(bundle.name, (bundle, asyncio.get_running_loop().create_future()))

    async def discard(self, bundle: Bundle) -> None:
        """Stop expecting the bundle, and send held clients back to its owner."""
        self._end_warming(bundle.name)

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Create the topics that the former owner handed over."""
        try:
            states = await self.handovers.states(ownership, handover)
            self.handovers.closed.forget(ownership.bundle)
            self.hosting.open(ownership, states)
        finally:
            self._end_warming(ownership.bundle.name)

    # It never waits.
    async def close(
        self,
        bundle: Bundle,
        moved_to: Peer | None,
        deadline: Deadline,  # noqa: ARG002
    ) -> bytes | None:
        """Close a bundle as the module docstring describes. Consumers are redirected after this
        returns.
        """
        url = None if moved_to is None else pulsar_address(moved_to.addresses)
        hosted = self.hosting.bundles.get(bundle.name)
        states = self.hosting.close(bundle.name, url)  # 1., 2., 4.
        if hosted is None:
            return None
        return self.handovers.leave(hosted.ownership, states, is_moving=moved_to is not None)  # 3.

    # One state is kept for each bundle.
    async def fetch(self, bundle: Bundle, token: int) -> bytes | None:  # noqa: ARG002
        """Return what did not fit into the handover, with all undelivered messages, or None if
        nothing is kept.
        """
        return await self.handovers.fetch(bundle.name)

    def split(self, parent: Bundle, children: Sequence[Ownership]) -> None:
        """Assign the topics of `parent` to its children. Clients are not affected."""
        self.hosting.reshape([parent], children)

    async def split_points(
        self, bundle: Bundle, algorithm: str, positions: Sequence[int] | None
    ) -> Sequence[int]:
        """Return where to split a bundle, by its topics. A split that an operator requests is made
        even with too few topics.
        """
        hosted = self.hosting.bundles.get(bundle.name)
        topics = () if hosted is None else topic_loads(hosted.topics.values())
        settings = self._balancing()
        question = SplitQuestion(
            low=bundle.low,
            high=bundle.high,
            topics=topics,
            positions=positions,
            force=True,
            limits=settings.limits,
            margin=settings.split_points.margin,
        )
        return split_points(algorithm, question)

    def merge(self, left: Bundle, right: Bundle, union: Ownership) -> None:
        """Assign the topics of both bundles to their union. Clients are not affected."""
        self.hosting.reshape([left, right], [union])

    def load(self) -> Mapping[str, BundleLoad]:
        """Return each bundle's load per second since the last call, and its connected clients."""
        return self.hosting.load()

    # --- calls by sessions ---

    async def serve(
        self, topic: TopicName, admit: Callable[[TopicName], AbstractAsyncContextManager[None]]
    ) -> Served | Peer:
        """Return the topic, created if necessary, or the peer that serves it. Wait while its bundle
        has no owner or is moving here.

        `admit` raises an error if the topic must not be created. It is entered once the bundle is
        open here, with what the former owner handed over, so that the topic is known not to exist.
        It is left once the topic is created.

        Raises `UnknownNamespace`, `DeadlineExceeded`, `NotServed` and `Overloaded`.
        """
        here = self.hosting.topics.get(topic.full)
        if here is not None and here.is_usable:
            return here
        deadline = Deadline.after(timeout_ms=self.settings.hold_ms)
        is_admitted = False
        async with AsyncExitStack() as admitted:
            while True:
                await self._warmed(topic, deadline)
                routed = await self.host.route(
                    topic.namespace, topic.full, timeout_ms=deadline.remaining_ms()
                )
                if isinstance(routed, Peer):
                    return routed
                if not routed.is_good:
                    continue  # It was lost between the answer and this turn.
                if (
                    not is_admitted
                    and routed.bundle.name in self.hosting.bundles
                    and topic.full not in self.hosting.topics
                ):
                    await deadline.wait(
                        admitted.enter_async_context(admit(topic)),
                        what=f"room for topic {topic.full}",
                    )
                    is_admitted = True
                    continue  # The bundle may have moved meanwhile.
                served = self.hosting.topic(routed.bundle.name, topic.full)
                if served is not None:
                    return served
                raise NotServed(
                    error=ServerError.NotAllowedError,
                    problem=f"namespace {topic.namespace} does not accept Pulsar clients",
                )

    async def _warmed(self, topic: TopicName, deadline: Deadline) -> None:
        """Wait while the bundle of a topic is moving here, so that clients are not sent back to a
        source that is releasing it.
        """
        for bundle, arrived in list(self._warming.values()):
            if bundle.contains(topic.namespace, topic.full):
                timeout_s = min(self.settings.warming_hold_ms, deadline.remaining_ms()) / 1_000
                await asyncio.wait([arrived], timeout=timeout_s)

    def _end_warming(self, bundle: str) -> None:
        warming = self._warming.pop(bundle, None)
        if warming is not None:
            warming[1].set_result(None)
