"""Keep the tables of open bundles and their topics in step when bundles open, close, split and
merge.

Nothing here writes to clients or waits.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from equipoise.brokers.pulsar.topics.clients import Consumer, Producer
from equipoise.brokers.pulsar.topics.names import partition_of
from equipoise.brokers.pulsar.topics.topic import Topic, TopicLimits, TopicState
from equipoise.brokers.runtime.service import Bundle, Ownership, Work
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.ranges import parse_topic, tenant_in, topic_hash


@dataclass(slots=True, kw_only=True, eq=False)
class Served:
    """One topic that is served here, and its current ownership. A split or merge replaces the
    ownership.

    `works` holds the publishes with held receipts, by entry id. Each passes its second check when
    the receipt is sent. `is_kept`: whether the topic exists without clients, because an operator
    has created it, or it has come here, a moment ago.
    """

    topic: Topic
    ownership: Ownership
    point: int
    works: dict[int, Work] = field(default_factory=dict)
    is_kept: bool = False

    @property
    def name(self) -> str:
        """The full name of the topic, which is also its hash key."""
        return self.topic.name

    def forget_works(self, entry_ids: Iterable[int]) -> None:
        """Forget the works of entries that get no receipt."""
        for entry_id in entry_ids:
            self.works.pop(entry_id, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """The value attached to a producer id of a connection."""

    producer: Producer
    served: Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming:
    """The value attached to a consumer id of a connection."""

    consumer: Consumer
    served: Served


@dataclass(slots=True, kw_only=True, eq=False)
class Hosted:
    """One open bundle, and its topics by full name."""

    ownership: Ownership
    topics: dict[str, Served] = field(default_factory=dict)


class Hosting:
    """All open bundles and topics of one broker."""

    def __init__(
        self,
        *,
        limits: Callable[[str], TopicLimits],
        topics_max: int,
        tenant_topics_max: Callable[[], int],
    ) -> None:
        """Start empty. At most `topics_max` topics are served at a time, over all bundles, and
        `tenant_topics_max()` of one tenant.

        `limits` has those of a namespace.
        """
        self._limits = limits
        self._topics_max = topics_max
        self._tenant_topics_max = tenant_topics_max
        self._of_tenant = Tally[str]()
        self.announced: set[str] = set()
        """Full names of topics that are about to be created. Other brokers count them, so that many
        at once do not exceed a limit."""
        self._bundles: dict[str, Hosted] = {}
        self._topics: dict[str, Served] = {}

    @property
    def bundles(self) -> Mapping[str, Hosted]:
        """The open bundles by name."""
        return self._bundles

    @property
    def topics(self) -> Mapping[str, Served]:
        """All topics by full name."""
        return self._topics

    def topic(self, bundle: str, topic: str, *, now_ms: int) -> Served | None:
        """Return the topic with this full name, created if necessary, or None if its bundle is not
        open. Raise `Overloaded`.
        """
        served = self._topics.get(topic)
        if served is not None:
            return served
        hosted = self._bundles.get(bundle)
        if hosted is None:
            return None
        if len(self._topics) >= self._topics_max:
            raise Overloaded(what="the topic table of this broker", limit=self._topics_max)
        tenant, most = tenant_in(bundle), self._tenant_topics_max()
        if self._of_tenant[tenant] >= most:
            raise Overloaded(
                what=(
                    f"the part of tenant {tenant} in the topic table of this broker"
                    " (tenants.topics_max)"
                ),
                limit=most,
            )
        return self._add(hosted, topic, None, now_ms)

    def open(
        self, ownership: Ownership, states: Mapping[str, TopicState], *, now_ms: int
    ) -> Sequence[Served]:
        """Open a bundle and return the topics that the former owner handed over.

        They may exceed `topics_max`, because their clients are already on the way.
        """
        hosted = self._bundles[ownership.bundle.name] = Hosted(ownership=ownership)
        return tuple(
            self._add(hosted, name, state, now_ms)
            for name, state in states.items()
            if ownership.bundle.contains(ownership.bundle.namespace, name)
        )

    def close(self, bundle: str) -> Sequence[Served]:
        """Remove a bundle with its topics. Return the topics."""
        hosted = self._bundles.pop(bundle, None)
        if hosted is None:
            return ()
        for name in hosted.topics:
            del self._topics[name]
        self._of_tenant[tenant_in(bundle)] -= len(hosted.topics)
        return tuple(hosted.topics.values())

    def reshape(self, gone: Sequence[Bundle], children: Sequence[Ownership]) -> None:
        """Assign the topics of `gone` to the children that contain their points (split or merge).
        Sessions are not affected.
        """
        served = [
            each
            for bundle in gone
            if bundle.name in self._bundles
            for each in self._bundles.pop(bundle.name).topics.values()
        ]
        for child in children:
            self._bundles[child.bundle.name] = Hosted(ownership=child)
        for each in served:
            child = next(
                child
                for child in children
                if child.bundle.contains(child.bundle.namespace, each.name)
            )
            each.ownership = child
            self._bundles[child.bundle.name].topics[each.name] = each

    def forget_if_idle(self, served: Served) -> None:
        """Drop a topic that has no clients, expects none, and is not kept."""
        if served.topic.is_idle and not served.is_kept:
            self.forget(served)

    def forget(self, served: Served) -> None:
        """Drop a topic, unless another one has taken its place."""
        if self._topics.get(served.name) is served:
            del self._topics[served.name]
            del self._bundles[served.ownership.bundle.name].topics[served.name]
            self._of_tenant[tenant_in(served.ownership.bundle.name)] -= 1

    def renew(self, served: Served, state: TopicState, *, now_ms: int) -> Served:
        """Replace a topic of an open bundle by a new one with the given state. Return the new
        one.
        """
        return self._add(self._bundles[served.ownership.bundle.name], served.name, state, now_ms)

    def limit(self, namespace: str, *, now_ms: int) -> None:
        """Apply the limits of a namespace to its topics, which have changed. A deleted one has no
        topics, and is not looked up.
        """
        for hosted in self._bundles.values():
            if hosted.ownership.bundle.namespace == namespace:
                for served in hosted.topics.values():
                    served.topic.limit(self._limits(namespace), now_ms)

    def of_namespace(self, namespace: str) -> Iterator[str]:
        """Return the sorted full names of a namespace's topics."""
        for name in sorted(self._bundles):
            hosted = self._bundles[name]
            if hosted.ownership.bundle.namespace == namespace:
                yield from sorted(hosted.topics)

    def announced_in(self, namespace: str) -> Iterator[str]:
        """Return the full names of a namespace's topics that are about to be created."""
        return (
            name
            for name in self.announced
            if parse_topic(name).namespace == namespace and name not in self._topics
        )

    def _add(self, hosted: Hosted, name: str, state: TopicState | None, now_ms: int) -> Served:
        limits = self._limits(hosted.ownership.bundle.namespace)
        topic = Topic(
            name, partition=partition_of(name), limits=limits, now_ms=now_ms, expected=state
        )
        served = Served(topic=topic, ownership=hosted.ownership, point=topic_hash(name))
        self._of_tenant[tenant_in(hosted.ownership.bundle.name)] += name not in self._topics
        hosted.topics[name] = self._topics[name] = served
        return served
