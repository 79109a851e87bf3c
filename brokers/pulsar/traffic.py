"""Compute the load of a bundle from the counters of its topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from equipoise.brokers.balancing.splitting.split_points import TopicLoad
from equipoise.brokers.pulsar.served import Served
from equipoise.brokers.pulsar.topics.topic import Topic
from equipoise.channel.core.ranges import topic_hash
from equipoise.shedder.bundle_load import BundleLoad, Messaging


class Totals(NamedTuple):
    """The counters of a topic since it was created here."""

    entries_in: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    entries_out: int = 0
    messages_out: int = 0
    bytes_out: int = 0


_NOTHING: Final = Totals()


def totals_of(topic: Topic) -> Totals:
    """Return the current counters of a topic."""
    published, delivered = topic.published, topic.delivered
    return Totals(
        entries_in=published.entries,
        messages_in=published.messages,
        bytes_in=published.bytes,
        entries_out=delivered.entries,
        messages_out=delivered.messages,
        bytes_out=delivered.bytes,
    )


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
