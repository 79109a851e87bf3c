"""Partitioned topics: how many partitions a topic has stands in the policies of its namespace.

May live here: pure functions from policies to partitions and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from equipoise.channel.core.records import Document

PARTITIONS_MAX: Final = 1_024
"""Partitions of one topic: each is a producer and a consumer for every client, all of which are opened at once."""

_PREFIX: Final = "partitions:"


def policy_of(topic: str) -> str:
    """The name of the policy that says how many partitions the topic of this full name has."""
    return _PREFIX + topic


def partitions_in(policies: Document) -> Mapping[str, int]:
    """The partitioned topics of a namespace by full name, and how many partitions each has; what is no number is not one."""
    return {
        name.removeprefix(_PREFIX): count
        for name, count in policies.items()
        if name.startswith(_PREFIX) and isinstance(count, int) and 0 < count <= PARTITIONS_MAX
    }
