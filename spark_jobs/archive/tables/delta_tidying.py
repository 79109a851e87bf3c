"""Compact the small files of Delta tables and keep the order of rows, which Delta's own OPTIMIZE does not.

Theory of operation:

1. Write the rows of a group into a file that no version of the table lists.
2. In one transaction, add that file and remove the group's files. After a conflicting transaction, check both again.

Readers see every row once, even after a crash. A file that no version lists is removed with the files that are no longer needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa
from deltalake.transaction import AddAction

from equipoise.spark_jobs.archive.tables.arrow import DAY, arrow_schema
from equipoise.spark_jobs.archive.tables.delta import DeltaFile, changed, delta_files, newest, opened, telling, unfinished
from equipoise.spark_jobs.archive.tables.layout import PART_SUFFIX, SUFFIX, day_folder, joins
from equipoise.spark_jobs.archive.tables.manifest import Manifest, told
from equipoise.spark_jobs.archive.tables.parquet import write_file
from equipoise.spark_jobs.archive.tables.reading import Archive, file_offsets
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS
from equipoise.spark_jobs.sequence.emitted import Table
from equipoise.spark_jobs.streams.archive_errors import ArchiveFileGone

KEPT_H: Final = 7 * 24
"""How long a replaced file stays on disk. Older versions stay readable for as long; Delta's own default."""

Step = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFolder:
    """The files of one day in one `version` of a Delta table, except those of an unfinished batch."""

    archive: Archive
    table: Table
    day: str
    version: int
    files: Sequence[DeltaFile]
    step: Step

    def groups(self, *, size_max: int, files_min: int) -> Sequence[Sequence[Path]]:
        """Return the groups to join. First remove the partial files of an interrupted compaction."""
        for part in self._path.glob(f".*{PART_SUFFIX}"):
            with told(self.archive.path, part):
                part.unlink(missing_ok=True)
        files = [(self._root / file.name, file.size_bytes) for file in self.files]
        return joins(files, size_max=size_max, files_min=files_min, kind=lambda _: None)

    def join(self, group: Sequence[Path], rows: Iterable[pa.Table]) -> int | None:
        """Replace a group by one file. Return its size in bytes; None if others changed the group meanwhile.

        Raises `ArchiveFull`, `ArchiveUnwritable`, and what `rows` raises.
        """
        out = [file for file in self.files if self._root / file.name in group]
        # Another version precedes any retry, so no version lists a file of this name.
        into = self._path / f"joined-{self.version:010}-{self.files.index(out[0]):06}{SUFFIX}"
        try:
            write_file(self.archive.path, into, rows, arrow_schema(SCHEMAS[self.table]))
        except ArchiveFileGone:
            if {*group} <= {*delta_files(self.archive.path, self.table)}:
                raise
            return None
        self.step("joined")
        if not changed(self.archive.path, self.table, out=out, into=[self._added(into)]):
            with told(self.archive.path, into):
                into.unlink()
            return None
        self.step("committed")
        return into.stat().st_size

    def _added(self, path: Path) -> AddAction:
        first, last, rows = file_offsets(path)
        stats = {"numRecords": rows, "minValues": {"offset": first}, "maxValues": {"offset": last}, "nullCount": {"offset": 0}}
        about = path.stat()
        return AddAction(
            path=str(path.relative_to(self._root)),
            size=about.st_size,
            partition_values={DAY.name: self.day},
            modification_time=about.st_mtime_ns // 1_000_000,
            data_change=False,
            stats=orjson.dumps(stats).decode(),
        )

    @property
    def _root(self) -> Path:
        return self.archive.path / self.table

    @property
    def _path(self) -> Path:
        return self._root / day_folder(self.day)


def delta_folders(archive: Archive, table: Table, manifest: Manifest, step: Step) -> list[DeltaFolder]:
    """Return the days of a table in order. Raises `ArchiveDamaged`."""
    version, files = newest(archive.path, table)
    # An unfinished batch may be rolled back. Its files must stay as they were written.
    apart = {file.path for file in unfinished(archive.path, table, generation=manifest.generation, after=manifest.batch)}
    joinable = [file for file in files if file.path not in apart and file.rows != 0]
    return [
        DeltaFolder(archive=archive, table=table, day=day, version=version, files=tuple(some), step=step)
        for day, some in groupby(joinable, key=lambda file: file.day)
    ]


def forget(archive: Archive, table: Table) -> None:
    """Remove the files that no version of the last `KEPT_H` hours needs. Raises `ArchiveDamaged`, `ArchiveFull`, `ArchiveUnwritable`."""
    found = opened(archive.path, table)
    if found is None:
        return
    root = archive.path / table
    with telling(archive.path, root):
        vacuum = partial(found.vacuum, retention_hours=KEPT_H, enforce_retention_duration=False, full=True)
        # Removing costs two transactions even if the files are gone, so check first whether any exists.
        if any((root / path).exists() for path in vacuum(dry_run=True)):
            vacuum(dry_run=False)
