"""Describe the table of a Pulsar cluster as rows, with the names that our own channel's tables use. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from equipoise.channel.core.ranges import namespace_in
from equipoise.pulsar_cluster.records import IN_FLIGHT, OWNED, Message
from equipoise.pulsar_cluster.table import Table, server_of

Row = Mapping[str, object]

BUNDLE_COLUMNS: Final = ("bundle", "state", "owner", "source", "serves", "version", "last")
BROKER_COLUMNS: Final = ("broker", "bundles", "incoming")
NAMESPACE_COLUMNS: Final = ("namespace", "bundles", "owned", "moving", "free")


def bundle_row(message: Message) -> Row:
    """Describe a bundle by the message of its record: its state, its brokers, and the one that serves it now, if any."""
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
    """Describe each broker that the records name: the bundles that it serves, and those that it is to take."""
    serves, incoming = Counter[str](), Counter[str]()
    for message in table.bundles.values():
        record, server = message.record, server_of(message.record)
        if server is not None:
            serves[server] += 1
        if record is not None and record.state in IN_FLIGHT and record.destination is not None:
            incoming[record.destination] += 1
    return [{"broker": name, "bundles": serves[name], "incoming": incoming[name]} for name in sorted(serves.keys() | incoming.keys())]


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
        rows.append({"namespace": name, "bundles": bundles, "owned": owned, "moving": moving, "free": bundles - owned - moving})
    return rows


def table_document(table: Table) -> Row:
    """Describe a whole table."""
    return {
        "offset": table.offset,
        "brokers": broker_rows(table),
        "namespaces": namespace_rows(table),
        "bundles": [bundle_row(table.bundles[name]) for name in sorted(table.bundles)],
    }
