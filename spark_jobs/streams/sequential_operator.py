"""Run one `Sequence` over the whole channel as Spark's `transformWithState`: the first operator of
each streaming job.

The state:

1. It is a list of rows (key, data), to which each batch appends its changes; the last row of a key
   counts. A list costs one call per batch, a map one per key. It is rewritten when it is more than
   twice as long as necessary.
2. A worker caches its sequence under the number of the next batch. It uses the cache only if the
   state has the same number: not after a failed attempt, a faster worker or a restart.

Arrivals are packed into few rows, each an Arrow batch, for the one operator that takes all of them.
For single rows Spark's writing, sorting, grouping and rebuilding costs more than the folding.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from equipoise.spark_jobs.rules.membership.view import IN_FLIGHT_MAX_MS
from equipoise.spark_jobs.rules.memory import StateRow
from equipoise.spark_jobs.sequence.rows import EMITTED_DDL, Arrival, Emitted, Source, Table
from equipoise.spark_jobs.sequence.sequence import SNAPSHOT_RECORDS, Sequence
from equipoise.spark_jobs.sequence.snapshots import SNAPSHOT_BYTES_MAX, compress, decompress
from equipoise.spark_jobs.streams.losses import lost

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import TimerValues

PACK_BYTES_MAX: Final = 8 << 20
"""Largest pack, unless a single row is larger. Spark holds several rows in memory, each in one
piece."""

_PACKS: Final = pa.schema([("log", pa.string()), ("pack", pa.binary())])
_PACKS_DDL: Final = "log STRING, pack BINARY"


def packed(frame: DataFrame) -> DataFrame:
    """Return a frame of arrivals (`FRAME_DDL`) as rows of (`log`, `pack`), all with the same `log`
    to group by.
    """
    return frame.mapInArrow(pack, _PACKS_DDL)


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield each batch of arrivals as one pack, or as several if it is large."""
    for batch in batches:
        for part in _parts(batch):
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, part.schema) as writer:
                writer.write_batch(part)
            yield pa.record_batch([[""], [stream.getvalue().to_pybytes()]], schema=_PACKS)


def unpacked(packs: Iterable[bytes]) -> Iterator[Arrival]:
    """Yield the arrivals of one batch in order: first the channel, then the other sources, each by
    offset.
    """
    table = _sorted(pa.concat_tables(pa.ipc.open_stream(each).read_all() for each in packs))
    source, offset, at_ms, value = (
        table[name].to_pylist() for name in ("source", "offset", "at_ms", "value")
    )
    return map(Arrival, source, offset, at_ms, value)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = batch.num_rows
    if rows < 2 or batch.nbytes <= PACK_BYTES_MAX:  # noqa: PLR2004 - one row cannot be cut
        if rows:
            yield batch
        return
    yield from _parts(batch.slice(0, rows // 2))
    yield from _parts(batch.slice(rows // 2))


def _sorted(table: pa.Table) -> pa.Table:
    beside = pc.not_equal(table["source"], Source.CHANNEL.value)
    offsets = table["offset"]
    if (
        not pc.any(beside).as_py()
        and pc.all(pc.greater(offsets[1:], offsets[:-1])).as_py() is not False
    ):
        return table
    order = table.append_column("beside", beside)
    return order.sort_by(
        [("beside", "ascending"), ("source", "ascending"), ("offset", "ascending")]
    )


CHUNK_ROWS_MAX: Final = 20_000
"""Rows in one frame that returns to Spark, so that a batch is not in memory twice."""

CHUNK_BYTES_MAX: Final = 32 << 20
"""Bytes of bodies after which a frame is full: a record may have a MiB."""

STATE_ROWS_AT_ONCE: Final = 5_000
"""Rows of state in one call to Spark: 1.5 MB at 300 bytes each."""

STATE_ROWS_SPARE: Final = 1_000
"""Surplus rows of state that are not worth a rewrite."""

CACHED_MAX: Final = 2
"""Sequences that one worker caches. The sequence of an ended query is dropped when the next two
arrive."""

# Times are numbers, because Spark converts timestamps from Python to the session's time zone.
ROWS_DDL: Final = EMITTED_DDL.replace("at TIMESTAMP", "at_ms BIGINT")
"""The columns of `frames`."""
_TYPES: Final = {
    "STRING": pa.string(),
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "BINARY": pa.binary(),
}
_COLUMNS: Final = {
    name: _TYPES[kind] for name, kind in (column.split() for column in ROWS_DDL.split(", "))
}


def sequence_operator(frame: DataFrame, processor: SequentialProcessor) -> DataFrame:
    """Return the rows (`EMITTED_DDL`) that `processor` makes of a streaming frame of arrivals
    (`FRAME_DDL`).
    """
    return with_time(
        packed(frame)
        .groupBy("log")
        .transformWithStateInPandas(processor, ROWS_DDL, "Append", "None")
    )


def with_time(rows: DataFrame) -> DataFrame:
    """Return rows of `ROWS_DDL` as rows of `EMITTED_DDL`."""
    return rows.select(
        "table",
        "subject",
        "offset",
        "ordinal",
        F.timestamp_millis("at_ms").alias("at"),
        "kind",
        "publisher",
        "verdict",
        "body",
    )


@dataclass(slots=True, kw_only=True)
class Kept:
    """A cached sequence: the next batch (`version`), all rows of its state, and the length of the
    list in Spark.
    """

    version: int
    sequence: Sequence
    rows: dict[str, bytes]
    listed: int


_kept: dict[str, Kept] = {}


class SequentialProcessor(StatefulProcessor):
    """Run one `Sequence` as a Spark processor. All rows have one key.

    * `begin`: snapshot for a new checkpoint to begin with (`channel.core.snapshot`); None to begin
      with the log's first record. An existing checkpoint continues from its own state.
    * `state`: rows of a sequence's state to begin with instead, for a new checkpoint.
    * `run_id`: different at each start of the query.
    * `in_flight_max_ms`: how long a bundle may be pending before it is overdue.
    * `log`: the log's identity, which distinguishes evidence of a former log with the same name.
    """

    def __init__(
        self,
        *,
        wants: frozenset[Table],
        begin: bytes | None = None,
        state: Mapping[str, bytes] | None = None,
        run_id: str,
        log_url: str,
        snapshot_records: int = SNAPSHOT_RECORDS,
        in_flight_max_ms: int = IN_FLIGHT_MAX_MS,
        log: str | None = None,
    ) -> None:
        self._wants = wants
        # It goes to a worker with each batch.
        self._begin = None if begin is None else compress(begin)
        self._state = state
        self._run_id = run_id
        self._log_url = log_url
        self._snapshot_records = snapshot_records
        self._in_flight_max_ms = in_flight_max_ms
        self._log = log

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._version = handle.getValueState("version", "version BIGINT")
        self._rows = handle.getListState("rows", "key STRING, data BINARY")

    # Spark's names.
    def handleInputRows(  # noqa: N802
        self,
        key: object,  # noqa: ARG002
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        """Feed one batch and save the state."""
        kept = self._take()
        # A batch makes a million values without cycles. Searching for cycles costs a fifth of its
        # time.
        gc.disable()
        try:
            yield from frames(
                self._rows_of(
                    kept.sequence, unpacked(pack for frame in rows for pack in frame["pack"])
                )
            )
        finally:
            gc.enable()
        self._keep(kept)

    def _rows_of(self, sequence: Sequence, arrivals: Iterator[Arrival]) -> Iterator[Emitted]:
        yield from sequence.feed(arrivals)
        if Table.FACTS in self._wants:
            yield sequence.reach()

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def _take(self) -> Kept:
        """Return the sequence after the last committed batch."""
        # Removed from the cache, because a failed attempt leaves it in an unusable state.
        kept = _kept.pop(self._run_id, None)
        committed = self._version.get() if self._version.exists() else None
        version: int = 0 if committed is None else committed[0]
        if version and kept is not None and kept.version == version:
            return kept
        begin = (
            None
            if version or self._begin is None
            else decompress(self._begin, size_max=SNAPSHOT_BYTES_MAX)
        )
        sequence = Sequence(
            self._wants,
            begin,
            lost=partial(lost, self._log_url),
            log=self._log,
            in_flight_max_ms=self._in_flight_max_ms,
            snapshot_records=self._snapshot_records,
        )
        listed = [(key, data) for key, data in self._rows.get()] if version else []
        rows: dict[str, bytes] = {} if version else dict(self._state or {})
        _put(rows, listed)
        if rows:
            sequence.restore(rows)
        return Kept(version=version, sequence=sequence, rows=rows, listed=len(listed))

    def _keep(self, kept: Kept) -> None:
        """Write this batch's changes, which Spark commits with the batch, and cache the
        sequence.
        """
        changed = kept.sequence.changed_rows()
        _put(kept.rows, changed)
        is_new = kept.version == 0  # Then Spark lacks also the rows that it began with.
        if is_new or kept.listed + len(changed) > 2 * len(kept.rows) + STATE_ROWS_SPARE:
            changed, kept.listed = list(kept.rows.items()), 0
            self._rows.clear()
        for first in range(0, len(changed), STATE_ROWS_AT_ONCE):
            self._rows.appendList(changed[first : first + STATE_ROWS_AT_ONCE])
        kept.listed += len(changed)
        kept.version += 1
        self._version.update((kept.version,))
        for run_id in list(_kept)[: max(len(_kept) - CACHED_MAX + 1, 0)]:
            del _kept[run_id]
        _kept[self._run_id] = kept


def _put(rows: dict[str, bytes], changed: Iterable[StateRow]) -> None:
    for key, data in changed:
        if data is None:
            rows.pop(key, None)
        else:
            rows[key] = data


def frames(rows: Iterable[Emitted]) -> Iterator[pd.DataFrame]:
    """Yield the rows as frames of bounded size."""
    chunk: list[Emitted] = []
    chunk_bytes = 0
    for row in rows:
        chunk.append(row)
        chunk_bytes += len(row.body or b"")
        if len(chunk) >= CHUNK_ROWS_MAX or chunk_bytes >= CHUNK_BYTES_MAX:
            yield _frame(chunk)
            chunk, chunk_bytes = [], 0
    if chunk:
        yield _frame(chunk)


def _frame(chunk: list[Emitted]) -> pd.DataFrame:
    """Return a frame with Arrow columns, which Spark takes unchanged. Pandas columns would be lists
    of objects.
    """
    columns = zip(_COLUMNS.items(), zip(*chunk, strict=True), strict=True)
    return pd.DataFrame(
        {
            name: pd.array(pa.array(values, kind), pd.ArrowDtype(kind))
            for (name, kind), values in columns
        }
    )
