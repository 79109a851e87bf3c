"""Keep the tables of open bundles and their topics in step when bundles open, close, split and
merge, redirect the clients of topics that close, and compute the load of bundles.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from equipoise.brokers.balancing.splitting.split_points import TopicLoad
from equipoise.brokers.pulsar.served import Counts, Deadlines, Served
from equipoise.brokers.pulsar.settings import Settings
from equipoise.brokers.pulsar.topics.clients import Consumer, Link
from equipoise.brokers.pulsar.topics.names import partition_of
from equipoise.brokers.pulsar.topics.topic import Topic, TopicLimits, TopicState
from equipoise.brokers.runtime.service import Bundle, Ownership
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.ranges import parse_topic, tenant_in, topic_hash
from equipoise.channel.system.clocks import now_ms
from equipoise.shedder.loads import BundleLoad, Messaging


@dataclass(slots=True, kw_only=True, eq=False)
class Hosted:
    """One open bundle, and its topics by full name."""

    ownership: Ownership
    topics: dict[str, Served] = field(default_factory=dict)


class Hosting:
    """All open bundles and topics of one broker."""

    def __init__(
        self,
        settings: Settings,
        *,
        limits: Callable[[str], TopicLimits],
        tenant_topics_max: Callable[[], int],
    ) -> None:
        """Start empty. At most `settings.topics_max` topics are served at a time, over all bundles,
        and `tenant_topics_max()` of one tenant.

        `limits` has those of a namespace.
        """
        self._settings = settings
        self._limits = limits
        self._tenant_topics_max = tenant_topics_max
        self._of_tenant = Tally[str]()
        self.counts = Counts()
        self.deadlines = Deadlines()
        self.announced: set[str] = set()
        """Full names of topics that are about to be created. Other brokers count them, so that many
        at once do not exceed a limit."""
        self.bundles: dict[str, Hosted] = {}
        """The open bundles by name. Only this class changes them."""
        self.topics: dict[str, Served] = {}
        """All topics by full name. Only this class changes them."""
        self._redirecting: set[asyncio.Task[None]] = set()
        self._counted: Mapping[str, Totals] = {}
        self._counted_since = time.monotonic()

    def topic(self, bundle: str, topic: str) -> Served | None:
        """Return the topic with this full name, created if necessary, or None if its bundle is not
        open. Raise `Overloaded`.
        """
        served = self.topics.get(topic)
        if served is not None:
            return served
        hosted = self.bundles.get(bundle)
        if hosted is None:
            return None
        if len(self.topics) >= self._settings.topics_max:
            raise Overloaded(what="the topic table of this broker", limit=self._settings.topics_max)
        tenant, most = tenant_in(bundle), self._tenant_topics_max()
        if self._of_tenant[tenant] >= most:
            raise Overloaded(
                what=(
                    f"the part of tenant {tenant} in the topic table of this broker"
                    " (tenants.topics_max)"
                ),
                limit=most,
            )
        return self._add(hosted, topic, None)

    def open(self, ownership: Ownership, states: Mapping[str, TopicState]) -> None:
        """Open a bundle with the topics that the former owner handed over, and wait until their
        clients are back.

        They may exceed `topics_max`, because their clients are already on the way.
        """
        hosted = self.bundles[ownership.bundle.name] = Hosted(ownership=ownership)
        self._await_clients(
            [
                self._add(hosted, name, state)
                for name, state in states.items()
                if ownership.bundle.contains(ownership.bundle.namespace, name)
            ]
        )

    def close(self, bundle: str, url: str | None) -> Mapping[str, TopicState]:
        """Remove a bundle with its topics, and redirect their clients to `url`. Return the topics'
        states.
        """
        hosted = self.bundles.pop(bundle, None)
        if hosted is None:
            return {}
        for name in hosted.topics:
            del self.topics[name]
        self._of_tenant[tenant_in(bundle)] -= len(hosted.topics)
        return self._disconnect([*hosted.topics.values()], url)

    def _disconnect(self, closing: Sequence[Served], url: str | None) -> Mapping[str, TopicState]:
        """Fence topics, and redirect their clients: producers now, consumers once they have their
        messages. Return the topics' states.
        """
        states = {served.name: served.fenced() for served in closing}
        consumers: defaultdict[Link, list[Consumer]] = defaultdict(list)
        for served in closing:
            for producer in [*served.topic.producers.values()]:
                producer.link.redirect(producer, url)
            for consumer in served.topic.consumers:
                consumers[consumer.link].append(consumer)
        for link, of_link in consumers.items():
            task = asyncio.get_running_loop().create_task(_redirect_consumers(link, of_link, url))
            self._redirecting.add(task)
            task.add_done_callback(self._redirecting.discard)
        return states

    def load(self) -> Mapping[str, BundleLoad]:
        """Return each bundle's load per second since the last call, and its connected clients."""
        now = time.monotonic()
        seconds, self._counted_since = max(now - self._counted_since, 0.001), now
        before, self._counted = (
            self._counted,
            {name: totals_of(served.topic) for name, served in self.topics.items()},
        )
        return {
            name: load_of(hosted.topics.values(), before, self._counted, seconds)
            for name, hosted in self.bundles.items()
        }

    async def all_redirected(self) -> None:
        """Wait until all consumers of closed bundles are redirected. The wait is bounded."""
        if self._redirecting:
            await asyncio.wait(self._redirecting)

    def reshape(self, gone: Sequence[Bundle], children: Sequence[Ownership]) -> None:
        """Assign the topics of `gone` to the children that contain their points (split or merge).
        Clients are not affected.
        """
        topics = [
            each
            for bundle in gone
            if bundle.name in self.bundles
            for each in self.bundles.pop(bundle.name).topics.values()
        ]
        for child in children:
            self.bundles[child.bundle.name] = Hosted(ownership=child)
        for served in topics:
            child = next(
                child
                for child in children
                if child.bundle.contains(child.bundle.namespace, served.name)
            )
            served.continue_under(child)
            self.bundles[child.bundle.name].topics[served.name] = served

    def keep(self, served: Served) -> None:
        """Keep a topic without clients for `inactive_ms`, because it has just been created, or has
        come here without them.
        """
        served.is_kept = True
        asyncio.get_running_loop().call_later(
            self._settings.inactive_ms / 1_000, self._keep_no_longer, served
        )

    def _keep_no_longer(self, served: Served) -> None:
        served.is_kept = False
        self.forget_if_idle(served)

    def forget_if_idle(self, served: Served) -> None:
        """Drop a topic that has no clients, expects none, and is not kept."""
        if served.topic.is_idle and not served.is_kept:
            self._forget(served)

    def _forget(self, served: Served) -> None:
        """Drop a topic, unless another one has taken its place."""
        if self.topics.get(served.name) is served:
            del self.topics[served.name]
            del self.bundles[served.ownership.bundle.name].topics[served.name]
            self._of_tenant[tenant_in(served.ownership.bundle.name)] -= 1

    def unload(self, served: Served) -> None:
        """Make the clients of one topic look it up again. It goes on here as after a move, so that
        no message is lost.
        """
        states = self._disconnect([served], None)
        hosted = self.bundles[served.ownership.bundle.name]
        self._await_clients([self._add(hosted, served.name, states[served.name])])

    def delete(self, served: Served) -> None:
        """Delete a topic, and disconnect its clients."""
        self._disconnect([served], None)
        self._forget(served)

    def limit(self, namespace: str) -> None:
        """Apply the limits of a namespace to its topics, which have changed. A deleted one has no
        topics, and is not looked up.
        """
        for served in self.in_namespace(namespace):
            served.topic.limit(self._limits(namespace), now_ms())

    def in_namespace(self, namespace: str) -> Sequence[Served]:
        """Return the topics of a namespace."""
        return [
            served
            for hosted in self.bundles.values()
            if hosted.ownership.bundle.namespace == namespace
            for served in hosted.topics.values()
        ]

    def announced_in(self, namespace: str) -> Iterator[str]:
        """Return the full names of a namespace's topics that are about to be created."""
        return (
            name
            for name in self.announced
            if parse_topic(name).namespace == namespace and name not in self.topics
        )

    def _add(self, hosted: Hosted, name: str, state: TopicState | None) -> Served:
        limits = self._limits(hosted.ownership.bundle.namespace)
        topic = Topic(
            name, partition=partition_of(name), limits=limits, now_ms=now_ms(), expected=state
        )
        self._of_tenant[tenant_in(hosted.ownership.bundle.name)] += name not in self.topics
        served = Served(topic, hosted.ownership, self)
        hosted.topics[name] = self.topics[name] = served
        return served

    def _await_clients(self, opened: Sequence[Served]) -> None:
        """Wait until the clients of topics that came here are back. Then drop those without."""
        for served in opened:
            self.deadlines.watch(served)
            if served.topic.is_idle:
                self.keep(served)  # Its producers are on the way, or nobody has used it yet.
        if opened:
            wait_s = self._settings.topics.reconnect_wait_ms / 1_000
            asyncio.get_running_loop().call_later(wait_s, self._forget_idle, opened)

    def _forget_idle(self, opened: Sequence[Served]) -> None:
        for served in opened:
            self.forget_if_idle(served)


async def _redirect_consumers(link: Link, consumers: Sequence[Consumer], url: str | None) -> None:
    """Redirect the consumers of one client once it has its messages."""
    await link.settled()
    for consumer in consumers:
        link.redirect(consumer, url)


Totals = tuple[int, int, int, int, int, int]
"""The counters of a topic since it was created here: entries, messages and bytes in, and out."""

_NOTHING: Final[Totals] = (0, 0, 0, 0, 0, 0)


def totals_of(topic: Topic) -> Totals:
    """Return the current counters of a topic."""
    came, went = topic.published, topic.delivered
    return came.entries, came.messages, came.bytes, went.entries, went.messages, went.bytes


def load_of(
    topics: Iterable[Served],
    before: Mapping[str, Totals],
    now: Mapping[str, Totals],
    seconds: float,
) -> BundleLoad:
    """Return the load of a bundle with these topics over the last `seconds`, from the difference of
    `now` and `before` (by full name).

    Messages and entries count once when they come in, and once for each subscription that they are
    delivered to. An entry is a call: a batch of many messages takes the broker about as long as one
    message of the same size (`make bench BENCH=costs`).
    """
    rates = [0.0] * len(_NOTHING)
    producers = consumers = count = 0
    for served in topics:
        count += 1
        producers += len(served.topic.producers)
        consumers += served.topic.consumer_count
        earlier = before.get(served.name, _NOTHING)
        for place, total in enumerate(now[served.name]):
            # A lower count means that the topic left and came back.
            rates[place] += max(total - earlier[place], 0) / seconds
    entries_in, messages_in, bytes_in, entries_out, messages_out, bytes_out = rates
    return BundleLoad(
        calls_per_second=entries_in + entries_out,
        bytes_per_second=bytes_in + bytes_out,
        sessions=producers + consumers,
        messaging=Messaging(
            messages_in_per_second=messages_in,
            bytes_in_per_second=bytes_in,
            messages_out_per_second=messages_out,
            bytes_out_per_second=bytes_out,
            producers=producers,
            consumers=consumers,
            topics=count,
        ),
    )


def topic_loads(topics: Iterable[Served]) -> tuple[TopicLoad, ...]:
    """Return each topic's point in the hash space and its load, both ways, over the last window of
    its rates.
    """
    return tuple(
        TopicLoad(
            point=topic_hash(served.name),
            messages_per_second=served.topic.published.message_rate
            + served.topic.delivered.message_rate,
            bytes_per_second=served.topic.published.byte_rate + served.topic.delivered.byte_rate,
        )
        for served in topics
    )
