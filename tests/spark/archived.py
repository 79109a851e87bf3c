"""Make archives without Spark, with the same sequence and writer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from equipoise.spark_jobs.plain import reading
from equipoise.spark_jobs.sequence.folding import Lost
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Source
from equipoise.spark_jobs.sequence.sequence import RowSequence, nothing_lost
from equipoise.spark_jobs.sources.reading import Reading
from equipoise.spark_jobs.tables.arrow import emitted_table
from equipoise.spark_jobs.tables.delta import Place
from equipoise.spark_jobs.tables.reading import Tables
from equipoise.spark_jobs.tables.writing import Writer, open_writer

LOG = "the identity of the log"
URL = "sqlite:channel.db"
NOON_MS = 1_763_812_800_000
"""2025-11-22 at noon, UTC."""


def writer_of(place: Path | str, *, writer: str = "archive", log: str = LOG) -> Writer:
    """Open the tables of a writer."""
    return open_writer(Place(place), writer=writer, log=log, url=URL)


def as_rows(emitted: Iterable[Emitted]) -> pa.Table:
    """Return rows as a writer gets them."""
    return emitted_table(list(emitted))


def reading_of(url: str) -> Reading:
    """Read a log as the plain processes do."""
    return Reading(url, entries_max=reading.ENTRIES_MAX, bytes_max=reading.BYTES_MAX)


def arrivals_of(
    entries: Iterable[tuple[int, bytes | None]], *, first_ms: int = NOON_MS, step_ms: int = 10
) -> list[Arrival]:
    """Return entries of a channel as a source gives them, `step_ms` apart."""
    return [
        Arrival(Source.CHANNEL, offset, first_ms + number * step_ms, data)
        for number, (offset, data) in enumerate(entries)
    ]


def archived(
    path: Path,
    batches: Iterable[Sequence[Arrival]],
    *,
    snapshot_records: int = 100,
    lost: Lost = nothing_lost,
) -> Tables:
    """Archive batches of arrivals."""
    fold = RowSequence(snapshot_records=snapshot_records, lost=lost)
    with writer_of(path) as writer:
        for batch in batches:
            writer.write(as_rows(fold.feed(batch)))
        writer.save_state(dict(_kept(fold)))
    return Tables(path)


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
    fold = RowSequence(begin, snapshot_records=snapshot_records)
    left, batch = iter(entries), 0
    with writer_of(path) as writer:
        while some := list(islice(left, batch_records)):
            at_ms = first_ms + batch * batch_records * step_ms
            writer.write(as_rows(fold.feed(arrivals_of(some, first_ms=at_ms, step_ms=step_ms))))
            batch += 1
        writer.save_state(dict(_kept(fold)))


def _kept(fold: RowSequence) -> Iterable[tuple[str, bytes]]:
    return ((key, data) for key, data in fold.changed_rows() if data is not None)
