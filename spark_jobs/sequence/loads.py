"""Turn a load report (a document of `Source.LOADS`) into rows of two tables.

`brokers.load.documents` defines the documents, `spark_jobs.archive.tables.schema` the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

from equipoise.brokers.errors import UnreadableLoad
from equipoise.brokers.load.documents import decode_load
from equipoise.shedder.loads import BundleTraffic, Load, Traffic, Use

Row = Mapping[str, str | int | float | None]


class LoadRows(NamedTuple):
    """The rows of one document: one of `broker_load`, and one of `bundle_load` for each bundle in
    it.
    """

    brokers: tuple[Row, ...]
    bundles: tuple[Row, ...]


def load_rows(document: bytes) -> LoadRows | None:
    """Return the rows of a load report, or None for another document. A figure that is not a finite
    number is null.
    """
    try:
        load = decode_load(document)
    except UnreadableLoad:
        return None
    return LoadRows(
        brokers=(_of_broker(load),),
        bundles=tuple(_of_bundle(load.broker, each) for each in load.bundles),
    )


def _of_broker(load: Load) -> Row:
    resources = load.resources
    return {
        "broker": load.broker,
        "reported_at": load.at_ms,
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


def _of_bundle(broker: str, bundle: BundleTraffic) -> Row:
    return {
        "broker": broker,
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
