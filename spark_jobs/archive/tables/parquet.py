"""Parquet files of the archive: each comes to be whole, under its own name, or not at all.

May live here: how one file is written, and what a batch puts where. Names are `spark_jobs.archive.tables.layout`'s.
"""

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
"""Rows that are read, or passed over, together: 16 MB of records. A reader of a range of offsets passes over all others."""

_UNLIKE: Final = frozenset({"bytes", "document", "text"})
"""Columns of which no two values are alike: a dictionary of them is made for nothing."""


def write_file(archive: Path, path: Path, parts: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Write rows to a file of this name, durably; an older file of the name is replaced. Raises `ArchiveFull`, `ArchiveUnwritable`.

    Its bytes are safe before it has its name, and its name is safe when this returns.
    """
    folder = path.parent
    with told(archive, path):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            for made in (folder, folder.parent):  # A power cut that takes the name of a folder takes all that is in it.
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
    """Keeps the archive as Parquet files."""

    def __init__(self, archive: Path) -> None:
        """`archive` is the folder of the archive."""
        self._archive = archive

    def put(self, schema: TableSchema, table: pa.Table, *, generation: int, batch: int) -> None:
        """Write the rows of one table of one batch: the same batch again replaces what it wrote before. Raises as `write_file`."""
        name = FileName(generation=generation, first=batch, last=batch)
        for day, rows in by_day(table):
            write_file(self._archive, self._archive / schema.table / day_folder(day) / name.text, (rows,), table.schema)

    def clear(self, writer: str, *, generation: int, after: int) -> None:
        """Remove what was written of batches above `after` in this generation and was never finished, and what is half written."""
        for path in [path for table in WRITTEN_BY[writer] for path in (self._archive / table).glob("day=*/*")]:
            name, part = parse_name(path.name), parse_part(path.name)
            is_unfinished = name is not None and name.generation == generation and name.last > after
            # One of several batches is being joined, perhaps just now, by whoever tidies.
            if is_unfinished or (part is not None and part.first == part.last):
                with told(self._archive, path):
                    path.unlink(missing_ok=True)
