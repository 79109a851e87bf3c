"""Compute the load of a bundle from the counters of its topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from equipoise.brokers.balancing.splitting.split_points import TopicLoad
from equipoise.brokers.pulsar.hosting import Served
from equipoise.brokers.pulsar.topics.topic import Topic
from equipoise.shedder.bundle_load import BundleLoad, Messaging


class Totals(NamedTuple):
    """The counters of a topic since it was created here."""

    messages_in: int
    bytes_in: int
    messages_out: int
    bytes_out: int


_NOTHING: Final = Totals(0, 0, 0, 0)


def totals_of(topic: Topic) -> Totals:
    """Return the current counters of a topic."""
    return Totals(topic.published.messages, topic.published.bytes, topic.delivered.messages, topic.delivered.bytes)


def load_of(topics: Iterable[Served], before: Mapping[str, Totals], now: Mapping[str, Totals], seconds: float) -> BundleLoad:
    """Return the load of a bundle with these topics over the last `seconds`, from the difference of `now` and `before` (by full name).

    A message counts once when it comes in, and once for each subscription that it is delivered to.
    """
    rates = [0.0, 0.0, 0.0, 0.0]
    producers = consumers = count = 0
    for served in topics:
        count += 1
        producers += len(served.topic.producers)
        consumers += served.topic.consumer_count
        earlier = before.get(served.name, _NOTHING)
        for place, total in enumerate(now[served.name]):
            # A lower count means that the topic left and came back.
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
    """Return each topic's point in the hash space and its load, both ways, over the last window of its rates."""
    return tuple(
        TopicLoad(
            point=served.point,
            messages_per_second=served.topic.published.message_rate + served.topic.delivered.message_rate,
            bytes_per_second=served.topic.published.byte_rate + served.topic.delivered.byte_rate,
        )
        for served in topics
    )
