"""Turn notes (decisions, loads and serving evidence) into rows.

Notes are not folded. No note changes a verdict or the log's time.

`brokers.load.documents` defines the documents of load reports, `spark_jobs.tables.schema` the
columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import orjson

from equipoise.brokers.load.documents import decode_load
from equipoise.channel.core.errors import PeerError
from equipoise.shedder.loads import BundleTraffic, Load, Traffic, Use
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Table
from equipoise.spark_jobs.sequence.subjects import parsed

Row = Mapping[str, str | int | float | None]


def load_rows(document: bytes) -> tuple[Row, ...] | None:
    """Return the rows of a load report, the broker's first and then one for each bundle in it, or
    None for another document. A figure that is not a finite number is null.
    """
    try:
        load = decode_load(document)
    except PeerError:
        return None
    of_all: Row = {"broker": load.broker, "reported_at": load.at_ms}
    return (
        {**of_all, **_of_broker(load)},
        *({**of_all, **_of_bundle(each)} for each in load.bundles),
    )


def _of_broker(load: Load) -> Row:
    resources = load.resources
    return {
        "cpu": _share(resources.cpu),
        "memory": _share(resources.memory),
        "direct_memory": _share(resources.direct_memory),
        "bandwidth_in": _share(resources.bandwidth_in),
        "bandwidth_out": _share(resources.bandwidth_out),
        **_rates(load.traffic),
        "weighted_max": _figure(load.average_use),
        "bundles": load.bundle_count,
        "topics": load.topics,
        "cost": _figure(load.cost),
    }


def _of_bundle(bundle: BundleTraffic) -> Row:
    return {
        "bundle": bundle.bundle,
        **_rates(bundle.traffic),
        "topics": bundle.topics,
        "consumers": bundle.consumers,
        "producers": bundle.producers,
        "cache_bytes": bundle.cache_bytes,
        "cost": _figure(bundle.cost),
    }


def _rates(traffic: Traffic) -> Row:
    """Return bytes and messages per second."""
    return {
        "bytes_in": _figure(traffic.bytes_in_per_second),
        "bytes_out": _figure(traffic.bytes_out_per_second),
        "messages_in": _figure(traffic.messages_in_per_second),
        "messages_out": _figure(traffic.messages_out_per_second),
    }


def _share(use: Use) -> float | None:
    """Return the use of a resource as a fraction; None if it has no limit."""
    return _figure(use.used / use.limit) if use.limit > 0 else None


def _figure(value: float) -> float | None:
    return value if isfinite(value) else None


def rows_of_note(arrival: Arrival) -> list[Emitted] | None:
    """Return the rows of one note, with the source's own time; None for a malformed document."""
    table = Table(arrival.source)
    if table is Table.LOADS:
        if arrival.value is None:
            return []  # A broker that leaves deletes its report.
        found = load_rows(arrival.value)
        return (
            None
            if found is None
            else [
                _row(table, arrival, ordinal, orjson.dumps(body))
                for ordinal, body in enumerate(found)
            ]
        )
    raw = parsed(arrival.value or b"")
    if raw is None or (
        table is Table.SERVING
        and not (type(raw.get("bundle")) is str and type(raw.get("broker")) is str)
    ):
        return None
    return [_row(table, arrival, 0, arrival.value)]


def _row(table: Table, arrival: Arrival, ordinal: int, body: bytes | None) -> Emitted:
    return Emitted(
        table, "", arrival.offset, ordinal, max(arrival.at_ms, 0), None, None, None, body
    )
