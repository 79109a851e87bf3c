"""Provide an embedded channel as a Spark data source for streaming queries.

Spark pickles these classes and calls them in processes of its own.

* A position covers all sources: `{"log": identity, "channel": 7, "decisions": 1, "serving": 1,
  "loads": 1}` holds the identity of the log and the next offset of each source.
* A streaming query does not fail while the file is unavailable. It reports no new entries;
  `spark_jobs.streams.progress` detects that. A task that reads planned rows fails, and the stream
  is started again until the file is back.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.spark_jobs.sequence.rows import FRAME_DDL, Arrival, Positions, Source
from equipoise.spark_jobs.sources.reading import AWAY, BYTES_AT_ONCE, ROWS_AT_ONCE, Reading

NAME: Final = "equipoise_sqlite"

BATCH_BYTES_MAX: Final = 64 << 20
"""Bytes of one source in a batch, unless a single entry is larger. All rows of a batch are in the
JVM at once, several times over, and it has 1 GiB (`spark_jobs.streams.session.DRIVER_MEMORY`).
"""

IDLE_MS: Final = 200
"""How long a query for new entries waits for one. Without it Spark would ask a hundred times per
second."""

BEGINNING: Final[Positions] = {source.value: FIRST_OFFSET for source in Source}

_LOG: Final = "log"

SCHEMA: Final = pa.schema(
    [
        ("source", pa.string()),
        ("offset", pa.int64()),
        ("at_ms", pa.int64()),
        ("value", pa.binary()),
    ]
)
"""`FRAME_DDL` as an Arrow schema."""


class Span(InputPartition):
    """The entries from one position to another. Spark pickles it."""

    def __init__(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> None:
        super().__init__((start, end))
        self.start = start
        self.end = end


class SqliteChannel(DataSource):
    """The source `equipoise_sqlite`. Options: `url`, `sources` (JSON, names), `start` (JSON, by
    source), `per_trigger`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.readStream.format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns, the same for every source."""
        return FRAME_DDL

    # Its columns are fixed; the name is Spark's.
    def streamReader(self, schema: StructType) -> SqliteStreamReader:  # noqa: ARG002, N802
        """Return a reader for a stream."""
        return SqliteStreamReader(
            self.options["url"],
            sources=[Source(name) for name in json.loads(self.options["sources"])],
            start=json.loads(self.options["start"]),
            per_trigger=int(self.options["per_trigger"]),
        )


class SqliteStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read new entries, at most `per_trigger` of each source per batch."""

    def __init__(
        self,
        url: str,
        *,
        sources: Collection[Source] = tuple(Source),
        start: Positions,
        per_trigger: int,
    ) -> None:
        """Read `sources` from `start`. A source that is missing there is read from its
        beginning.
        """
        self._url = url
        self._sources = sources
        self._start = start
        self._per_trigger = per_trigger
        self._until: dict[str, int] | None = None
        self._reading: Reading | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - as all below: the names are Spark's
        """See `DataSourceStreamReader.initialOffset`."""
        return {**BEGINNING, **self._start, _LOG: ""}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """See `SupportsTriggerAvailableNow`: entries added after this call are not read."""
        self._until = self._opened("").ends()

    # It bounds each batch without a limit of Spark's.
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        """See `DataSourceStreamReader.latestOffset`. Return `start` while the file is
        unavailable.
        """
        try:
            reading = self._opened(start[_LOG])
            batch = reading.batch(start, until=self._until)
            if self._until is None and not batch.arrivals:
                reading.wait(start[Source.CHANNEL], timeout_ms=IDLE_MS)
                batch = reading.batch(batch.ends)
        except (*AWAY, sqlite3.Error):
            self.stop()
            time.sleep(IDLE_MS / 1_000)
            return start
        is_new = any(start[source] != end for source, end in batch.ends.items())
        return {**batch.ends, _LOG: reading.log.identity} if is_new else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """See `DataSourceStreamReader.partitions`. Return one, because the fold needs all entries
        in order.
        """
        return [Span(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `DataSourceStreamReader.read`."""
        assert isinstance(partition, Span), "Spark hands back what `partitions` gave it"
        position, end = partition.start, partition.end
        with contextlib.closing(
            Reading(
                self._url,
                sources=self._sources,
                identity=end[_LOG],
                entries_max=ROWS_AT_ONCE,
                bytes_max=BYTES_AT_ONCE,
            )
        ) as reading:
            while (batch := reading.batch(position, until=end)).arrivals:
                yield record_batch(batch.arrivals)
                position = batch.ends
            if batch.away is not None:  # Spark must not count as read what is planned.
                raise batch.away

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """See `DataSourceStreamReader.reportLatestOffset`. Spark computes a query's lag from it."""
        try:
            reading = self._opened("")
            return {**reading.ends(), _LOG: reading.log.identity}
        except (*AWAY, sqlite3.Error):
            self.stop()
            return None

    def stop(self) -> None:
        """See `DataSourceStreamReader.stop`."""
        if self._reading is not None:
            with contextlib.suppress(sqlite3.Error, OSError):
                self._reading.close()
        self._reading = None

    def _opened(self, identity: str) -> Reading:
        self._reading = self._reading or Reading(
            self._url,
            sources=self._sources,
            identity=identity or None,
            entries_max=self._per_trigger,
            bytes_max=BATCH_BYTES_MAX,
        )
        return self._reading


def record_batch(arrivals: Sequence[Arrival]) -> pa.RecordBatch:
    """Return entries as columns of `SCHEMA`."""
    columns = [
        pa.array([arrival[place] for arrival in arrivals], field.type)
        for place, field in enumerate(SCHEMA)
    ]
    return pa.record_batch(columns, schema=SCHEMA)
