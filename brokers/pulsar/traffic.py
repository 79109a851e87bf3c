"""What topics carried between two looks at their counters, as the load of the bundle that they lie in.

May live here: arithmetic over counters. When to look is the service's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from equipoise.brokers.balancing.splitting.split_points import TopicLoad
from equipoise.brokers.pulsar.hosting import Served
from equipoise.brokers.pulsar.topics.topic import Topic
from equipoise.shedder.bundle_load import BundleLoad, Messaging


class Totals(NamedTuple):
    """What a topic has counted since it was made here."""

    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int


_NOTHING: Final = Totals(0, 0, 0, 0)


def totals_of(topic: Topic) -> Totals:
    """The counters of a topic as they stand."""
    return Totals(topic.published.messages, topic.published.bytes, topic.delivered.messages, topic.delivered.bytes)


def load_of(topics: Iterable[Served], before: Mapping[str, Totals], now: Mapping[str, Totals], seconds: float) -> BundleLoad:
    """The load of a bundle with these topics, over the last `seconds`: what they have counted since `before`, by full name.

    A message counts once as it comes in, and once for each subscription that it goes out to.
    """
    rates = [0.0, 0.0, 0.0, 0.0]
    producers = consumers = count = 0
    for served in topics:
        count += 1
        producers += len(served.topic.producers)
        consumers += served.topic.consumer_count
        earlier = before.get(served.name, _NOTHING)
        for place, total in enumerate(now[served.name]):
            # Less than before: it was here, went away, and came again.
            rates[place] += max(total - earlier[place], 0) / seconds
    messages_in, bytes_in, messages_out, bytes_out = rates
    return BundleLoad(
        calls_per_second=messages_in + messages_out,
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
    """Where topics lie in the hash space, and what each carried both ways over the last window of its rates."""
    return tuple(
        TopicLoad(
            point=served.point,
            messages_per_second=served.topic.published.message_rate + served.topic.delivered.message_rate,
            bytes_per_second=served.topic.published.byte_rate + served.topic.delivered.byte_rate,
        )
        for served in topics
    )
