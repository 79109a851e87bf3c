"""Tidying: joins the small files that a stream leaves behind into files that are worth opening.

May live here: `tidy_table` and `run_tidy`, and when a job tidies by itself. Which files are joined is `spark_jobs.archive.tables.layout`'s
choice.

How Parquet files of one folder are joined (Delta tables: `spark_jobs.archive.tables.delta_tidying`)
1. What is still there of files that were joined before is removed, and what was half written.
2. The rows of a group of neighbours are written into one file under a hidden name, and made safe on the disk.
3. That file gets its name: from this moment on our readers take it, and none of those whose batches are in it.
4. Those are removed.

It may die between any two of these, and within each: until 3 nothing has happened, and after it the next one goes on with 1. Between 3
and 4, some milliseconds, a program that reads all files of a folder, and does not know these names, finds rows twice.
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
"""What a joined file takes at most: 2 million records, which a reader opens once, and passes over by the offsets in its foot."""

FILES_MAX: Final = 64
"""Files that the present day gathers in one folder before a job joins them; a minute's worth of batches of a second."""

BATCHES_BETWEEN: Final = 32
"""Batches between two looks of a job at its folders."""

LOCK: Final = "tidy"

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """What came of it: so many files, `before`, became `after` fewer ones, of `size_bytes`.

    `damaged` names the first file that cannot be read: it stays as it is, with those that would be joined with it.
    """

    before: int = 0
    after: int = 0
    size_bytes: int = 0
    damaged: ArchiveDamaged | None = None

    @property
    def document(self) -> dict[str, int]:
        """Its figures, for JSON."""
        return {"before": self.before, "after": self.after, "bytes": self.size_bytes}

    def __add__(self, other: Tidied) -> Tidied:
        return Tidied(
            before=self.before + other.before,
            after=self.after + other.after,
            size_bytes=self.size_bytes + other.size_bytes,
            damaged=self.damaged or other.damaged,
        )


def run_tidy(options: TidyOptions, screen: Screen) -> int:
    """Join the small files of all tables of an archive; 0, because there is nothing that anybody should look at.

    Raises `NoArchive`, `ArchiveInUse` while another process tidies it, what `tidy_table` raises, and, once all else is joined,
    `ArchiveDamaged` for a file that cannot be read.
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
    """Join the small files of each day of one table, if it has at least `files_min` neighbours; more of its last day, which goes on.

    `step` is told what is done. A file that cannot be read keeps no other day, and no other group of its own, from being joined, nor
    does a folder. Raises `ArchiveFull`, `ArchiveUnwritable`, and what `Archive.manifest` raises.
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
        from equipoise.spark_jobs.archive.tables.delta_tidying import forget  # noqa: PLC0415 - needs an extra that few have

        forget(archive, table)
    return done


def tidy_beside(archive: Archive, writer: str, batch: int) -> Tidied:
    """What a job does of itself after `batch`: it tidies what it writes, once in so many batches, unless another process tidies.

    A damaged file stays where it is, with what would be joined to it, for `equipoise spark verify` to name: to add rows needs none of
    them. Raises what `tidy_table` raises.
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
    """The files of one day of one table: those of the archive itself, or those of Delta (`spark_jobs.archive.tables.delta_tidying`)."""

    def groups(self, *, size_max: int, files_min: int) -> Sequence[Sequence[Path]]:
        """What to join, each group into one file; first it removes what an earlier tidying left behind. Raises `ArchiveDamaged`."""
        ...

    def join(self, group: Sequence[Path], rows: Iterable[pa.Table]) -> int | None:
        """Put one file with these `rows` in the place of a group, and return its size in bytes; None if others changed the group."""
        ...


def _folders(archive: Archive, table: Table, manifest: Manifest, step: Step) -> Sequence[Folder]:
    """The days of a table, rising. Raises `ArchiveDamaged`."""
    if manifest.store == "delta":
        from equipoise.spark_jobs.archive.tables.delta_tidying import delta_folders  # noqa: PLC0415 - needs an extra that few have

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
    """Files that their names put into the place of others."""

    archive: Archive
    table: Table
    day: str
    manifest: Manifest
    step: Step

    def groups(self, *, size_max: int, files_min: int) -> Sequence[Sequence[Path]]:
        names = self.archive.names(self._path)
        parts = [name for name in names if (part := parse_part(name)) is not None and part.first != part.last]
        self._remove([*parts, *(name.text for name in covered(names))])
        # The last batch may be done again, which would replace its file beside one that it has been joined into.
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
    """The rows of some files, about as many at a time as fill a group of rows."""
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
