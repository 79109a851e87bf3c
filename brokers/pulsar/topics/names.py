"""Check which topics this broker serves, and parse partition names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from equipoise.brokers.pulsar.wire.errors import NotServed
from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import TopicName, parse_topic
from equipoise.channel.core.records import Document

PULSAR: Final = "pulsar"
"""The protocol name under which a broker advertises its Pulsar address."""

NON_PERSISTENT: Final = "non-persistent"
PERSISTENT: Final = "persistent"

# Decimal without leading zeros, as in Pulsar: `-partition-01` is part of an ordinary name.
_match_partition: Final = re.compile(r"(.*)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL).fullmatch


def served_topic(text: str) -> TopicName:
    """Parse a topic name. Raise `NotServed` if it is invalid or the topic is persistent."""
    try:
        topic = parse_topic(text)
    except InvalidName as error:
        raise NotServed(error=ServerError.InvalidTopicName, problem=str(error)) from error
    if topic.domain != NON_PERSISTENT:
        raise not_stored(topic)
    return topic


def not_stored(topic: TopicName) -> NotServed:
    """Return the refusal of a persistent topic. It names the topic to use."""
    problem = f"{topic.full} is persistent, and this broker stores no messages; use {NON_PERSISTENT}://{topic.namespace}/{topic.local}"
    return NotServed(error=ServerError.NotAllowedError, problem=problem)


def partition_of(topic: str) -> int:
    """Return the partition index at the end of a topic's name, or -1 if there is none."""
    match = _match_partition(topic)
    return -1 if match is None else int(match[2])


def partitioned_name(topic: str) -> str:
    """Return the name of the partitioned topic that a partition belongs to, or the name itself if
    it is not a partition.
    """
    match = _match_partition(topic)
    return topic if match is None else match[1]


PARTITIONS_MAX: Final = 1_024
"""Partitions of one topic. A client opens a producer or consumer for each partition, all at
once."""

_PREFIX: Final = "partitions:"


def policy_of(topic: str) -> str:
    """Return the name of the policy that holds the partition count of the topic with this full
    name.
    """
    return _PREFIX + topic


def partitions_in(policies: Document) -> Mapping[str, int]:
    """Return the partition counts of a namespace's partitioned topics, by full name. Policies
    without a valid count are skipped.
    """
    return {
        name.removeprefix(_PREFIX): count
        for name, count in policies.items()
        if name.startswith(_PREFIX) and isinstance(count, int) and 0 < count <= PARTITIONS_MAX
    }
