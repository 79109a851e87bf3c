"""Delta tables in place of Parquet files: for those whose other tools read Delta. Written without a JVM, by the extra `delta`.

May live here: `DeltaStore`, which files of such a table count, and how some are taken out and others in. Each batch is one transaction
of each of its tables, which bears the number of the batch as Delta's own *application transaction*: a batch that is done again finds its
number there, and adds nothing.
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
"""Transactions after which a table's log is summed up, so that whoever opens it reads no more than so many."""

COMMITS_MAX: Final = 16
"""How often a transaction is tried, while those of others come between: batches of the archive, each a second apart."""

_without_colours: Final = re.compile(r"\x1b\[[0-9;]*m").sub


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaFile:
    """One file of a version of a table: its path within the table, the day of its rows, and what the table's log says of it."""

    path: str
    day: str
    size_bytes: int
    rows: int | None

    @property
    def name(self) -> Path:
        """The path as the file is called: in the log it is an address."""
        return Path(unquote(self.path))


class DeltaStore:
    """Keeps the archive as Delta tables, one in each folder that would hold a table's Parquet files."""

    def __init__(self, archive: Path) -> None:
        """`archive` is the folder of the archive."""
        self._archive = archive

    def put(self, schema: TableSchema, table: pa.Table, *, generation: int, batch: int) -> None:
        """Add the rows of one table of one batch, unless they have been added.

        Raises `ArchiveDamaged`, `ArchiveFull` and `ArchiveUnwritable`.
        """
        folder = self._archive / schema.table
        application = _application(schema.table, generation)
        found = opened(self._archive, schema.table)
        if found is not None and (found.transaction_version(application) or 0) > batch:
            return
        # Numbers from 1, because Delta has no word for "none yet" but 0.
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
        """Take back what a batch above `after` has added to some tables, where it was never finished for all.

        Raises `ArchiveDamaged`, `ArchiveFull` and `ArchiveUnwritable`.
        """
        for table in WRITTEN_BY[writer]:
            files = unfinished(self._archive, table, generation=generation, after=after)
            if files and not changed(self._archive, table, out=files):
                problem = f"an unfinished batch cannot be taken out of {self._archive / table}: others write there all the time"
                raise ArchiveUnwritable(archive=str(self._archive), problem=problem)


def opened(archive: Path, table: Table) -> deltalake.DeltaTable | None:
    """The newest version of a table; None if there is none. Raises `ArchiveDamaged`."""
    with _reading(archive, table):
        folder = str(archive / table)
        return deltalake.DeltaTable(folder) if deltalake.DeltaTable.is_deltatable(folder) else None


def files_of(table: deltalake.DeltaTable) -> list[DeltaFile]:
    """The files of this version of a table, in order of the day and of what is in them."""
    actions = pa.table(table.get_add_actions(flatten=True))
    rows = actions.select(["partition.day", "min.offset", "path", "size_bytes", "num_records"]).to_pylist()
    # A file of another program's may not say which offsets are in it.
    rows.sort(key=lambda row: (row["partition.day"], -1 if row["min.offset"] is None else row["min.offset"], row["path"]))
    return [
        DeltaFile(path=row["path"], day=row["partition.day"].isoformat(), size_bytes=row["size_bytes"], rows=row["num_records"])
        for row in rows
    ]


def delta_files(archive: Path, table: Table, *, first_day: str = "", last_day: str = "9") -> tuple[Path, ...]:
    """The files that hold a table's rows of these days, in order of the day and of what is in them. Raises `ArchiveDamaged`."""
    return tuple(archive / table / file.name for file in newest(archive, table)[1] if first_day <= file.day <= last_day)


def newest(archive: Path, table: Table) -> tuple[int, list[DeltaFile]]:
    """The number of the newest version of a table and its files, as `files_of`; -1 and none if there is none. Raises `ArchiveDamaged`."""
    found = opened(archive, table)
    with _reading(archive, table):
        return (-1, []) if found is None else (found.version(), files_of(found))


def unfinished(archive: Path, table: Table, *, generation: int, after: int) -> list[DeltaFile]:
    """What a batch above `after` has added to a table: it is being written just now, or was never finished. Raises `ArchiveDamaged`.

    Who asks later than they learned of `after` may be told of what was finished since.
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
            if below != number:  # Else it was not the archive that wrote this version, but somebody who tidied.
                added |= {path: file for path, file in files.items() if path not in before}
            files, number = before, below
    return [file for path, file in added.items() if path in there]


def changed(archive: Path, table: Table, *, out: Collection[DeltaFile], into: Sequence[AddAction] = ()) -> bool:
    """Take files out of a table, and others in, in one transaction; False if others took some of them out, or gave it no rest.

    With `into` its rows stay the same, and whoever streams the table is not told them again. Raises `ArchiveDamaged`, `ArchiveFull`
    and `ArchiveUnwritable`.
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
                # Delta would put it behind whatever came between, also behind what took the same files out.
                commit_properties=deltalake.CommitProperties(max_commit_retries=0),
            )
            return True
    return False


@contextmanager
def telling(archive: Path, folder: Path) -> Iterator[None]:
    """What `deltalake` cannot write, as the archive's own errors; it tells those of the operating system only in words."""
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
    """The first line of what an error says: those of `deltalake` go on with a trace of Rust, in colours."""
    return _without_colours("", str(error)).strip().partition("\n")[0] or type(error).__name__


def _application(table: Table, generation: int) -> str:
    """What Delta calls him who writes a table: his transactions are numbered for themselves."""
    return f"equipoise-{table}-g{generation:04}"
