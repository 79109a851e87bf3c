"""List the rights on Kafka that each kind of program needs, from one table.

Kafka derives two rights, which the table leaves out: `Read`, `Write` and `Delete` include
`Describe`, and `Write` on any topic allows an idempotent producer.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from equipoise.channel.kafka.settings import HISTORY_SUFFIX, SNAPSHOT_SUFFIX

GROUP: Final = "equipoise"
"""The consumer group of readers. They do not join it. The library looks for its coordinator, again
and again if Kafka denies that."""


class Resource(enum.Enum):
    """What a right is about, in Kafka's words."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"


class Role(enum.Enum):
    """The kinds of program that connect to Kafka."""

    BROKER = "broker"
    """`equipoise broker`, and a worker in a program."""
    OPERATOR = "operator"
    """Every command of `equipoise` with `--log`, and `equipoise archive --hold`, also with
    Spark."""
    READER = "reader"
    """The commands that only read, such as `equipoise channel tail`, `equipoise archive` (also with
    Spark) and `equipoise report`."""
    AUDIT = "audit"
    """A reader that publishes what it finds: `equipoise audit`, also with Spark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Operations that a role may do on the resource `name`, in Kafka's words."""

    resource: Resource
    name: str
    operations: tuple[str, ...]


_READ: Final = ("Read", "DescribeConfigs")
_WRITE: Final = ("Write", "Create", "DescribeConfigs")
_ALL: Final = ("Read", "Write", "Create", "DescribeConfigs")
_CHANNEL: Final[Mapping[str, tuple[str, ...]]] = {
    "": (*_ALL, "Delete"),  # Compaction truncates the channel, which Kafka takes for deletion.
    SNAPSHOT_SUFFIX: _ALL,
    HISTORY_SUFFIX: _ALL,
}
_READER: Final[Mapping[str, tuple[str, ...]]] = dict.fromkeys(
    ("", SNAPSHOT_SUFFIX, HISTORY_SUFFIX, "-decisions", "-serving", "-loads"), _READ
)

_TOPICS: Final[Mapping[Role, Mapping[str, tuple[str, ...]]]] = {
    Role.BROKER: {
        **_CHANNEL,
        "-decisions": _WRITE,
        "-serving": _WRITE,
        "-loads": _ALL,
    },
    Role.OPERATOR: {**_CHANNEL, "-decisions": ("Read",), "-loads": ("Read",)},
    Role.READER: _READER,
    Role.AUDIT: {**_READER, "-findings": _ALL},
}
"""By role and what follows the name of the channel's topic in that of another: the operations."""

_TRANSACTIONS: Final = frozenset({Role.BROKER, Role.OPERATOR})
"""The roles that write snapshots: one transactional id for each, which has the name of its
topic."""


def rights_of(role: Role, topic: str) -> list[Right]:
    """Return what a role needs for the channel on `topic`, and no more."""
    rights = [
        Right(resource=Resource.TOPIC, name=f"{topic}{suffix}", operations=operations)
        for suffix, operations in _TOPICS[role].items()
    ]
    if role in _TRANSACTIONS:
        rights += [
            Right(
                resource=Resource.TRANSACTIONAL_ID, name=f"{topic}{suffix}", operations=("Write",)
            )
            for suffix in (SNAPSHOT_SUFFIX, HISTORY_SUFFIX)
        ]
    return [*rights, Right(resource=Resource.GROUP, name=GROUP, operations=("Describe",))]
