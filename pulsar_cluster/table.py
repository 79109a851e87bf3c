"""Fold Pulsar's channel into the table that each of its brokers holds: bundle to its last accepted
record. Describe it as rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from equipoise.channel.core.errors import InvalidName
from equipoise.channel.core.ranges import BundleName, namespace_in, parse_bundle
from equipoise.pulsar_cluster.conflicts import Rejection, rejection_of
from equipoise.pulsar_cluster.records import (
    IN_FLIGHT,
    OWNED,
    RELEASING,
    SPLITTING,
    SYSTEM_NAMESPACE,
    Message,
    StateRecord,
)

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
