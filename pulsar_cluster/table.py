"""Fold Pulsar's channel into the table that each of its brokers holds: bundle to its last accepted
record. Describe it as rows.

Each broker applies one rule to every message of the channel, in the order of the topic: which
record of two stays. So all brokers keep the same records. The rule is that of
`ServiceUnitStateDataConflictResolver.shouldKeepLeft`, with its order of checks. `tests/vectors`
compares it with the class.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import BundleName, namespace_in, parse_bundle
from equipoise.pulsar_cluster.records import (
    ASSIGNING,
    DELETED,
    FREE,
    IN_FLIGHT,
    INIT,
    OWNED,
    RELEASING,
    SPLITTING,
    STATES,
    SYSTEM_NAMESPACE,
    VERSION_MAX,
    VERSION_MIN,
    Message,
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


Row = Mapping[str, object]

BUNDLE_COLUMNS: Final = ("bundle", "state", "owner", "source", "serves", "version", "last")
BROKER_COLUMNS: Final = ("broker", "bundles", "incoming")
NAMESPACE_COLUMNS: Final = ("namespace", "bundles", "owned", "moving", "free")

_SERVED_BY_SOURCE: Final = frozenset({RELEASING, SPLITTING})


class StateChange(NamedTuple):
    """What one message did to its bundle.

    * `before`: the message that the bundle's record came from; None if it had none.
    * `rejection`: why the brokers ignore the message; None if they take it.
    """

    message: Message
    before: Message | None
    rejection: Rejection | None

    @property
    def held(self) -> StateRecord | None:
        """The bundle's record before."""
        return None if self.before is None else self.before.record


class Table:
    """The bundles of a cluster, as its brokers see them after the messages that were folded.

    `bundles` maps each bundle to the message of its record. `offset` is that of the last message,
    -1 before the first.
    """

    def __init__(self) -> None:
        """Begin without bundles."""
        self.bundles: dict[str, Message] = {}
        self.offset = -1

    def fold(self, message: Message) -> StateChange:
        """Take or reject the next message. One at or below `offset` is a fault of the caller."""
        assert message.offset > self.offset, "messages are folded in order, and once"
        self.offset = message.offset
        if message.begins_anew:
            self.bundles.clear()
        before = self.bundles.get(message.bundle)
        if message.problem:
            return StateChange(message, before, Rejection.UNREADABLE)
        held = None if before is None else before.record
        rejection = rejection_of(held, message.record)
        if rejection is None:
            if message.record is None:
                self.bundles.pop(message.bundle, None)
            else:
                self.bundles[message.bundle] = message
        return StateChange(message, before, rejection)


def server_of(record: StateRecord | None) -> str | None:
    """Return the broker that serves a bundle in this state, or None. From assigning on, the source
    of a transfer serves no more.
    """
    if record is None:
        return None
    if record.state == OWNED:
        return record.destination
    return record.source if record.state in _SERVED_BY_SOURCE else None


def is_of_system(bundle: str) -> bool:
    """Return whether a bundle belongs to Pulsar's own namespace, whose bundles no policy moves."""
    return bundle.startswith(f"{SYSTEM_NAMESPACE}/")


def overlapping_pairs(bundles: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of neighbours, by namespace and range, that share points. Names of another
    form share none.
    """
    spans = sorted(span for bundle in bundles if (span := span_of(bundle)) is not None)
    found, reach = [], spans[0] if spans else None
    for span in spans[1:]:
        if (
            reach is not None
            and span[0].namespace == reach[0].namespace
            and span[0].low < reach[0].high
        ):
            found.append((reach[1], span[1]))
            reach = max(reach, span, key=lambda each: each[0].high)
        else:
            reach = span
    return found


def span_of(bundle: str) -> tuple[BundleName, str] | None:
    """Return the span of a bundle, with its name; None for a name of another form."""
    try:
        return parse_bundle(bundle), bundle
    except InvalidName:
        return None


# --- rows, with the names that our own channel's tables use ---


def bundle_row(message: Message) -> Row:
    """Describe a bundle by the message of its record: its state, its brokers, and the one that
    serves it now, if any.
    """
    record = message.record
    assert record is not None, "a table holds records only"
    return {
        "bundle": message.bundle,
        "state": record.state,
        "owner": record.destination,
        "source": record.source,
        "serves": server_of(record),
        "version": record.version,
        "last": message.offset,
        "force": record.force,
    }


def broker_rows(table: Table) -> list[Row]:
    """Describe each broker that the records name: the bundles that it serves, and those that it is
    to take.
    """
    serves, incoming = Counter[str](), Counter[str]()
    for message in table.bundles.values():
        record, server = message.record, server_of(message.record)
        if server is not None:
            serves[server] += 1
        if record is not None and record.state in IN_FLIGHT and record.destination is not None:
            incoming[record.destination] += 1
    return [
        {"broker": name, "bundles": serves[name], "incoming": incoming[name]}
        for name in sorted(serves.keys() | incoming.keys())
    ]


def namespace_rows(table: Table) -> list[Row]:
    """Describe each namespace: the number and states of the bundles that have a record."""
    counts: dict[str, Counter[str]] = {}
    for name, message in table.bundles.items():
        assert message.record is not None, "a table holds records only"
        counts.setdefault(namespace_in(name), Counter())[message.record.state] += 1
    rows: list[Row] = []
    for name in sorted(counts):
        states = counts[name]
        owned, moving = states[OWNED], sum(states[state] for state in IN_FLIGHT)
        bundles = states.total()
        rows.append(
            {
                "namespace": name,
                "bundles": bundles,
                "owned": owned,
                "moving": moving,
                "free": bundles - owned - moving,
            }
        )
    return rows


def table_document(table: Table) -> Row:
    """Describe a whole table."""
    return {
        "offset": table.offset,
        "brokers": broker_rows(table),
        "namespaces": namespace_rows(table),
        "bundles": [bundle_row(table.bundles[name]) for name in sorted(table.bundles)],
    }
