"""Make archives without Spark, with the same operator and sink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.archive.tables.schema import ARCHIVED
from equipoise.spark_jobs.archive.tables.sink import open_sink
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Source, Table
from equipoise.spark_jobs.sequence.sequence import Sequence as Fold

LOG = "the identity of the log"
URL = "sqlite:channel.db"
NOON_MS = 1_763_812_800_000
"""2025-11-22 at noon, UTC."""

ROWS = pa.schema([
    ("table", pa.string()),
    ("subject", pa.string()),
    ("offset", pa.int64()),
    ("ordinal", pa.int32()),
    ("at", pa.timestamp("us", tz="UTC")),
    ("kind", pa.string()),
    ("publisher", pa.string()),
    ("verdict", pa.string()),
    ("body", pa.binary()),
])  # fmt: skip
"""The columns of `EMITTED_DDL` in Spark's driver."""


def as_rows(emitted: Iterable[Emitted]) -> pa.Table:
    """Return rows as Spark's driver gets them."""
    columns = list(zip(*emitted, strict=True)) or [()] * len(ROWS)
    columns[4] = tuple(at_ms * 1_000 for at_ms in columns[4])
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, ROWS, strict=True)],
        schema=ROWS,
    )


def arrivals_of(
    entries: Iterable[tuple[int, bytes | None]], *, first_ms: int = NOON_MS, step_ms: int = 10
) -> list[Arrival]:
    """Return entries of a channel as a source gives them, `step_ms` apart."""
    return [
        Arrival(Source.CHANNEL, offset, first_ms + number * step_ms, data)
        for number, (offset, data) in enumerate(entries)
    ]


def archived(
    path: Path, batches: Sequence[Sequence[Arrival]], *, snapshot_records: int = 100
) -> Archive:
    """Archive batches of arrivals."""
    fold = Fold(ARCHIVED, snapshot_records=snapshot_records)
    with open_sink(path, writer="archive", log=LOG, url=URL) as sink:
        for number, batch in enumerate(batches):
            sink.write(number, as_rows(fold.feed(batch)))
    return Archive(path)


def archive_entries(
    entries: Iterable[tuple[int, bytes]],
    path: Path,
    *,
    snapshot_records: int,
    batch_records: int,
    begin: bytes | None = None,
    first_ms: int = NOON_MS,
    step_ms: int = 1,
) -> None:
    """Archive the tables that a verification reads, for any number of entries. `begin` is the
    snapshot before the first entry.
    """
    fold = Fold(
        frozenset({Table.RECORDS, Table.SNAPSHOTS}), begin, snapshot_records=snapshot_records
    )
    left, batch = iter(entries), 0
    with open_sink(path, writer="archive", log=LOG, url=URL) as sink:
        while some := list(islice(left, batch_records)):
            at_ms = first_ms + batch * batch_records * step_ms
            sink.write(
                batch, as_rows(fold.feed(arrivals_of(some, first_ms=at_ms, step_ms=step_ms)))
            )
            batch += 1
