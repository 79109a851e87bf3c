"""Fold the whole channel in Spark's `transformWithState`: the operator of each streaming job.

The state:

1. It is a list of rows (key, data), to which each batch appends its changes; the last row of a key
   counts. A list costs one call per batch, a map one per key. It is rewritten when it is more than
   twice as long as necessary.
2. A worker caches its fold under the number of the next batch. It uses the cache only if the
   state has the same number: not after a failed attempt, a faster worker or a restart.

Arrivals are packed into few rows, each an Arrow batch, for the one operator that takes all of them.
For single rows Spark's writing, sorting, grouping and rebuilding costs more than the folding.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from uuid import uuid4

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import feather
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from equipoise.spark_jobs.rules.memory import StateRow, put_rows
from equipoise.spark_jobs.sequence.rows import (
    EMITTED_DDL,
    Arrival,
    Emitted,
    Source,
    Table,
    row_beside,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import TimerValues

PACK_BYTES_MAX: Final = 8 << 20
"""Largest pack, unless a single row is larger. Spark holds several rows in memory, each in one
piece."""

_PACKS: Final = pa.schema([("pack", pa.binary())])
_PACKS_DDL: Final = "pack BINARY"


def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield each batch of arrivals as one pack, or as several if it is large."""
    for batch in batches:
        for part in _parts(batch):
            stream = pa.BufferOutputStream()
            with pa.ipc.new_stream(stream, part.schema) as writer:
                writer.write_batch(part)
            yield pa.record_batch([[stream.getvalue().to_pybytes()]], schema=_PACKS)


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

CACHED_MAX: Final = 4
"""Folds that one worker caches: those of this query, and of an ended one until the next arrive."""

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


def folded(frame: DataFrame, processor: FoldProcessor, *, keys: Sequence[int] = (0,)) -> DataFrame:
    """Return the rows (`EMITTED_DDL`) that the folds of `processor`, one for each of `keys`, make
    of a streaming frame of arrivals (`FRAME_DDL`). Each fold gets all of them.
    """
    packs = frame.mapInArrow(pack, _PACKS_DDL)
    all_keys = F.explode(F.array(*map(F.lit, keys)))
    return with_time(
        packs.select(all_keys.alias("fold"), "pack")
        .groupBy("fold")
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
        "behind_ms",
    )


class Fold(Protocol):
    """What folds the channel in order: `spark_jobs.sequence.sequence.Sequence` is one."""

    def feed(self, arrivals: Iterable[Arrival]) -> Iterator[Emitted]:
        """Yield the rows of one batch."""
        ...

    def changed_rows(self) -> list[StateRow]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        ...

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Continue from the state in these rows."""
        ...


@dataclass(slots=True, kw_only=True)
class Kept:
    """A cached fold: the next batch (`version`), all rows of its state, and the length of the
    list in Spark.
    """

    version: int
    fold: Fold
    rows: dict[str, bytes]
    listed: int


_kept: dict[tuple[str, int], Kept] = {}


class FoldProcessor(StatefulProcessor):
    """Run folds as a Spark processor, one for each key of the rows, made by `make`. After the rows
    of a batch come the rows of state that it changed (`Table.STATE`).

    `begin` is the file with the state to begin with, for a new checkpoint (`write_state`). All
    workers see it.
    """

    def __init__(self, make: Callable[[int], Fold], begin: Path) -> None:
        self._make = make
        self._begin = begin
        self._run_id = str(uuid4())  # Different at each start of the query.

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self._version = handle.getValueState("version", "version BIGINT")
        self._rows = handle.getListState("rows", "key STRING, data BINARY")

    # Spark's names.
    def handleInputRows(  # noqa: N802
        self,
        key: tuple[int],
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        """Feed one batch and save the state."""
        kept = self._take(key[0])
        # A batch makes a million values without cycles. Searching for cycles costs a fifth of its
        # time.
        gc.disable()
        try:
            arrivals = unpacked(pack for frame in rows for pack in frame["pack"])
            yield from frames(kept.fold.feed(arrivals))
        finally:
            gc.enable()
        changed = kept.fold.changed_rows()
        self._keep(key[0], kept, changed)
        yield from frames(row_beside(Table.STATE, name, data) for name, data in changed)

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def _take(self, key: int) -> Kept:
        """Return the fold after the last committed batch."""
        # Removed from the cache, because a failed attempt leaves it in an unusable state.
        kept = _kept.pop((self._run_id, key), None)
        committed = self._version.get() if self._version.exists() else None
        version: int = 0 if committed is None else committed[0]
        if version and kept is not None and kept.version == version:
            return kept
        listed: list[StateRow] = [(name, data) for name, data in self._rows.get()]
        rows: dict[str, bytes] = {}
        put_rows(rows, listed if version else read_state(self._begin))
        fold = self._make(key)
        fold.restore(rows)
        return Kept(version=version, fold=fold, rows=rows, listed=len(listed))

    def _keep(self, key: int, kept: Kept, changed: list[StateRow]) -> None:
        """Write this batch's changes, which Spark commits with the batch, and cache the
        fold.
        """
        put_rows(kept.rows, changed)
        is_new = kept.version == 0  # Then Spark lacks also the rows that it began with.
        if is_new or kept.listed + len(changed) > 2 * len(kept.rows) + STATE_ROWS_SPARE:
            changed, kept.listed = list(kept.rows.items()), 0
            self._rows.clear()
        for first in range(0, len(changed), STATE_ROWS_AT_ONCE):
            self._rows.appendList(changed[first : first + STATE_ROWS_AT_ONCE])
        kept.listed += len(changed)
        kept.version += 1
        self._version.update((kept.version,))
        for name in list(_kept)[: max(len(_kept) - CACHED_MAX + 1, 0)]:
            del _kept[name]
        _kept[self._run_id, key] = kept


def write_state(path: Path, rows: Mapping[str, bytes]) -> None:
    """Write the rows of a state into a file. Raises `OSError`."""
    feather.write_feather(pa.table({"key": list(rows), "data": list(rows.values())}), path)


def read_state(path: Path) -> Iterable[StateRow]:
    """Return the rows that `write_state` wrote."""
    found = feather.read_table(path)
    return zip(found["key"].to_pylist(), found["data"].to_pylist(), strict=True)


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
