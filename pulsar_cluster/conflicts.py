"""Apply Pulsar's own rule for conflicts: which record of two stays.

Each broker applies it to every message of the channel, in the order of the topic. So all brokers
keep the same records. The rule is that of `ServiceUnitStateDataConflictResolver.shouldKeepLeft`,
with its order of checks. `tests/vectors` compares it with the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from equipoise.pulsar_cluster.records import (
    ASSIGNING,
    DELETED,
    FREE,
    INIT,
    OWNED,
    RELEASING,
    SPLITTING,
    STATES,
    VERSION_MAX,
    VERSION_MIN,
    StateRecord,
)


class Storage(StrEnum):
    """Where a cluster keeps the states of its bundles. The rules differ."""

    SYSTEM_TOPIC = "SystemTopic"
    METADATA_STORE = "MetadataStore"


class Rejection(StrEnum):
    """Why Pulsar's brokers ignore a record. The value is the text for people."""

    OLD_VERSION = "old version"
    VERSION_GAP = "version gap"
    TRANSITION = "transition not allowed"
    BROKER = "wrong broker"
    UNREADABLE = "not a record"


_OF_STORE: Final[Mapping[str, tuple[str, ...]]] = {
    INIT: (ASSIGNING,),
    FREE: (ASSIGNING,),
    OWNED: (SPLITTING, RELEASING),
    ASSIGNING: (OWNED,),
    RELEASING: (ASSIGNING, FREE),
    SPLITTING: (DELETED,),
    DELETED: (INIT,),
}
TRANSITIONS: Final[Mapping[Storage, Mapping[str, tuple[str, ...]]]] = {
    Storage.METADATA_STORE: _OF_STORE,
    # Compaction may have removed the start of a chain. So each state but `Init` itself may follow
    # no record.
    Storage.SYSTEM_TOPIC: {
        **_OF_STORE,
        INIT: (FREE, OWNED, ASSIGNING, RELEASING, SPLITTING, DELETED),
        FREE: (ASSIGNING, INIT),
    },
}
"""State -> the states that may follow it."""


def rejection_of(
    before: StateRecord | None, after: StateRecord | None, storage: Storage = Storage.SYSTEM_TOPIC
) -> Rejection | None:
    """Return why brokers that hold `before` ignore `after`, or None if they take it. None is a
    tombstone, or no record yet.

    Pulsar throws for one malformed pair, an owned bundle without an owner that is released. Here it
    is a wrong broker.
    """
    if after is None:
        return None
    if before is None:
        if storage is Storage.METADATA_STORE:
            return None if after.version == 1 else Rejection.VERSION_GAP
    elif not (before.version == VERSION_MAX and after.version == VERSION_MIN):
        if before.version >= after.version:
            return Rejection.OLD_VERSION
        if before.version < after.version - 1:
            # On the topic, compaction may have removed the records between the two. Nothing more is
            # checked.
            return None if storage is Storage.SYSTEM_TOPIC else Rejection.VERSION_GAP
    if after.force:
        return None
    state = INIT if before is None else before.state
    if after.state not in TRANSITIONS[storage].get(state, STATES):
        # States of a newer Pulsar have rules that are not known here.
        return Rejection.TRANSITION if after.state in STATES else None
    return Rejection.BROKER if before is not None and _names_wrong_broker(before, after) else None


def _names_wrong_broker(before: StateRecord, after: StateRecord) -> bool:
    match before.state, after.state:
        case ("Owned", "Splitting"):
            return after.destination is not None or before.destination != after.source
        case ("Owned", "Releasing"):
            return (
                after.source is None
                or before.destination != after.source
                or before.destination == after.destination
            )
        case ("Releasing", "Assigning"):
            return after.destination is None or _brokers(before) != _brokers(after)
        case ("Assigning", "Owned") | ("Releasing", "Free") | ("Splitting", "Deleted"):
            return _brokers(before) != _brokers(after)
        case ("Free", "Assigning"):
            return after.source is not None or after.destination is None
    return False


def _brokers(record: StateRecord) -> tuple[str | None, str | None]:
    return record.destination, record.source
