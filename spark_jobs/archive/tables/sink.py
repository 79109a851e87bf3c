"""The sink: what Spark's driver does with the rows of one batch, so that each row is in the archive exactly once.

May live here: `Sink`, its lock, its generations, and the order of its steps.

How a batch is written
1. Its rows are cut by table and day, and each part becomes one file, named by generation and batch. Safe on the disk, but no reader
   takes them in, because
2. only then ARCHIVE/WRITER.json says that the batch is finished, and where each source goes on.
3. When this returns Spark notes in its checkpoint that the batch is done.

A process that dies between any two of these does the batch again when it starts: the checkpoint says which entries are in it, so the
same names get the same rows; after 2 it is finished, and stays as it is. A checkpoint that is gone ends the generation: what was not
finished is removed, and the next generation goes on at the positions that ARCHIVE/WRITER.json tells.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc

from equipoise.spark_jobs.archive.tables.arrow import base_in, by_table
from equipoise.spark_jobs.archive.tables.manifest import Manifest, Store, manifest_path, read_manifest, told, write_manifest
from equipoise.spark_jobs.archive.tables.parquet import ParquetStore
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS, WRITTEN_BY, TableSchema
from equipoise.spark_jobs.sequence.arrivals import Source
from equipoise.spark_jobs.sources.beginnings import FILE as BEGINNING
from equipoise.spark_jobs.streams.archive_errors import ArchiveDamaged, ArchiveInUse, ArchiveOfAnotherLog, CheckpointBehind, OtherStore

CHECKPOINTS: Final = ".checkpoints"

_SIGNS: Final = ("metadata", BEGINNING)
"""Files of which one is there before the first batch of a checkpoint begins: Spark's own, and ours."""


class Keeper(Protocol):
    """Where rows go: `spark_jobs.archive.tables.parquet.ParquetStore`, or `spark_jobs.archive.tables.delta.DeltaStore`."""

    def put(self, schema: TableSchema, table: pa.Table, *, generation: int, batch: int) -> None:
        """Keep the rows of one table of one batch, once, however often this is called. Raises `ArchiveFull`, `ArchiveUnwritable`."""
        ...

    def clear(self, writer: str, *, generation: int, after: int) -> None:
        """Forget what batches of this generation above `after` have put."""
        ...


class Sink:
    """Writes the tables of one writer. One at a time has them; it is a context manager, which gives them back."""

    def __init__(self, archive: Path, *, manifest: Manifest, keeper: Keeper, held: ExitStack, is_new: bool) -> None:
        """As `open_sink` makes it."""
        self.archive = archive
        self.manifest = manifest
        self.is_new = is_new
        """Whether this generation begins with this process: its query has no checkpoint yet."""
        self.rows_written = 0
        self._keeper = keeper
        self._held = held

    @property
    def checkpoint(self) -> Path:
        """Where the query of this generation keeps its checkpoint."""
        return _checkpoint(self.archive, self.manifest)

    def write(self, batch: int, rows: pa.Table) -> None:
        """Write the rows (`spark_jobs.sequence.emitted.EMITTED_DDL`) of a batch, unless it is finished; again, if it was begun before.

        Raises `CheckpointBehind` for a batch before the last one, and for the last one of Delta tables if there is more in it now,
        `ArchiveFull`, `ArchiveUnwritable`.
        """
        before = self.manifest
        base = base_in(rows, before.base)
        positions = _reached(rows, before, base)
        counts = _counted(rows, before.writer)
        is_finished = batch == before.batch
        if is_finished and positions == before.positions and not _has_more(counts, before):
            # It is whole already. Done again it may be less: what is archived the channel may forget, and has since the process died.
            return
        # One that has more in it was planned anew, which a power cut makes Spark do. Files are replaced; what Delta has added stays added.
        if batch < before.batch or (is_finished and before.store == "delta"):
            where, last = str(self.checkpoint), before.batch
            raise CheckpointBehind(archive=str(self.archive), writer=before.writer, checkpoint=where, batch=batch, finished=last)
        for schema, table in by_table(rows, base=base):
            if schema.table in WRITTEN_BY[before.writer]:
                self._keeper.put(schema, table, generation=before.generation, batch=batch)
                self.rows_written += table.num_rows
        after = replace(before, batch=batch, base=base, positions=positions, batch_rows=counts)
        if after != before:
            write_manifest(self.archive, after)
            self.manifest = after

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._held.close()


def open_sink(archive: Path, *, writer: str, log: str, url: str, store: Store = "parquet", keeper: Keeper | None = None) -> Sink:
    """The sink of `writer` (`archive` or `audit`) into the folder `archive`, which is made; `log` is the identity of the log.

    Without a checkpoint that goes on from what is written a new generation begins. Raises `ArchiveInUse`, `ArchiveOfAnotherLog`,
    `ArchiveTooNew`, `ArchiveDamaged`, `OtherStore`, `ArchiveFull` and `ArchiveUnwritable`.
    """
    with ExitStack() as stack:
        with told(archive, archive):
            archive.mkdir(parents=True, exist_ok=True)
        stack.callback(os.close, locked(archive, writer))
        found = read_manifest(archive, writer)
        if found is None:
            _check_empty(archive, writer)
        before = found or Manifest(writer=writer, log=log, url=url, store=store)
        if before.log != log:
            raise ArchiveOfAnotherLog(archive=str(archive), expected=log, found=before.log)
        if before.store != store:
            raise OtherStore(archive=str(archive), found=before.store, asked=store)
        is_new = not any((_checkpoint(archive, before) / name).exists() for name in _SIGNS)
        keeper = keeper or ParquetStore(archive)
        manifest = replace(before, url=url)
        if is_new:
            keeper.clear(writer, generation=before.generation, after=before.batch)
            if found is not None:
                # A number is never taken again, not even where nothing was finished: a transaction of Delta outlives what it added.
                manifest = replace(manifest, generation=before.generation + 1, batch=-1, batch_rows=None, finished=before.last_batches)
        write_manifest(archive, manifest)
        return Sink(archive, manifest=manifest, keeper=keeper, held=stack.pop_all(), is_new=is_new)


def locked(archive: Path, who: str) -> int:
    """The descriptor of a file that this process now has for itself, until it closes it or ends. Raises `ArchiveInUse`."""
    path = archive / f".{who}.lock"
    with told(archive, path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ArchiveInUse(archive=str(archive), who=who) from error
    return descriptor


def _reached(rows: pa.Table, before: Manifest, base: int) -> dict[str, int]:
    """Where each source goes on once these rows are written."""
    positions = dict(before.positions)
    for schema in (SCHEMAS[table] for table in WRITTEN_BY[before.writer]):
        last = pc.max(rows.filter(pc.equal(rows["table"], str(schema.table)))["offset"]).as_py()
        if last is not None:
            reached = last + 1 - (base if schema.source is Source.CHANNEL else 0)
            positions[schema.source] = max(reached, positions.get(schema.source, 0))
    return positions


def _counted(rows: pa.Table, writer: str) -> dict[str, int]:
    """How many rows of each of its tables a writer is given."""
    found = pc.value_counts(rows["table"])
    counts = dict(zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True))
    return {str(table): counts[table] for table in WRITTEN_BY[writer] if table in counts}


def _has_more(counts: Mapping[str, int], before: Manifest) -> bool:
    """Whether a batch has more rows than when it was finished, and of no table fewer, as it has where the channel forgot some.

    Positions do not tell of findings: of those at one offset, or before it, some may only come with what else is in the batch.
    """
    finished = before.batch_rows
    if finished is None or any(counts.get(table, 0) < count for table, count in finished.items()):
        return False
    return counts != finished


def _checkpoint(archive: Path, manifest: Manifest) -> Path:
    return archive / CHECKPOINTS / manifest.writer / f"g{manifest.generation:04}"


def _check_empty(archive: Path, writer: str) -> None:
    """Tables whose description is gone belong to nobody knows what."""
    found = next((table for table in WRITTEN_BY[writer] if (archive / table).exists()), None)
    if found is not None:
        problem = f"it has a table {found}, and no {manifest_path(archive, writer).name} that says of which log"
        raise ArchiveDamaged(archive=str(archive), problem=problem)
