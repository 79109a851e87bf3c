"""Write and read the archive as Delta tables, without a JVM (extra `delta`).

Each batch is one transaction per table. It carries the batch number as Delta's *application transaction*, so a repeated batch finds its
number and adds nothing.
"""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from equipoise.channel.core.errors import MissingExtra
from equipoise.spark_jobs.archive.tables.arrow import DAY
from equipoise.spark_jobs.archive.tables.manifest import told
from equipoise.spark_jobs.archive.tables.schema import WRITTEN_BY, TableSchema
from equipoise.spark_jobs.sequence.emitted import Table
from equipoise.spark_jobs.streams.archive_errors import ArchiveDamaged, ArchiveUnwritable

try:
    import deltalake
    from deltalake.exceptions import CommitFailedError, DeltaError
    from deltalake.transaction import AddAction, RemoveAction
except ImportError as error:
    raise MissingExtra(what="an archive of Delta tables", extra="delta") from error

CHECKPOINT_EVERY: Final = 100
"""Transactions between two checkpoints of a table's log: opening a table reads at most this many."""

COMMITS_MAX: Final = 16
"""Attempts to commit a transaction while others commit: batches of the archive, one second apart."""

_without_colours: Final = re.compile(r"\x1b\[[0-9;]*m").sub


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFile:
    """One file in a version of a table, as the table's log describes it."""

    path: str
    day: str
    size_bytes: int
    rows: int | None

    @property
    def name(self) -> Path:
        """The path as a file name. The log stores it URL-encoded."""
        return Path(unquote(self.path))


class DeltaStore:
    """Store the archive as Delta tables, in the folders otherwise used for Parquet files."""

    def __init__(self, archive: Path) -> None:
        """Use the folder `archive`."""
        self._archive = archive

    def put(self, schema: TableSchema, table: pa.Table, *, generation: int, batch: int) -> None:
        """Add the rows of one table of one batch, unless they were already added.

        Raises `ArchiveDamaged`, `ArchiveFull` and `ArchiveUnwritable`.
        """
        folder = self._archive / schema.table
        application = _application(schema.table, generation)
        found = opened(self._archive, schema.table)
        if found is not None and (found.transaction_version(application) or 0) > batch:
            return
        # Numbers start at 1, because Delta uses 0 for "none yet".
        done = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(application, batch + 1)])
        days = table["at"].cast(DAY.type)
        with telling(self._archive, folder):
            deltalake.write_deltalake(
                str(folder),
                table.append_column(DAY, days),
                mode="append",
                partition_by=[DAY.name],
                schema_mode="merge",
                commit_properties=done,
                configuration={"delta.checkpointInterval": str(CHECKPOINT_EVERY)} if found is None else None,
            )

    def clear(self, writer: str, *, generation: int, after: int) -> None:
        """Remove what batches above `after` added to some tables without finishing.

        Raises `ArchiveDamaged`, `ArchiveFull` and `ArchiveUnwritable`.
        """
        for table in WRITTEN_BY[writer]:
            files = unfinished(self._archive, table, generation=generation, after=after)
            if files and not changed(self._archive, table, out=files):
                problem = f"an unfinished batch cannot be taken out of {self._archive / table}: others write there all the time"
                raise ArchiveUnwritable(archive=str(self._archive), problem=problem)


def opened(archive: Path, table: Table) -> deltalake.DeltaTable | None:
    """Return the newest version of a table; None if there is none. Raises `ArchiveDamaged`."""
    with _reading(archive, table):
        folder = str(archive / table)
        return deltalake.DeltaTable(folder) if deltalake.DeltaTable.is_deltatable(folder) else None


def files_of(table: deltalake.DeltaTable) -> list[DeltaFile]:
    """Return the files of this version of a table, sorted by day and first offset."""
    actions = pa.table(table.get_add_actions(flatten=True))
    rows = actions.select(["partition.day", "min.offset", "path", "size_bytes", "num_records"]).to_pylist()
    # A file written by another program may lack statistics of its offsets.
    rows.sort(key=lambda row: (row["partition.day"], -1 if row["min.offset"] is None else row["min.offset"], row["path"]))
    return [
        DeltaFile(path=row["path"], day=row["partition.day"].isoformat(), size_bytes=row["size_bytes"], rows=row["num_records"])
        for row in rows
    ]


def delta_files(archive: Path, table: Table, *, first_day: str = "", last_day: str = "9") -> tuple[Path, ...]:
    """Return the files that hold a table's rows of these days, sorted by day and first offset. Raises `ArchiveDamaged`."""
    return tuple(archive / table / file.name for file in newest(archive, table)[1] if first_day <= file.day <= last_day)


def newest(archive: Path, table: Table) -> tuple[int, list[DeltaFile]]:
    """Return the newest version of a table and its files as `files_of` does; -1 and [] if there is none. Raises `ArchiveDamaged`."""
    found = opened(archive, table)
    with _reading(archive, table):
        return (-1, []) if found is None else (found.version(), files_of(found))


def unfinished(archive: Path, table: Table, *, generation: int, after: int) -> list[DeltaFile]:
    """Return the files that batches above `after` added: they are being written, or were never finished. Raises `ArchiveDamaged`.

    If `after` is out of date, the result may include batches finished since.
    """
    found, application = opened(archive, table), _application(table, generation)
    if found is None:
        return []
    added = dict[str, DeltaFile]()
    with _reading(archive, table):
        files, number = _by_path(found), found.transaction_version(application) or 0
        there = files.keys()
        while number > after + 1:
            before, below = dict[str, DeltaFile](), 0
            if found.version() > 0:
                found.load_as_version(found.version() - 1)
                before, below = _by_path(found), found.transaction_version(application) or 0
            if below != number:  # Otherwise compaction wrote this version, not the archive.
                added |= {path: file for path, file in files.items() if path not in before}
            files, number = before, below
    return [file for path, file in added.items() if path in there]


def changed(archive: Path, table: Table, *, out: Collection[DeltaFile], into: Sequence[AddAction] = ()) -> bool:
    """Remove files from a table and add others in one transaction.

    Return False if another transaction removed one of the files, or if all attempts conflicted. With `into` the rows stay the same, so
    streaming readers of the table do not see them again. Raises `ArchiveDamaged`, `ArchiveFull` and `ArchiveUnwritable`.
    """
    is_change = not into
    for _ in range(COMMITS_MAX):
        found = opened(archive, table)
        if found is None:
            return False
        with _reading(archive, table):
            there = _by_path(found).keys()
        if not {file.path for file in out} <= there:
            return bool(into) and {action.path for action in into} <= there
        now_ms = time.time_ns() // 1_000_000
        gone = [RemoveAction(file.path, is_change, now_ms, size=file.size_bytes, partition_values={DAY.name: file.day}) for file in out]
        with telling(archive, archive / table), suppress(CommitFailedError):
            found.create_write_transaction(
                [*into, *gone],
                mode="append",
                schema=found.schema(),
                partition_by=[DAY.name],
                # A retry by Delta would commit after conflicting transactions, even one that removed the same files.
                commit_properties=deltalake.CommitProperties(max_commit_retries=0),
            )
            return True
    return False


@contextmanager
def telling(archive: Path, folder: Path) -> Iterator[None]:
    """Translate write errors of `deltalake` into the archive's errors. It reports the operating system's errors only as text."""
    with told(archive, folder):
        try:
            yield
        except DeltaError as error:
            raise OSError(errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else errno.EIO, _line(error)) from error


@contextmanager
def _reading(archive: Path, table: Table) -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError, KeyError, pa.ArrowException) as error:
        problem = f"the log of its Delta table {archive / table} cannot be read: {_line(error)}"
        raise ArchiveDamaged(archive=str(archive), problem=problem) from error


def _by_path(table: deltalake.DeltaTable) -> dict[str, DeltaFile]:
    return {file.path: file for file in files_of(table)}


def _line(error: Exception) -> str:
    """Return the first line of an error. `deltalake` appends a coloured Rust backtrace."""
    return _without_colours("", str(error)).strip().partition("\n")[0] or type(error).__name__


def _application(table: Table, generation: int) -> str:
    """Return the name of a writer in Delta: each name has its own transaction numbers."""
    return f"equipoise-{table}-g{generation:04}"
