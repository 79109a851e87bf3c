"""Check which topics this broker serves, and parse partition names."""

from __future__ import annotations

import re
from typing import Final

from equipoise.brokers.pulsar.wire.errors import NotServed, ServerError
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import TopicName, parse_topic

PULSAR: Final = "pulsar"
"""The protocol name under which a broker advertises its Pulsar address."""

NON_PERSISTENT: Final = "non-persistent"

# Decimal without leading zeros, as in Pulsar: `-partition-01` is part of an ordinary name.
_match_partition: Final = re.compile(r"(.*)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL).fullmatch


def served_topic(text: str) -> TopicName:
    """Parse a topic name. Raise `NotServed` if it is invalid or the topic is persistent."""
    try:
        topic = parse_topic(text)
    except InvalidName as error:
        raise NotServed(error=ServerError.INVALID_TOPIC_NAME, problem=str(error)) from error
    if topic.domain != NON_PERSISTENT:
        problem = (
            f"{topic.full} would have to be stored, and this broker stores nothing; use {NON_PERSISTENT}://{topic.namespace}/{topic.local}"
        )
        raise NotServed(error=ServerError.NOT_ALLOWED, problem=problem)
    return topic


def partition_of(topic: str) -> int:
    """Return the partition index at the end of a topic's name, or -1 if there is none."""
    match = _match_partition(topic)
    return -1 if match is None else int(match[2])


def partitioned_name(topic: str) -> str:
    """Return the name of the partitioned topic that a partition belongs to, or the name itself if it is not a partition."""
    match = _match_partition(topic)
    return topic if match is None else match[1]
