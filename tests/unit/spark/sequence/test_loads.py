"""Load reports as rows of tables: each figure in its column, and garbage none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from equipoise.brokers.load.documents import decode_load, encode_load
from equipoise.shedder.loads import BundleTraffic, Load, Resources, Traffic, Use, averaged
from equipoise.spark_jobs.sequence.notes import content_of, load_rows, rows_of_note
from equipoise.spark_jobs.sequence.rows import Arrival, Source

BUNDLES = ("t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff")
TRAFFIC = Traffic(
    bytes_in_per_second=10,
    bytes_out_per_second=20,
    messages_in_per_second=1,
    messages_out_per_second=2,
)
SAMPLE = Load(
    broker="b1",
    at_ms=1_700_000_000_000,
    resources=Resources(
        cpu=Use(used=50, limit=200),
        memory=Use(used=96, limit=128),
        bandwidth_in=Use(used=7, limit=0),
    ),
    average_use=0.25,
    traffic=TRAFFIC,
    bundle_count=9,
    topics=4,
    cost=3.5,
    bundles=tuple(
        BundleTraffic(
            bundle=name,
            traffic=TRAFFIC,
            topics=2,
            consumers=3,
            producers=5,
            cache_bytes=7,
            cost=1.5 + place,
        )
        for place, name in enumerate(BUNDLES)
    ),
)


REPORT = encode_load(averaged(None, SAMPLE))


def test_each_figure_of_a_report_has_its_column() -> None:
    """A resource without a limit is null."""
    rows = load_rows(decode_load(REPORT))
    rates = {"bytes_in": 10.0, "bytes_out": 20.0, "messages_in": 1.0, "messages_out": 2.0}
    broker, *bundles = rows
    assert {
        "broker": "b1",
        "reported_at": 1_700_000_000_000,
        "cpu": 0.25,
        "memory": 0.75,
        "direct_memory": None,
        "bandwidth_in": None,
        "bandwidth_out": None,
        **rates,
        "weighted_max": 0.25,
        "bundles": 9,
        "topics": 4,
        "cost": 3.5,
    } == broker
    counts = {"topics": 2, "consumers": 3, "producers": 5, "cache_bytes": 7}
    assert [
        {
            "broker": "b1",
            "reported_at": 1_700_000_000_000,
            "bundle": name,
            **rates,
            **counts,
            "cost": 1.5 + place,
        }
        for place, name in enumerate(BUNDLES)
    ] == bundles


def test_a_figure_that_is_no_number_is_null() -> None:
    odd = replace(
        SAMPLE,
        cost=float("nan"),
        traffic=replace(TRAFFIC, bytes_in_per_second=float("inf")),
        bundles=(),
    )
    (broker,) = load_rows(decode_load(encode_load(averaged(None, odd))))
    assert (None, None, 20.0) == (broker["cost"], broker["bytes_in"], broker["bytes_out"])


@pytest.mark.parametrize(
    "document",
    [b"", b"null", b"garbage", b"[]", b"{}", b'{"broker":"b1"}', b"\xff"],
)
def test_other_documents_give_no_rows(document: bytes) -> None:
    note = Arrival(Source.LOADS, 1, 2, document)
    assert (None, []) == (content_of(note), rows_of_note(note))
