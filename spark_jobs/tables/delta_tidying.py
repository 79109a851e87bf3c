"""Tidying of Delta tables: small files are joined in the order of their rows, which Delta's own OPTIMIZE does not keep.

May live here: `DeltaFolder`, which `spark_jobs.tables.tidying` drives, and forgetting the files that no version of late needs.

How files are joined: their rows are written into a file that no version of the table knows yet, and one transaction takes it in and
those out that it was joined of. If another transaction came between, both are looked at anew. So readers see the rows once, whenever
it dies: a file that no version came to know is removed with those that none needs any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import deltalake
import orjson
import pyarrow as pa
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from spark_jobs.emitted import Table
from spark_jobs.tables.arrow import DAY, arrow_schema
from spark_jobs.tables.delta import application_of, files_of, go_back, opened, telling
from spark_jobs.tables.layout import PART_SUFFIX, SUFFIX, day_folder, joins
from spark_jobs.tables.manifest import Manifest, told
from spark_jobs.tables.parquet import write_file
from spark_jobs.tables.reading import Archive, file_offsets
from spark_jobs.tables.schema import SCHEMAS

KEPT_H: Final = 7 * 24
"""For how long a file stays on the disk that was joined into another: Delta's own time, in which older versions can be read."""

COMMITS_MAX: Final = 8
"""How often a transaction is tried, while others come between: batches of the archive, each a second apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFolder:
    """The files of one day of a Delta table that its newest finished version holds."""

    archive: Archive
    table: Table
    day: str
    manifest: Manifest
    step: Callable[[str], None]

    def groups(self, *, size_max: int, files_min: int) -> Sequence[Sequence[Path]]:
        """What to join; what a tidying that died was about to write is removed first."""
        for part in self._folder.glob(f".*{PART_SUFFIX}"):
            with told(self.archive.path, part):
                part.unlink(missing_ok=True)
        found = opened(self._root)
        with telling(self.archive.path, self._root):
            # A batch that is not finished may be taken back, and with it the version that took it in.
            if found is None or not go_back(found, application_of(self.table, self.manifest.generation), after=self.manifest.batch):
                return ()
            files = [(path, path.stat().st_size) for path in self._files(found)]
        return joins(files, size_max=size_max, files_min=files_min, kind=lambda _: None)

    def join(self, group: Sequence[Path], rows: Iterable[pa.Table]) -> int | None:
        """Put one file in the place of a group. What it raises beside the errors of reading: `ArchiveFull`, `ArchiveUnwritable`."""
        found = opened(self._root)
        if found is None:
            return None
        # No other file has this name: each version but the newest has been followed by another.
        into = self._folder / f"joined-{found.version():010}{SUFFIX}"
        write_file(self.archive.path, into, rows, arrow_schema(SCHEMAS[self.table]))
        self.step("joined")
        with telling(self.archive.path, into):
            if self._commit(group, into):
                self.step("committed")
                return into.stat().st_size
            into.unlink()
        return None

    def _commit(self, group: Sequence[Path], into: Path) -> bool:
        """Have the table take a file in, and those of a group out; False if others took one of these out, or were too many."""
        for _ in range(COMMITS_MAX):
            found = opened(self._root)
            if found is None or not {*group} <= {*self._files(found)}:
                return False
            try:
                found.create_write_transaction(
                    [self._added(into), *(self._removed(path, into) for path in group)],
                    mode="append",
                    schema=found.schema(),
                    partition_by=[DAY.name],
                    # Delta would put it behind whatever came between, also behind what took the same files out.
                    commit_properties=deltalake.CommitProperties(max_commit_retries=0),
                )
            except CommitFailedError:
                continue
            return True
        return False

    def _added(self, path: Path) -> AddAction:
        first, last, rows = file_offsets(path)
        stats = {"numRecords": rows, "minValues": {"offset": first}, "maxValues": {"offset": last}, "nullCount": {"offset": 0}}
        return AddAction(
            path=self._within(path),
            size=path.stat().st_size,
            partition_values={DAY.name: self.day},
            modification_time=_modified_ms(path),
            data_change=False,  # Who streams the table is not told the rows again.
            stats=orjson.dumps(stats).decode(),
        )

    def _removed(self, path: Path, into: Path) -> RemoveAction:
        return RemoveAction(
            self._within(path),
            data_change=False,
            deletion_timestamp=_modified_ms(into),
            size=path.stat().st_size,
            partition_values={DAY.name: self.day},
        )

    def _files(self, table: deltalake.DeltaTable) -> list[Path]:
        return [self._root / path for day, path in files_of(table) if day == self.day]

    def _within(self, path: Path) -> str:
        return str(path.relative_to(self._root))

    @property
    def _root(self) -> Path:
        return self.archive.path / self.table

    @property
    def _folder(self) -> Path:
        return self._root / day_folder(self.day)


def forget(archive: Archive, table: Table, manifest: Manifest) -> None:
    """Remove the files that no version of the last `KEPT_H` hours needs. Raises `ArchiveFull`, `ArchiveUnwritable`.

    Not while a batch is unfinished: to take that back needs the version before it, however old it is by then.
    """
    root = archive.path / table
    found = opened(root)
    if found is None:
        return
    with telling(archive.path, root):
        newest = found.version()
        if go_back(found, application_of(table, manifest.generation), after=manifest.batch) and newest == found.version():
            # To remove them is two transactions, also where all have gone before, so it is asked first whether any is there.
            vacuum = partial(found.vacuum, retention_hours=KEPT_H, enforce_retention_duration=False, full=True)
            if any((root / path).exists() for path in vacuum(dry_run=True)):
                vacuum(dry_run=False)


def _modified_ms(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000_000
