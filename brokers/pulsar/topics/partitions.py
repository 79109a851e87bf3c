"""Read the partition counts of partitioned topics from namespace policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from equipoise.channel.core.records import Document

PARTITIONS_MAX: Final = 1_024
"""Partitions of one topic. A client opens a producer or consumer for each partition, all at once."""

_PREFIX: Final = "partitions:"


def policy_of(topic: str) -> str:
    """Return the name of the policy that holds the partition count of the topic with this full name."""
    return _PREFIX + topic


def partitions_in(policies: Document) -> Mapping[str, int]:
    """Return the partition counts of a namespace's partitioned topics, by full name. Policies without a valid count are skipped."""
    return {
        name.removeprefix(_PREFIX): count
        for name, count in policies.items()
        if name.startswith(_PREFIX) and isinstance(count, int) and 0 < count <= PARTITIONS_MAX
    }
