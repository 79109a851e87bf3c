"""Compact small files: join those that a stream leaves behind.

`spark_jobs.archive.tables.layout` chooses the files. `spark_jobs.archive.tables.delta_tidying` does this for Delta tables.

How the Parquet files of one folder are joined:

1. Remove leftovers: files that were joined before, and partial files.
2. Write the rows of a group of neighbours to one file with a hidden name, and sync it to disk.
3. Rename the file. From now on Equipoise's readers read it instead of the group's files.
4. Remove the group's files.

A crash at any point is safe. Before step 3 nothing has changed; after it the next run continues with step 1. For some milliseconds
between steps 3 and 4, a program that reads all files and ignores the names sees rows twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import orjson
import pyarrow as pa

from equipoise.spark_jobs.archive.tables.arrow import arrow_schema
from equipoise.spark_jobs.archive.tables.layout import covered, day_folder, joined, joins, parse_name, parse_part, resolved
from equipoise.spark_jobs.archive.tables.manifest import Manifest, told
from equipoise.spark_jobs.archive.tables.parquet import ROW_GROUP_ROWS, write_file
from equipoise.spark_jobs.archive.tables.reading import Archive
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS, WRITER_OF, WRITTEN_BY
from equipoise.spark_jobs.archive.tables.sink import locked
from equipoise.spark_jobs.sequence.emitted import Table
from equipoise.spark_jobs.streams.archive_errors import ArchiveDamaged, ArchiveInUse
from equipoise.spark_jobs.streams.options import Screen, TidyOptions

FILE_BYTES_MAX: Final = 64 << 20
"""Largest joined file: 2 million records, which a reader opens once and skips by the offsets in its footer."""

FILES_MAX: Final = 64
"""Files in the current day's folder before a job joins them: a minute of one-second batches."""

BATCHES_BETWEEN: Final = 32
"""Batches between two checks by a job."""

LOCK: Final = "tidy"

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """The result of a compaction: `before` files became `after` files of `size_bytes` in total.

    `damaged` names the first unreadable file. It stays as it is, together with the files of its group.
    """

    before: int = 0
    after: int = 0
    size_bytes: int = 0
    damaged: ArchiveDamaged | None = None

    @property
    def document(self) -> dict[str, int]:
        """The figures, for JSON."""
        return {"before": self.before, "after": self.after, "bytes": self.size_bytes}

    def __add__(self, other: Tidied) -> Tidied:
        return Tidied(
            before=self.before + other.before,
            after=self.after + other.after,
            size_bytes=self.size_bytes + other.size_bytes,
            damaged=self.damaged or other.damaged,
        )


def run_tidy(options: TidyOptions, screen: Screen) -> int:
    """Compact the small files of all tables of an archive. Return 0.

    Raises `NoArchive`, `ArchiveInUse` if another process compacts the archive, and what `tidy_table` raises. Raises `ArchiveDamaged` for an
    unreadable file, after all else is joined.
    """
    archive = Archive(options.archive)
    all_done = dict[Table, Tidied]()
    lock = locked(options.archive, LOCK)
    try:
        for table in SCHEMAS:
            done = all_done[table] = tidy_table(archive, table, files_min=2, last_day_files_min=2)
            if done.before and not options.as_json:
                screen.result(f"{table}: {done.before} files joined into {done.after} of {done.size_bytes / (1 << 20):.1f} MiB")
    finally:
        os.close(lock)
    if options.as_json:
        screen.result(orjson.dumps({str(table): done.document for table, done in all_done.items()}).decode())
    for done in all_done.values():
        if done.damaged is not None:
            raise done.damaged
    screen.note(f"tidied {options.archive}; whether all that is in it is whole, `equipoise spark verify` tells")
    return 0


def tidy_table(
    archive: Archive, table: Table, *, files_min: int, last_day_files_min: int = FILES_MAX, step: Step = lambda _step: None
) -> Tidied:
    """Compact each day of a table with at least `files_min` joinable neighbours; `last_day_files_min` for the last day, which still grows.

    `step` is called with the name of each step. An unreadable file or folder does not keep other days and groups from being joined. Raises
    `ArchiveFull`, `ArchiveUnwritable`, and what `Archive.manifest` raises.
    """
    manifest = archive.manifest(WRITER_OF[table])
    if manifest is None:
        return Tidied()
    try:
        folders = _folders(archive, table, manifest, step)
    except ArchiveDamaged as error:
        return Tidied(damaged=error)
    done = Tidied()
    for folder in folders:
        done += _tidied(folder, archive, table, files_min=last_day_files_min if folder is folders[-1] else files_min, step=step)
    if manifest.store == "delta" and done.damaged is None:
        from equipoise.spark_jobs.archive.tables.delta_tidying import forget  # noqa: PLC0415 - needs an optional extra

        forget(archive, table)
    return done


def tidy_beside(archive: Archive, writer: str, batch: int) -> Tidied:
    """Compact a writer's own tables after every `BATCHES_BETWEEN` batches, unless another process is compacting.

    A damaged file and its group stay as they are, and `equipoise spark verify` reports it: adding rows needs neither. Raises what
    `tidy_table` raises.
    """
    if batch % BATCHES_BETWEEN != BATCHES_BETWEEN - 1:
        return Tidied()
    try:
        lock = locked(archive.path, LOCK)
    except ArchiveInUse:
        return Tidied()
    done = Tidied()
    try:
        for table in WRITTEN_BY[writer]:
            done += tidy_table(archive, table, files_min=2)
    finally:
        os.close(lock)
    return done


class Folder(Protocol):
    """The files of one day of one table: Parquet files, or those of Delta (`spark_jobs.archive.tables.delta_tidying`)."""

    def groups(self, *, size_max: int, files_min: int) -> Sequence[Sequence[Path]]:
        """Return the groups to join. First remove what an earlier compaction left behind. Raises `ArchiveDamaged`."""
        ...

    def join(self, group: Sequence[Path], rows: Iterable[pa.Table]) -> int | None:
        """Replace a group by one file with these `rows`. Return its size in bytes; None if others changed the group."""
        ...


def _folders(archive: Archive, table: Table, manifest: Manifest, step: Step) -> Sequence[Folder]:
    """Return the days of a table in order. Raises `ArchiveDamaged`."""
    if manifest.store == "delta":
        from equipoise.spark_jobs.archive.tables.delta_tidying import delta_folders  # noqa: PLC0415 - needs an optional extra

        return delta_folders(archive, table, manifest, step)
    return [_ParquetFolder(archive=archive, table=table, day=day, manifest=manifest, step=step) for day in archive.days(table)]


def _tidied(folder: Folder, archive: Archive, table: Table, *, files_min: int, step: Step) -> Tidied:
    try:
        groups = folder.groups(size_max=FILE_BYTES_MAX, files_min=files_min)
    except ArchiveDamaged as error:
        return Tidied(damaged=error)
    done = Tidied()
    for group in groups:
        try:
            size_bytes = folder.join(group, _rows(archive, table, group, step))
        except ArchiveDamaged as error:
            done += Tidied(damaged=error)
            continue
        if size_bytes is not None:
            done += Tidied(before=len(group), after=1, size_bytes=size_bytes)
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class _ParquetFolder:
    """Parquet files, which replace others by their names."""

    archive: Archive
    table: Table
    day: str
    manifest: Manifest
    step: Step

    def groups(self, *, size_max: int, files_min: int) -> Sequence[Sequence[Path]]:
        names = self.archive.names(self._path)
        parts = [name for name in names if (part := parse_part(name)) is not None and part.first != part.last]
        self._remove([*parts, *(name.text for name in covered(names))])
        # The last batch may be repeated. That would replace its file next to the one it was joined into.
        safe = {**self.manifest.last_batches, self.manifest.generation: self.manifest.batch - 1}
        files = [(name, (self._path / name.text).stat().st_size) for name in resolved(names, safe)]
        groups = joins(files, size_max=size_max, files_min=files_min, kind=lambda name: name.generation)
        return [[self._path / name.text for name in group] for group in groups]

    def join(self, group: Sequence[Path], rows: Iterable[pa.Table]) -> int | None:
        names = [name for path in group if (name := parse_name(path.name)) is not None]
        into = self._path / joined(names).text
        write_file(self.archive.path, into, rows, arrow_schema(SCHEMAS[self.table]))
        self.step("joined")
        self._remove([name.text for name in names])
        return into.stat().st_size

    @property
    def _path(self) -> Path:
        return self.archive.path / self.table / day_folder(self.day)

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            with told(self.archive.path, self._path / name):
                (self._path / name).unlink(missing_ok=True)
            self.step("removed")


def _rows(archive: Archive, table: Table, files: Sequence[Path], step: Step) -> Iterator[pa.Table]:
    """Yield the rows of some files, in tables of about one row group."""
    columns = list(SCHEMAS[table].names)
    held: list[pa.RecordBatch] = []
    for path in files:
        for batch in archive.file_batches(path, table, columns=columns):
            held.append(batch)
            if sum(each.num_rows for each in held) >= ROW_GROUP_ROWS:
                yield pa.Table.from_batches(held)
                held = []
        step("read")
    if held:
        yield pa.Table.from_batches(held)
    step("written")
