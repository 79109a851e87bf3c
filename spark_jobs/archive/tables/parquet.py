"""Write the archive's Parquet files. A file is complete under its final name, or absent."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from equipoise.channel.sqlite.file import sync_folder
from equipoise.spark_jobs.archive.tables.arrow import by_day
from equipoise.spark_jobs.archive.tables.layout import FileName, day_folder, parse_name, parse_part, part_name
from equipoise.spark_jobs.archive.tables.manifest import told
from equipoise.spark_jobs.archive.tables.schema import WRITTEN_BY, TableSchema
from equipoise.spark_jobs.sources.whole_files import replacing

ROW_GROUP_ROWS: Final = 64 * 1024
"""Rows per row group, the unit that a reader reads or skips: 16 MB of records."""

_UNLIKE: Final = frozenset({"bytes", "document", "text"})
"""Columns with unique values, for which a dictionary saves nothing."""


def write_file(archive: Path, path: Path, parts: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Write rows durably to a file, replacing an older one. Raises `ArchiveFull` and `ArchiveUnwritable`.

    The contents are on disk before the file has its name. The name is on disk when this returns.
    """
    folder = path.parent
    with told(archive, path):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            for made in (folder, folder.parent):  # A power cut that loses a folder's name loses its contents.
                sync_folder(made)
        with replacing(path, part=folder / part_name(path.name)) as file, _writer(file, schema) as writer:
            for rows in parts:
                writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)


def _writer(file: object, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        use_dictionary=[name for name in schema.names if name not in _UNLIKE],
        write_statistics=[name for name in schema.names if name not in _UNLIKE],
    )


class ParquetStore:
    """Store the archive as Parquet files."""

    def __init__(self, archive: Path) -> None:
        """Use the folder `archive`."""
        self._archive = archive

    def put(self, schema: TableSchema, table: pa.Table, *, generation: int, batch: int) -> None:
        """Write the rows of one table of one batch. A repeated batch replaces its files. Raises as `write_file`."""
        name = FileName(generation=generation, first=batch, last=batch)
        for day, rows in by_day(table):
            write_file(self._archive, self._archive / schema.table / day_folder(day) / name.text, (rows,), table.schema)

    def clear(self, writer: str, *, generation: int, after: int) -> None:
        """Remove the unfinished batches above `after` in this generation, and the partial files of single batches."""
        for path in [path for table in WRITTEN_BY[writer] for path in (self._archive / table).glob("day=*/*")]:
            name, part = parse_name(path.name), parse_part(path.name)
            is_unfinished = name is not None and name.generation == generation and name.last > after
            # A partial file of several batches may belong to a running compaction.
            if is_unfinished or (part is not None and part.first == part.last):
                with told(self._archive, path):
                    path.unlink(missing_ok=True)
