"""Tidying: joins the small files that a stream leaves behind into files that are worth opening.

May live here: `tidy_table` and `run_tidy`, and when a job tidies by itself. Which files are joined is `spark_jobs.tables.layout`'s choice.

How files of one folder are joined
1. What is still there of files that were joined before is removed, and what was half written.
2. The rows of a group of neighbours are written into one file under a hidden name, and made safe on the disk.
3. That file gets its name: from this moment on our readers take it, and none of those whose batches are in it.
4. Those are removed.

It may die between any two of these, and within each: until 3 nothing has happened, and after it the next one goes on with 1. Between 3
and 4, some milliseconds, a program that reads all files of a folder, and does not know these names, finds rows twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from spark_jobs.emitted import Table
from spark_jobs.options import Screen, TidyOptions
from spark_jobs.tables.arrow import arrow_schema
from spark_jobs.tables.errors import ArchiveDamaged, ArchiveInUse
from spark_jobs.tables.layout import covered, day_folder, joined, joins, parse_part, resolved
from spark_jobs.tables.manifest import Manifest, told
from spark_jobs.tables.parquet import ROW_GROUP_ROWS, write_file
from spark_jobs.tables.reading import Archive
from spark_jobs.tables.schema import SCHEMAS, WRITER_OF, WRITTEN_BY
from spark_jobs.tables.sink import locked

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
    damaged: ArchiveDamaged | None = None
    lock = locked(options.archive, LOCK)
    try:
        for table in SCHEMAS:
            done = tidy_table(archive, table, files_min=2, last_day_files_min=2)
            damaged = damaged or done.damaged
            if done.before:
                screen.result(f"{table}: {done.before} files joined into {done.after} of {done.size_bytes / (1 << 20):.1f} MiB")
    finally:
        os.close(lock)
    if damaged is not None:
        raise damaged
    screen.note(f"the archive {options.archive} is tidy")
    return 0


def tidy_table(
    archive: Archive, table: Table, *, files_min: int, last_day_files_min: int = FILES_MAX, step: Step = lambda _step: None
) -> Tidied:
    """Join the small files of each day of one table, if it has at least `files_min` neighbours; more of its last day, which goes on.

    Delta tables are left as they are: Delta has ways of its own. `step` is told what is done. A file that cannot be read keeps no
    other day, and no other group of its own, from being joined, nor does a folder. Raises `ArchiveFull`, `ArchiveUnwritable`, and what
    `Archive.manifest` and `Archive.days` raise.
    """
    manifest = archive.manifest(WRITER_OF[table])
    done, days = Tidied(), archive.days(table)
    if manifest is None or manifest.store != "parquet":
        return done
    for day in days:
        least = last_day_files_min if day == days[-1] else files_min
        done += _Folder(archive=archive, path=archive.path / table / day_folder(day), table=table, step=step).tidy(manifest, least)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """The folder of one day of one table."""

    archive: Archive
    path: Path
    table: Table
    step: Step

    def tidy(self, manifest: Manifest, files_min: int) -> Tidied:
        """All steps, for each group of neighbours."""
        try:
            names = self.archive.names(self.path)
        except ArchiveDamaged as error:
            return Tidied(damaged=error)
        parts = [name for name in names if (part := parse_part(name)) is not None and part.first != part.last]
        self._remove([*parts, *(name.text for name in covered(names))])
        # The last batch may be done again, which would replace its file beside one that it has been joined into.
        safe = {**manifest.last_batches, manifest.generation: manifest.batch - 1}
        files = [(name, (self.path / name.text).stat().st_size) for name in resolved(names, safe)]
        done = Tidied()
        for group in joins(files, size_max=FILE_BYTES_MAX, files_min=files_min):
            old = [name.text for name in group]
            try:
                into = write_file(self.archive.path, self.path, joined(group), self._rows(old), arrow_schema(SCHEMAS[self.table]))
            except ArchiveDamaged as error:
                done += Tidied(damaged=error)
                continue
            self.step("joined")
            self._remove(old)
            done += Tidied(before=len(old), after=1, size_bytes=into.stat().st_size)
        return done

    def _rows(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """The rows of some files, about as many at a time as fill a group of rows."""
        columns = list(SCHEMAS[self.table].names)
        held: list[pa.RecordBatch] = []
        for name in names:
            for batch in self.archive.file_batches(self.path / name, self.table, columns=columns):
                held.append(batch)
                if sum(each.num_rows for each in held) >= ROW_GROUP_ROWS:
                    yield pa.Table.from_batches(held)
                    held = []
            self.step("read")
        if held:
            yield pa.Table.from_batches(held)
        self.step("written")

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            with told(self.archive.path, self.path / name):
                (self.path / name).unlink(missing_ok=True)
            self.step("removed")
