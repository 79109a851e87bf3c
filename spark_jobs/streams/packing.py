"""Pack arrivals into few rows, each an Arrow batch, for the one operator that takes all of them.

For single rows Spark's writing, sorting, grouping and rebuilding costs more than the folding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from equipoise.spark_jobs.sequence.arrivals import Arrival, Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
