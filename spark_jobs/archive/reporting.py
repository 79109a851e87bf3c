"""Format what an archive job says: the texts of both hosts."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.spark_jobs.archive.archiving import Archiving
from equipoise.spark_jobs.sequence.rows import Table


def release_line(key: str, offset: int, *, as_json: bool) -> str:
    """Say that a hold is released."""
    if as_json:
        return orjson.dumps({"offset": offset, "policy": key}).decode()
    return (
        f"accepted at offset {offset}: released the hold {key}; compaction no longer waits for that"
        " archive"
    )


def start_line(log: str, archiving: Archiving) -> str:
    """Say what is archived, and from where on."""
    what = f"archiving {log} in {archiving.writer.place}"
    return f"{what}, from {'the beginning of the log' if archiving.is_new else 'where it stopped'}"


def gap_lines(rows: pa.Table) -> Iterator[str]:
    """Name the offsets that the log had lost before they were archived, among the rows of a
    batch.
    """
    for body in rows.filter(pc.equal(rows["table"], str(Table.GAPS)))["body"].to_pylist():
        gap = orjson.loads(body)
        yield (
            f"lost: the log had removed the offsets {gap['first_offset']} to {gap['last_offset']}"
            " before they were archived; the archive continues with the state after them; with"
            " --hold the log keeps them"
        )


def summary(entries: int, archiving: Archiving) -> str:
    """Say what a run did."""
    reached = archiving.reached
    holds = (
        "no records of the channel yet" if reached < 0 else f"the channel up to offset {reached}"
    )
    return (
        f"read {entries:,} entries and wrote {archiving.writer.rows_written:,} rows; the archive"
        f" holds {holds}"
    )
