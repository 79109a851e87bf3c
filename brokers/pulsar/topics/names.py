"""Names of topics as this service needs them beside `channel.core.ranges`: which are served, and which are partitions.

May live here: pure functions over names.
"""

from __future__ import annotations

import re
from typing import Final

from equipoise.brokers.pulsar.wire.errors import NotServed, ServerError
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import TopicName, parse_topic

PULSAR: Final = "pulsar"
"""The protocol under which a broker advertises where Pulsar's clients find it."""

NON_PERSISTENT: Final = "non-persistent"

# Decimal and without leading zeros, as Pulsar spells it: `-partition-01` is part of an ordinary name.
_match_partition: Final = re.compile(r"(.*)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL).fullmatch


def served_topic(text: str) -> TopicName:
    """The topic of this name. Raises `NotServed` for a name that is none, and for a persistent topic."""
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
    """The index of the partition that a topic's name ends with; -1 if it is no partition."""
    match = _match_partition(topic)
    return -1 if match is None else int(match[2])


def partitioned_name(topic: str) -> str:
    """The name of the partitioned topic that a partition belongs to; the name itself if it is no partition."""
    match = _match_partition(topic)
    return topic if match is None else match[1]
