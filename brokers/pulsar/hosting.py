"""The topics of the bundles that are open here: which there are, under which ownership, and where each is filed.

May live here: the tables of the service, and what keeps them in step when bundles open, close, split and merge. Nothing is
written from here, and nobody waits here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from equipoise.brokers.pulsar.topics.dispatch import Consumer
from equipoise.brokers.pulsar.topics.names import partition_of
from equipoise.brokers.pulsar.topics.outcomes import Producer
from equipoise.brokers.pulsar.topics.topic import Topic, TopicState
from equipoise.brokers.pulsar.topics.topic_limits import TopicLimits
from equipoise.brokers.runtime.service import Bundle, Ownership, Work
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.ranges import topic_hash


@dataclass(slots=True, kw_only=True, eq=False)
class Served:
    """One topic that is served here, and the ownership under which it is: a split or a merge exchanges that one.

    `works` are the publishes whose receipt is still held, by entry id; each passes its second check when the receipt goes out.
    """

    topic: Topic
    ownership: Ownership
    point: int
    works: dict[int, Work] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The full name of the topic, the key under which it is hashed."""
        return self.topic.name

    def forget_works(self, entry_ids: Iterable[int]) -> None:
        """These entries get no receipt any more."""
        for entry_id in entry_ids:
            self.works.pop(entry_id, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Publishing:
    """What is attached to the id of a producer on its connection."""

    producer: Producer
    served: Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Consuming:
    """What is attached to the id of a consumer on its connection."""

    consumer: Consumer
    served: Served


@dataclass(slots=True, kw_only=True, eq=False)
class Hosted:
    """One bundle that is open here, and its topics by full name."""

    ownership: Ownership
    topics: dict[str, Served] = field(default_factory=dict)


class Hosting:
    """All bundles and topics of one broker."""

    def __init__(self, *, limits: TopicLimits, topics_max: int) -> None:
        """At most `topics_max` topics are served at a time, over all bundles."""
        self._limits = limits
        self._topics_max = topics_max
        self._bundles: dict[str, Hosted] = {}
        self._topics: dict[str, Served] = {}

    @property
    def bundles(self) -> Mapping[str, Hosted]:
        """What is open, by name of bundle."""
        return self._bundles

    @property
    def topics(self) -> Mapping[str, Served]:
        """Every topic, by full name."""
        return self._topics

    def find(self, topic: str) -> Served | None:
        """The topic of this full name, if it is here."""
        return self._topics.get(topic)

    def topic(self, bundle: str, topic: str, *, now_ms: int) -> Served | None:
        """The topic of this full name, made if need be; None if its bundle is not open here (any more). Raises `Overloaded`."""
        served = self._topics.get(topic)
        if served is not None:
            return served
        hosted = self._bundles.get(bundle)
        if hosted is None:
            return None
        if len(self._topics) >= self._topics_max:
            raise Overloaded(what="the topics of this broker", limit=self._topics_max)
        return self._add(hosted, topic, None, now_ms)

    def open(self, ownership: Ownership, states: Mapping[str, TopicState], *, now_ms: int) -> Sequence[Served]:
        """A bundle is open here, with the topics that its former owner told of; those are returned.

        They are not refused for being too many: their clients are on the way already.
        """
        hosted = self._bundles[ownership.bundle.name] = Hosted(ownership=ownership)
        return tuple(
            self._add(hosted, name, state, now_ms) for name, state in states.items() if ownership.bundle.contains(topic_hash(name))
        )

    def close(self, bundle: str) -> Sequence[Served]:
        """A bundle is not served here any more: its topics, which are forgotten."""
        hosted = self._bundles.pop(bundle, None)
        if hosted is None:
            return ()
        for name in hosted.topics:
            del self._topics[name]
        return tuple(hosted.topics.values())

    def reshape(self, gone: Sequence[Bundle], children: Sequence[Ownership]) -> None:
        """A split or a merge: the topics of `gone` go to the child that holds their point; no session notices."""
        served = [each for bundle in gone if bundle.name in self._bundles for each in self._bundles.pop(bundle.name).topics.values()]
        for child in children:
            self._bundles[child.bundle.name] = Hosted(ownership=child)
        for each in served:
            child = next(child for child in children if child.bundle.contains(each.point))
            each.ownership = child
            self._bundles[child.bundle.name].topics[each.name] = each

    def forget_if_idle(self, served: Served) -> None:
        """A topic without anybody is not kept."""
        if served.topic.is_idle and self._topics.get(served.name) is served:
            del self._topics[served.name]
            del self._bundles[served.ownership.bundle.name].topics[served.name]

    def of_namespace(self, namespace: str) -> Iterator[str]:
        """The full names of all topics of a namespace, sorted."""
        for name in sorted(self._bundles):
            hosted = self._bundles[name]
            if hosted.ownership.bundle.namespace == namespace:
                yield from sorted(hosted.topics)

    def _add(self, hosted: Hosted, name: str, state: TopicState | None, now_ms: int) -> Served:
        topic = Topic(name, partition=partition_of(name), limits=self._limits, now_ms=now_ms, expected=state)
        served = Served(topic=topic, ownership=hosted.ownership, point=topic_hash(name))
        hosted.topics[name] = self._topics[name] = served
        return served
