"""The first operator in a real query: stopped in the middle of batches, it goes on from what was
committed, and no row differs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.channel.sqlite.log import SqliteLog
from equipoise.spark_jobs.sequence.rows import FRAME_DDL, LASTING, Arrival, Emitted, Table
from equipoise.spark_jobs.sequence.sequence import Sequence
from equipoise.spark_jobs.sources.sqlite_source import record_batch
from equipoise.spark_jobs.streams.sequential_operator import SequentialProcessor, sequence_operator
from tests.channels.walk import Walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

WANTS = frozenset(Table) - {Table.FINDINGS}
RECORDS, BATCH, SNAPSHOT_RECORDS = 160, 40, 50
FIRST_MS = 1_763_740_000_123


class StoppedError(Exception):
    """What a sink dies of in this test."""


def arrivals() -> list[Arrival]:
    """A walk without gaps, with garbage and an entry without a value in it, and notes beside it."""
    walk = Walk(30)
    entries = [
        Arrival("channel", place + 1, FIRST_MS + 7 * place, walk.step()[1])
        for place in range(RECORDS)
    ]
    entries[70] = entries[70]._replace(value=None)
    notes = [Arrival("decisions", place, FIRST_MS, b'{"kind":"shed"}') for place in range(3)]
    return [*entries[: BATCH - len(notes)], *notes, *entries[BATCH - len(notes) :]]


def write(folder: Path, batch: list[Arrival], number: int) -> None:
    """One batch as a file for Spark to read; the later rows stand first."""
    file = folder / f"{number}.parquet"
    pq.write_table(pa.Table.from_batches([record_batch(batch[::-1])]), file)
    # Spark reads the oldest first, and in any order what is of one millisecond.
    os.utime(file, (FIRST_MS // 1_000 + number,) * 2)


def emitted(row: dict[str, Any]) -> Emitted:
    """A row of the frame as a sequence gives it."""
    at = row.pop("at")
    return Emitted(**row, at_ms=round(at.timestamp() * 1_000))


def of_entries(rows: Iterable[Emitted]) -> list[Emitted]:
    """Leave out the rows that say at the end of each batch what lasts, and how far it has come."""
    return [row for row in rows if row.ordinal != LASTING and row.table != Table.REACH]


def lasting(rows: Iterable[Emitted]) -> dict[str, bytes]:
    """The intervals that last after all of `rows`, by bundle. A sequence that continues from its
    saved state gives them all again, since it cannot know what its sink has.
    """
    found = [row for row in rows if row.ordinal == LASTING]
    newest = max((row.offset for row in found), default=0)
    return {row.subject: row.body for row in found if row.offset == newest and row.body is not None}


def test_a_query_that_dies_continues_without_a_trace(spark: SparkSession, tmp_path: Path) -> None:
    """Its rows are those of one pure sequence."""
    source, everything = tmp_path / "source", arrivals()
    source.mkdir()
    for number, first in enumerate(range(0, len(everything), BATCH)):
        write(source, everything[first : first + BATCH], number)
    log_url = f"sqlite:{tmp_path / 'log.db'}"
    SqliteLog(str(tmp_path / "log.db"), name=log_url).close()
    told: dict[int, list[Emitted]] = {}

    def run(*, dies_at: int | None) -> None:
        """One start of the query, which reads a file in each batch."""

        def take(rows: DataFrame, batch: int) -> None:
            found = rows.toArrow().to_pylist()
            if batch == dies_at:
                raise StoppedError
            told[batch] = [emitted(row) for row in found]

        frame = (
            spark.readStream.schema(FRAME_DDL).option("maxFilesPerTrigger", 1).parquet(str(source))
        )
        rows = sequence_operator(
            frame,
            SequentialProcessor(
                wants=WANTS,
                begin=None,
                run_id=f"run {dies_at}",
                log_url=log_url,
                snapshot_records=SNAPSHOT_RECORDS,
            ),
        )
        writer = rows.writeStream.foreachBatch(take).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination(timeout=900)
        finally:
            query.stop()

    with pytest.raises(Exception, match="StoppedError"):
        run(dies_at=2)
    run(dies_at=None)
    expected = list(Sequence(WANTS, snapshot_records=SNAPSHOT_RECORDS).feed(everything))
    batches = [told[batch] for batch in sorted(told)]
    assert of_entries(expected) == of_entries(row for batch in batches for row in batch)
    assert lasting(expected)
    assert lasting(row for batch in batches for row in batch) == lasting(expected)
