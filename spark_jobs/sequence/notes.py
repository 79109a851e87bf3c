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
from equipoise.spark_jobs.rules.facts import Raw
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Source, Table
from equipoise.spark_jobs.sequence.subjects import parsed

Row = Mapping[str, str | int | float | None]


def load_rows(load: Load) -> tuple[Row, ...]:
    """Return the rows of a load report, the broker's first and then one for each bundle in it. A
    figure that is not a finite number is null.
    """
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


def content_of(note: Arrival) -> Load | Raw | None:
    """Return what a note says: a load report, or a JSON object; None for a malformed document."""
    if note.source == Source.LOADS:
        if note.value is None:
            return {}  # A broker that leaves deletes its report.
        try:
            return decode_load(note.value)
        except PeerError:
            return None
    raw = parsed(note.value or b"")
    is_named = raw is not None and all(type(raw.get(name)) is str for name in ("bundle", "broker"))
    return raw if is_named or note.source != Source.SERVING else None


def rows_of_note(note: Arrival) -> list[Emitted]:
    """Return the rows of one note, with the source's own time; none for a malformed document."""
    content, table = content_of(note), Table(note.source)
    if isinstance(content, Load):
        bodies: list[bytes | None] = [orjson.dumps(row) for row in load_rows(content)]
    else:
        bodies = [] if content is None or note.value is None else [note.value]
    at_ms = max(note.at_ms, 0)
    return [
        Emitted(table, "", note.offset, ordinal, at_ms, None, None, None, body)
        for ordinal, body in enumerate(bodies)
    ]
