"""Compact small files: join those that a stream leaves behind.

`spark_jobs.archive.tables.layout` chooses the files.

How the files of one folder are joined:

1. Remove leftovers: files that were joined before, and partial files.
2. Write the rows of a group of neighbours to one file with a hidden name, and sync it to disk.
3. Rename the file. From now on Equipoise's readers read it instead of the group's files.
4. Remove the group's files.

A crash at any point is safe. Before step 3 nothing has changed; after it the next run continues
with step 1. For some milliseconds between steps 3 and 4, a program that reads all files and ignores
the names sees rows twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa

from equipoise.spark_jobs.archive.tables.arrow import arrow_schema
from equipoise.spark_jobs.archive.tables.layout import (
    FileName,
    covered,
    day_folder,
    joined,
    joins,
    parse_part,
    resolved,
)
from equipoise.spark_jobs.archive.tables.manifest import Manifest, write_errors
from equipoise.spark_jobs.archive.tables.parquet import ROW_GROUP_ROWS, write_file
from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS, WRITER_OF, WRITTEN_BY
from equipoise.spark_jobs.archive.tables.sink import locked
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.errors import ArchiveDamaged, ArchiveInUse
from equipoise.spark_jobs.streams.options import CompactOptions, Screen

FILE_BYTES_MAX: Final = 64 << 20
"""Largest joined file: 2 million records, which a reader opens once and skips by the offsets in its
footer."""

FILES_MAX: Final = 64
"""Files in the current day's folder before a job joins them: a minute of one-second batches."""

BATCHES_BETWEEN: Final = 32
"""Batches between two checks by a job."""

LOCK: Final = "compact"

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The result of a compaction: `before` files became `after` files of `size_bytes` in total.

    `damaged` names the first unreadable file. It stays as it is, together with the files of its
    group.
    """

    before: int = 0
    after: int = 0
    size_bytes: int = 0
    damaged: ArchiveDamaged | None = None

    @property
    def document(self) -> dict[str, int]:
        """The figures, for JSON."""
        return {"before": self.before, "after": self.after, "bytes": self.size_bytes}

    def __add__(self, other: Joined) -> Joined:
        return Joined(
            before=self.before + other.before,
            after=self.after + other.after,
            size_bytes=self.size_bytes + other.size_bytes,
            damaged=self.damaged or other.damaged,
        )


def run_compact(options: CompactOptions, screen: Screen) -> int:
    """Compact the small files of all tables of an archive. Return 0.

    Raises `NotFound`, `ArchiveInUse` if another process compacts the archive, and what
    `compact_table` raises. After everything else is joined, raises `ArchiveDamaged` for an
    unreadable file.
    """
    archive = Archive(options.archive)
    all_done = dict[Table, Joined]()
    lock = locked(options.archive, LOCK)
    try:
        for table in SCHEMAS:
            done = all_done[table] = compact_table(
                archive, table, files_min=2, last_day_files_min=2
            )
            if done.before and not options.as_json:
                screen.result(
                    f"{table}: joined {done.before} files into {done.after},"
                    f" {done.size_bytes / (1 << 20):.1f} MiB in total"
                )
    finally:
        os.close(lock)
    if options.as_json:
        screen.result(
            orjson.dumps({str(table): done.document for table, done in all_done.items()}).decode()
        )
    for done in all_done.values():
        if done.damaged is not None:
            raise done.damaged
    screen.note(f"compacted {options.archive}; run `equipoise spark verify` to check its contents")
    return 0


def compact_table(
    archive: Archive,
    table: Table,
    *,
    files_min: int,
    last_day_files_min: int = FILES_MAX,
    step: Step = lambda _step: None,
) -> Joined:
    """Compact each day of a table with at least `files_min` joinable neighbours;
    `last_day_files_min` for the last day, which still grows.

    `step` is called with the name of each step. An unreadable file or folder does not keep other
    days and groups from being joined. Raises `OperatorError` if the archive cannot be written, and
    what `Archive.manifest` raises.
    """
    manifest = archive.manifest(WRITER_OF[table])
    if manifest is None:
        return Joined()
    try:
        days = archive.days(table)
    except ArchiveDamaged as error:
        return Joined(damaged=error)
    done = Joined()
    for day in days:
        folder = _Folder(archive=archive, table=table, day=day, manifest=manifest, step=step)
        done += folder.compact(files_min=last_day_files_min if day == days[-1] else files_min)
    return done


def compact_beside(archive: Archive, writer: str, batch: int) -> Joined:
    """Compact a writer's own tables after every `BATCHES_BETWEEN` batches, unless another process
    is compacting.

    A damaged file and its group stay as they are, and `equipoise spark verify` reports it: adding
    rows needs neither. Raises what `compact_table` raises.
    """
    if batch % BATCHES_BETWEEN != BATCHES_BETWEEN - 1:
        return Joined()
    try:
        lock = locked(archive.path, LOCK)
    except ArchiveInUse:
        return Joined()
    done = Joined()
    try:
        for table in WRITTEN_BY[writer]:
            done += compact_table(archive, table, files_min=2)
    finally:
        os.close(lock)
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """The files of one day of one table."""

    archive: Archive
    table: Table
    day: str
    manifest: Manifest
    step: Step

    def compact(self, *, files_min: int) -> Joined:
        """Join the groups of this folder. First remove what an earlier compaction left behind."""
        try:
            groups = self._groups(files_min=files_min)
        except ArchiveDamaged as error:
            return Joined(damaged=error)
        done = Joined()
        for group in groups:
            try:
                size_bytes = self._join(group)
            except ArchiveDamaged as error:
                done += Joined(damaged=error)
            else:
                done += Joined(before=len(group), after=1, size_bytes=size_bytes)
        return done

    def _groups(self, *, files_min: int) -> Sequence[Sequence[FileName]]:
        names = self.archive.names(self._path)
        parts = [
            name
            for name in names
            if (part := parse_part(name)) is not None and part.first != part.last
        ]
        self._remove([*parts, *(name.text for name in covered(names))])
        # The last batch may be repeated. That would replace its file next to the one it was joined
        # into.
        safe = {**self.manifest.last_batches, self.manifest.generation: self.manifest.batch - 1}
        files = [(name, (self._path / name.text).stat().st_size) for name in resolved(names, safe)]
        return joins(files, size_max=FILE_BYTES_MAX, files_min=files_min)

    def _join(self, group: Sequence[FileName]) -> int:
        """Replace a group by one file. Return its size in bytes."""
        into = self._path / joined(group).text
        write_file(self.archive.path, into, self._rows(group), arrow_schema(SCHEMAS[self.table]))
        self.step("joined")
        self._remove([name.text for name in group])
        return into.stat().st_size

    def _rows(self, group: Sequence[FileName]) -> Iterator[pa.Table]:
        """Yield the rows of some files, in tables of about one row group."""
        columns = SCHEMAS[self.table].names
        batches: list[pa.RecordBatch] = []
        for name in group:
            for batch in self.archive.file_batches(
                self._path / name.text, self.table, columns=columns
            ):
                batches.append(batch)
                if sum(each.num_rows for each in batches) >= ROW_GROUP_ROWS:
                    yield pa.Table.from_batches(batches)
                    batches = []
            self.step("read")
        if batches:
            yield pa.Table.from_batches(batches)
        self.step("written")

    @property
    def _path(self) -> Path:
        return self.archive.path / self.table / day_folder(self.day)

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            with write_errors(self.archive.path, self._path / name):
                (self._path / name).unlink(missing_ok=True)
            self.step("removed")
