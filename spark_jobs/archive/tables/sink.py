"""Write each batch of rows to the archive exactly once.

How a batch is written:

1. Split its rows by table and day. Write each part to a file named by generation and batch. Readers
   still ignore these files.
2. Write ARCHIVE/WRITER.json: the batch is finished, and each source continues at the given
   position.
3. Return. Spark then marks the batch as done in its checkpoint.

After a crash between these steps, the next process repeats the batch. The checkpoint names the
batch's entries, so the same file names get the same rows. After step 2 a repeated batch changes
nothing. A lost checkpoint ends the generation: unfinished files are removed, and the next
generation continues at the positions in ARCHIVE/WRITER.json.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from equipoise.channel.core.errors import OperatorError
from equipoise.spark_jobs.archive.tables.arrow import base_in, by_day, by_table
from equipoise.spark_jobs.archive.tables.layout import FileName, day_folder, parse_name, parse_part
from equipoise.spark_jobs.archive.tables.manifest import (
    Manifest,
    manifest_path,
    read_manifest,
    write_errors,
    write_manifest,
)
from equipoise.spark_jobs.archive.tables.parquet import write_file
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS, WRITTEN_BY, TableSchema
from equipoise.spark_jobs.sequence.rows import Source
from equipoise.spark_jobs.sources.beginnings import FILE as BEGINNING
from equipoise.spark_jobs.streams.errors import WITHOUT_CHECKPOINT, ArchiveDamaged, ArchiveInUse

CHECKPOINTS: Final = ".checkpoints"

_SIGNS: Final = ("metadata", BEGINNING)
"""Files, by Spark and by Equipoise. One of them exists before the first batch of a checkpoint
begins."""


class Sink:
    """Write the tables of one writer, with exclusive access. As a context manager it releases that
    access.
    """

    def __init__(self, archive: Path, *, manifest: Manifest, held: ExitStack, is_new: bool) -> None:
        """Build a sink; see `open_sink`."""
        self.archive = archive
        self.manifest = manifest
        self.is_new = is_new
        """Whether this process begins the generation: its query has no checkpoint yet."""
        self.rows_written = 0
        self._held = held

    @property
    def checkpoint(self) -> Path:
        """The checkpoint folder of this generation's query."""
        return _checkpoint(self.archive, self.manifest)

    def write(self, batch: int, rows: pa.Table) -> None:
        """Write the rows (`spark_jobs.sequence.rows.EMITTED_DDL`) of a batch, unless it is
        finished.

        Raises `OperatorError` if the archive cannot be written, and for a batch before the last
        one.
        """
        before = self.manifest
        base = base_in(rows, before.base)
        positions = _reached(rows, before, base)
        counts = _counted(rows, before.writer)
        if (
            batch == before.batch
            and positions == before.positions
            and not _has_more(counts, before)
        ):
            # The batch is complete. Repeated it may be smaller, because the channel may have
            # forgotten archived entries.
            return
        # After a power cut Spark may plan the last batch anew with more entries. Its files are then
        # replaced.
        if batch < before.batch:
            raise OperatorError(
                f"Spark's checkpoint {self.checkpoint} continues with batch {batch}, but the"
                f" archive {self.archive} has all up to batch {before.batch}: the checkpoint lost"
                " its newest batches, as in a power cut, or is an older copy; the archive is"
                " whole, and nothing was written; remove that folder and start the job again:"
                f" {WITHOUT_CHECKPOINT[before.writer]}"
            )
        for schema, table in by_table(rows, base=base):
            if schema.table in WRITTEN_BY[before.writer]:
                _write_batch(self.archive, schema, table, generation=before.generation, batch=batch)
                self.rows_written += table.num_rows
        after = replace(before, batch=batch, base=base, positions=positions, batch_rows=counts)
        if after != before:
            write_manifest(self.archive, after)
            self.manifest = after

    def replace(self, parts: Iterable[pa.Table]) -> None:
        """Write rows in place of all that this writer has written. Until all are there, readers see
        the older ones.

        Raises `OperatorError` if the archive cannot be written.
        """
        batch = -1
        for batch, rows in enumerate(parts):
            for schema, table in by_table(rows, base=0):
                _write_batch(
                    self.archive, schema, table, generation=self.manifest.generation, batch=batch
                )
                self.rows_written += table.num_rows
        self.manifest = replace(self.manifest, batch=batch, finished={})
        write_manifest(self.archive, self.manifest)
        for path in [
            path
            for table in WRITTEN_BY[self.manifest.writer]
            for path in (self.archive / table).glob("day=*/*")
        ]:
            name = parse_name(path.name)
            if name is not None and name.generation < self.manifest.generation:
                with write_errors(self.archive, path):
                    path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()


def open_sink(archive: Path, *, writer: str, log: str, url: str) -> Sink:
    """Open the sink of `writer` (`archive` or `audit`) in the folder `archive`, and create the
    folder. `log` is the log's identity.

    A new generation begins unless a checkpoint continues what is written. Raises `ArchiveInUse` and
    `ArchiveDamaged`, and `OperatorError` for an archive of another log, of a newer version or
    without write access.
    """
    with ExitStack() as stack:
        with write_errors(archive, archive):
            archive.mkdir(parents=True, exist_ok=True)
        stack.callback(os.close, locked(archive, writer))
        found = read_manifest(archive, writer)
        if found is None:
            _check_empty(archive, writer)
        before = found or Manifest(writer=writer, log=log, url=url)
        if before.log != log:
            raise OperatorError(
                f"the archive {archive} belongs to the log {before.log}, not to {log}; name another"
                " folder with --archive"
            )
        is_new = not any((_checkpoint(archive, before) / name).exists() for name in _SIGNS)
        manifest = replace(before, url=url)
        if is_new:
            _remove_unfinished(archive, before)
            if found is not None:
                # A new number even without a finished batch: remains of the lost checkpoint then
                # have a folder of their own.
                manifest = replace(
                    manifest,
                    generation=before.generation + 1,
                    batch=-1,
                    batch_rows=None,
                    finished=before.last_batches,
                )
        write_manifest(archive, manifest)
        return Sink(archive, manifest=manifest, held=stack.pop_all(), is_new=is_new)


def locked(archive: Path, who: str) -> int:
    """Return the descriptor of a lock file, locked until it is closed or the process ends. Raises
    `ArchiveInUse`.
    """
    path = archive / f".{who}.lock"
    with write_errors(archive, path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ArchiveInUse(archive=str(archive), who=who) from error
    return descriptor


def _write_batch(
    archive: Path, schema: TableSchema, table: pa.Table, *, generation: int, batch: int
) -> None:
    """Write the rows of one table of one batch. A repeated batch replaces its files. Raises as
    `write_file`.
    """
    name = FileName(generation=generation, first=batch, last=batch)
    for day, rows in by_day(table):
        write_file(
            archive, archive / schema.table / day_folder(day) / name.text, (rows,), table.schema
        )


def _remove_unfinished(archive: Path, manifest: Manifest) -> None:
    """Remove the unfinished batches of the current generation, and the partial files of single
    batches.
    """
    for path in [
        path for table in WRITTEN_BY[manifest.writer] for path in (archive / table).glob("day=*/*")
    ]:
        name, part = parse_name(path.name), parse_part(path.name)
        is_unfinished = (
            name is not None
            and name.generation == manifest.generation
            and name.last > manifest.batch
        )
        # A partial file of several batches may belong to a running compaction.
        if is_unfinished or (part is not None and part.first == part.last):
            with write_errors(archive, path):
                path.unlink(missing_ok=True)


def _reached(rows: pa.Table, before: Manifest, base: int) -> dict[str, int]:
    """Return the position at which each source continues after these rows."""
    positions = dict(before.positions)
    for schema in (SCHEMAS[table] for table in WRITTEN_BY[before.writer]):
        last = pc.max(rows.filter(pc.equal(rows["table"], str(schema.table)))["offset"]).as_py()
        if last is not None:
            reached = last + 1 - (base if schema.source is Source.CHANNEL else 0)
            positions[schema.source] = max(reached, positions.get(schema.source, 0))
    return positions


def _counted(rows: pa.Table, writer: str) -> dict[str, int]:
    """Count the rows of each of a writer's tables."""
    found = pc.value_counts(rows["table"])
    counts = dict(
        zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)
    )
    return {str(table): counts[table] for table in WRITTEN_BY[writer] if table in counts}


def _has_more(counts: Mapping[str, int], before: Manifest) -> bool:
    """Return whether a batch has more rows than when it was finished, and no table has fewer (the
    channel may have forgotten some).

    Positions alone do not show new findings: other entries of the batch may cause findings at the
    same or an earlier offset.
    """
    finished = before.batch_rows
    if finished is None or any(counts.get(table, 0) < count for table, count in finished.items()):
        return False
    return counts != finished


def _checkpoint(archive: Path, manifest: Manifest) -> Path:
    return archive / CHECKPOINTS / manifest.writer / f"g{manifest.generation:04}"


def _check_empty(archive: Path, writer: str) -> None:
    """Raise `ArchiveDamaged` if tables exist without a manifest: their log is unknown."""
    found = next((table for table in WRITTEN_BY[writer] if (archive / table).exists()), None)
    if found is not None:
        problem = (
            f"it has a table {found}, but no {manifest_path(archive, writer).name}, which names"
            " its log"
        )
        raise ArchiveDamaged(archive=str(archive), problem=problem)
