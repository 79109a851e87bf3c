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
        application = _application(schema.table, generation)
        found = _opened(folder)
        if found is not None and (found.transaction_version(application) or 0) > batch:
            return
        # Numbers from 1, because Delta has no word for "none yet" but 0.
        done = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(application, batch + 1)])
        days = table["at"].cast(DAY.type)
        with _telling(self._archive, folder):
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
            found = _opened(folder)
            if found is None:
                continue
            application = _application(table, generation)
            with _telling(self._archive, folder):
                while (found.transaction_version(application) or 0) > after + 1 and found.version() > 0:
                    found.load_as_version(found.version() - 1)
                newest = deltalake.DeltaTable(str(folder))
                if (found.transaction_version(application) or 0) > after + 1:
                    newest.delete()  # The table came to be with what is taken back.
                elif newest.version() != found.version():
                    newest.restore(found.version())


@contextmanager
def _telling(archive: Path, folder: Path) -> Iterator[None]:
    """What `deltalake` cannot do, as the archive's own errors; it tells those of the operating system only in words."""
    with told(archive, folder):
        try:
            yield
        except DeltaError as error:
            raise OSError(errno.ENOSPC if f"os error {errno.ENOSPC}" in str(error) else errno.EIO, str(error)) from error


def delta_files(archive: Path, table: Table, *, first_day: str = "", last_day: str = "9") -> tuple[Path, ...]:
    """The files that hold a table's rows of these days, in order of the day and of what is in them."""
    found = _opened(archive / table)
    if found is None:
        return ()
    actions = pa.table(found.get_add_actions(flatten=True))
    rows = actions.select(["partition.day", "min.offset", "path"]).to_pylist()
    files = sorted((row["partition.day"].isoformat(), row["min.offset"], row["path"]) for row in rows)
    return tuple(archive / table / unquote(path) for day, _, path in files if first_day <= day <= last_day)


def _opened(folder: Path) -> deltalake.DeltaTable | None:
    return deltalake.DeltaTable(str(folder)) if deltalake.DeltaTable.is_deltatable(str(folder)) else None


def _application(table: Table, generation: int) -> str:
    return f"equipoise-{table}-g{generation:04}"
