"""The rows that an archive gets of a Pulsar cluster: bundles, ownerships, moves and load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from equipoise.pulsar_cluster.reading import Read
from equipoise.spark_jobs.sequence.pulsar import PulsarRows, load_rows
from equipoise.spark_jobs.sequence.rows import Emitted, Table
from tests.pulsar.faults import GOLDEN
from tests.unit.pulsar_cluster.written import BUNDLE, LEFT, RIGHT, SECOND_MS, Written, a_life

Row = dict[str, Any]


def emitted(reads: Sequence[Read], beginnings: Sequence[int] = ()) -> list[Emitted]:
    rows = PulsarRows(beginnings)
    return [
        row
        for offset, read in enumerate(reads)
        for row in rows.feed(
            (offset, read.message_id, read.key, read.published_ms, read.value, read.producer)
        )
    ]


def of(table: Table, reads: Sequence[Read]) -> list[Row]:
    return [
        {"offset": row.offset, **orjson.loads(row.body or b"")}
        for row in emitted(reads)
        if row.table == table
    ]


def test_each_message_is_kept_with_its_verdict() -> None:
    written = a_life()
    written.reads.append(written.reads[0])
    written.reads.append(written.reads[0]._replace(value=b"[]"))
    records = [
        (row.kind, row.verdict, row.body)
        for row in emitted(written.reads)
        if row.table == Table.RECORDS
    ]
    assert [read.value for read in written.reads] == [body for _, _, body in records]
    assert [("Assigning", "accepted"), ("Owned", "accepted"), ("Releasing", "accepted")] == [
        each[:2] for each in records[:3]
    ]
    assert [("tombstone", "accepted"), ("Assigning", "accepted"), (None, "not a record")] == [
        each[:2] for each in records[-3:]
    ]


def test_after_a_loss_all_that_brokers_hold_is_new() -> None:
    """Pulsar compacted its channel before it was read. The same records follow again, and none is
    rejected.
    """
    written = a_life()
    held = [*written.reads[:2], *written.reads[:2]]
    verdicts = [row.verdict for row in emitted(held, [2]) if row.table == Table.RECORDS]
    assert ["accepted"] * 4 == verdicts
    assert "old version" in {row.verdict for row in emitted(held) if row.table == Table.RECORDS}


def test_numbers_distinguish_the_rows_of_a_message() -> None:
    rows = [(row.table, row.offset, row.ordinal) for row in emitted(a_life().reads)]
    assert len(rows) == len(set(rows))


def test_a_life_in_phases() -> None:
    phases = [
        row["phase_after"]
        for row in of(Table.TRANSITIONS, a_life().reads)
        if row["bundle"] == BUNDLE
    ]
    moved = ["transferring", "assigning", "owned", "unloading", None]
    assert ["assigning", "owned", *moved, "assigning", "owned", "splitting", None, None] == phases


def test_a_split_ends_the_parent_and_names_the_children_at_one_offset() -> None:
    rows = [row for row in of(Table.TRANSITIONS, a_life().reads) if row["kind"] == "split"]
    namespace = BUNDLE.rpartition("/")[0]
    assert [BUNDLE, f"{namespace}/{LEFT}", f"{namespace}/{RIGHT}"] == [
        row["bundle"] for row in rows
    ]
    assert 1 == len({row["offset"] for row in rows})
    assert [(None, None), ("owned", "a:80"), ("owned", "a:80")] == [
        (row["phase_after"], row["owner_after"]) for row in rows
    ]


def test_ownerships_end_when_the_source_releases() -> None:
    rows = of(Table.INTERVALS, a_life().reads)
    assert [
        ("a:80", 1, 3, "transferred"),
        ("b:80", 4, 6, "unloaded"),
        ("a:80", 8, 12, "split"),
    ] == [(row["broker"], row["from_offset"], row["to_offset"], row["how"]) for row in rows]
    assert 2 * SECOND_MS == rows[0]["duration_ms"]


def test_a_transfer_and_an_unload() -> None:
    transfer, unload = of(Table.MOVES, a_life().reads)
    assert ("a:80", "b:80", "done", 2 * SECOND_MS) == tuple(
        transfer[name] for name in ("source", "destination", "result", "pause_ms")
    )
    assert (2, 2, 4) == (
        transfer["begun_offset"],
        transfer["ready_offset"],
        transfer["ended_offset"],
    )
    assert ("b:80", None, "unloaded", None) == tuple(
        unload[name] for name in ("source", "destination", "result", "pause_ms")
    )


def test_a_broker_that_was_gone_and_one_that_stops() -> None:
    written = Written()
    written.assign(BUNDLE, "a:80")
    written.add(BUNDLE, "leader:80", "Owned", to="b:80", source="a:80", force=True)
    written.add(BUNDLE, "b:80", "Releasing", to="c:80", source="b:80", force=True)
    written.add(BUNDLE, "leader:80", "Owned", to="d:80", source="b:80", force=True)
    assert [("a:80", "died"), ("b:80", "transferred")] == [
        (row["broker"], row["how"]) for row in of(Table.INTERVALS, written.reads)
    ]
    [move] = of(Table.MOVES, written.reads)
    assert ("cancelled", "its broker stops") == (move["result"], move["reason"])


def test_load_reports_of_a_real_cluster() -> None:
    """A tombstone has no row, and a limit below 0 means that there is none."""
    lines = [
        orjson.loads(line) for line in (GOLDEN / "broker_load.jsonl").read_bytes().splitlines()
    ]
    found = [
        orjson.loads(row.body or b"")
        for number, line in enumerate(lines)
        for row in load_rows(
            number,
            5,
            "loadbalancer-broker-load-data",
            line["key"],
            line["value"] and orjson.dumps(line["value"]),
        )
    ]
    assert len(found) == sum(line["value"] is not None for line in lines)
    assert all(
        0 <= row["cpu"] <= 1 and row["bandwidth_in"] is None and row["broker"] for row in found
    )
    bundles = [
        orjson.loads(line)["value"]
        for line in (GOLDEN / "top_bundles.jsonl").read_bytes().splitlines()
    ]
    busy = next(
        value for value in bundles if value is not None and len(value["topBundlesLoadData"]) > 1
    )
    rows = list(load_rows(7, 5, "loadbalancer-top-bundles-load-data", "a:80", orjson.dumps(busy)))
    assert [0, 1] == [row.ordinal for row in rows][:2]
    assert (
        busy["topBundlesLoadData"][0]["bundleName"] == orjson.loads(rows[0].body or b"")["bundle"]
    )


@pytest.mark.parametrize(
    "value", [None, b"", b"\xff", b"[]", b"{}", b'{"cpu": 5}', b'{"topBundlesLoadData": [5]}']
)
@pytest.mark.parametrize(
    "topic", ["loadbalancer-broker-load-data", "loadbalancer-top-bundles-load-data", "other"]
)
def test_a_report_that_cannot_be_read_has_no_rows(topic: str, value: bytes | None) -> None:
    assert [] == list(load_rows(1, 5, topic, "a:80", value))
