"""The first operator in a real query: stopped in the middle of batches, it goes on from what was
committed, and no row differs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.functions import spark_partition_id

from equipoise.spark_jobs.audit.job import SHARDS
from equipoise.spark_jobs.sequence.rows import FRAME_DDL, LASTING, Arrival, Emitted, Table
from equipoise.spark_jobs.sequence.sequence import RowSequence
from equipoise.spark_jobs.sources.sqlite_source import record_batch
from equipoise.spark_jobs.streams.sequential_operator import FoldProcessor, folded, write_state
from equipoise.spark_jobs.streams.session import SHUFFLE_PARTITIONS
from tests.channels.walk import Walk

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1_200)]

RECORDS, BATCH, SNAPSHOT_RECORDS = 160, 40, 50
FIRST_MS = 1_763_740_000_123


class Silent(RowSequence):
    """A fold without rows."""

    def feed(self, arrivals: Iterable[Arrival]) -> Iterator[Emitted]:
        list(super().feed(arrivals))
        return iter(())


def sequence(key: int) -> RowSequence:
    """The fold with this key: the one with the first makes rows."""
    kind = RowSequence if key == SHARDS[0] else Silent
    return kind(snapshot_records=SNAPSHOT_RECORDS)


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
    """Leave out the rows that say at the end of each batch what lasts, and those of state."""
    return [row for row in rows if row.ordinal != LASTING and row.table != Table.STATE]


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
    begin = tmp_path / "begin"
    fresh = sequence(SHARDS[0]).changed_rows()
    write_state(begin, {key: data for key, data in fresh if data is not None})
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
        rows = folded(frame, FoldProcessor(sequence, begin), keys=SHARDS)
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
    expected = list(RowSequence(snapshot_records=SNAPSHOT_RECORDS).feed(everything))
    batches = [told[batch] for batch in sorted(told)]
    assert of_entries(expected) == of_entries(row for batch in batches for row in batch)
    assert lasting(expected)
    assert lasting(row for batch in batches for row in batch) == lasting(expected)


def test_shards_are_different_tasks(spark: SparkSession) -> None:
    """Else one core would have them all."""
    places = spark.createDataFrame([(key,) for key in SHARDS], "fold INT").repartition(
        SHUFFLE_PARTITIONS, "fold"
    )
    assert len(SHARDS) == places.select(spark_partition_id()).distinct().count()
