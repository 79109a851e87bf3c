"""Delta tables in place of Parquet files: for those whose other tools read Delta. Written without a JVM, by the extra `delta`.

May live here: `DeltaStore`, and which files of such a table count. Each batch is one transaction of each of its tables, which bears
the number of the batch as Delta's own *application transaction*: a batch that is done again finds its number there, and adds nothing.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from channel.errors import MissingExtra
from spark_jobs.emitted import Table
from spark_jobs.tables.arrow import DAY
from spark_jobs.tables.manifest import told
from spark_jobs.tables.schema import WRITTEN_BY, TableSchema

try:
    import deltalake
    from deltalake.exceptions import DeltaError
except ImportError as error:
    raise MissingExtra(what="an archive of Delta tables", extra="delta") from error

CHECKPOINT_EVERY: Final = 100
"""Transactions after which a table's log is summed up, so that whoever opens it reads no more than so many."""


class DeltaStore:
    """Keeps the archive as Delta tables, one in each folder that would hold a table's Parquet files."""

    def __init__(self, archive: Path) -> None:
        """`archive` is the folder of the archive."""
        self._archive = archive

    def put(self, schema: TableSchema, table: pa.Table, *, generation: int, batch: int) -> None:
        """Add the rows of one table of one batch, unless they have been added. Raises `ArchiveFull` and `ArchiveUnwritable`."""
        folder = self._archive / schema.table
        application = application_of(schema.table, generation)
        found = opened(folder)
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
        """Take back what a batch above `after` has added to some tables, where it was never finished for all."""
        for table in WRITTEN_BY[writer]:
            folder = self._archive / table
            found = opened(folder)
            if found is None:
                continue
            with telling(self._archive, folder):
                newest = found.version()
                is_there = go_back(found, application_of(table, generation), after=after)
                if not is_there:
                    deltalake.DeltaTable(str(folder)).delete()  # The table came to be with what is taken back.
                elif newest != found.version():
                    deltalake.DeltaTable(str(folder)).restore(found.version())


def go_back(table: deltalake.DeltaTable, application: str, *, after: int) -> bool:
    """Go back to the newest version of a table with no batch above `after` in it; False if each of them has one."""

    def has_more() -> bool:
        return (table.transaction_version(application) or 0) > after + 1

    while has_more() and table.version() > 0:
        table.load_as_version(table.version() - 1)
    return not has_more()


@contextmanager
def telling(archive: Path, folder: Path) -> Iterator[None]:
    """What `deltalake` cannot do, as the archive's own errors; it tells those of the operating system only in words."""
    with told(archive, folder):
        try:
            yield
        except DeltaError as error:
            raise OSError(errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else errno.EIO, str(error)) from error


def delta_files(archive: Path, table: Table, *, first_day: str = "", last_day: str = "9") -> tuple[Path, ...]:
    """The files that hold a table's rows of these days, in order of the day and of what is in them."""
    found = opened(archive / table)
    if found is None:
        return ()
    return tuple(archive / table / path for day, path in files_of(found) if first_day <= day <= last_day)


def files_of(table: deltalake.DeltaTable) -> list[tuple[str, str]]:
    """The day of each file of this version of a table, and its path within the table, in order of the day and of what is in them."""
    actions = pa.table(table.get_add_actions(flatten=True))
    rows = actions.select(["partition.day", "min.offset", "path"]).to_pylist()
    files = sorted((row["partition.day"].isoformat(), row["min.offset"], row["path"]) for row in rows)
    return [(day, unquote(path)) for day, _, path in files]


def opened(folder: Path) -> deltalake.DeltaTable | None:
    """The newest version of the table in a folder; None if there is none."""
    return deltalake.DeltaTable(str(folder)) if deltalake.DeltaTable.is_deltatable(str(folder)) else None


def application_of(table: Table, generation: int) -> str:
    """What Delta calls him who writes a table: his transactions are numbered for themselves."""
    return f"equipoise-{table}-g{generation:04}"
