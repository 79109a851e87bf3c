"""Write and read one Parquet file of the archive. A file is complete under its final name, or
absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from equipoise.channel.sqlite.file import sync_folder
from equipoise.spark_jobs.archive.tables.arrow import DAY, arrow_schema
from equipoise.spark_jobs.archive.tables.layout import parse_day, part_name
from equipoise.spark_jobs.archive.tables.manifest import write_errors
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.sources.beginnings import replacing

ROW_GROUP_ROWS: Final = 64 * 1024
"""Rows per row group, the unit that a reader reads or skips: 16 MB of records."""

BATCH_ROWS: Final = 16 * 1024
"""Rows per Arrow batch: 4 MB of records."""

_OFFSET_FORMAT: Final = ("INT64", 1, 0)
"""Parquet's description of the column `offset`: its physical type, that cells may be null, and that
it is not a list."""

_UNLIKE: Final = frozenset({"bytes", "document", "text"})
"""Columns with unique values, where a dictionary saves nothing."""


def write_file(archive: Path, path: Path, parts: Iterable[pa.Table], schema: pa.Schema) -> None:
    """Write rows durably to a file, replacing an older one. Raises `OperatorError`.

    The contents are on disk before the file has its name. The name is on disk when this returns.
    """
    folder = path.parent
    with write_errors(archive, path):
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            # A power cut that loses a folder's name loses its contents.
            for made in (folder, folder.parent):
                sync_folder(made)
        with (
            replacing(path, part=folder / part_name(path.name)) as file,
            _writer(file, schema) as writer,
        ):
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


@contextmanager
def damage_translated() -> Iterator[None]:
    """Translate pyarrow's various exceptions for damaged files into those that `file_batches`
    documents.

    Put only reading inside: elsewhere these exceptions are programming errors.
    """
    try:
        yield
    except (OSError, pa.ArrowException):
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise pa.ArrowInvalid(f"{type(error).__name__}: {error}") from error


def file_offsets(path: Path) -> tuple[int, int, int]:
    """Return the first and last offset of a file and its row count, from the file's own statistics.

    Raises `OSError` and `pyarrow.ArrowException`.
    """
    with damage_translated(), pq.ParquetFile(path) as file:
        bounds = [_bounds(file, group) for group in range(file.num_row_groups)]
        found = [each for each in bounds if each is not None]
        if not found or len(found) < len(bounds):
            raise pa.ArrowInvalid("it has no statistics of its offsets")
        return (
            min(first for first, _ in found),
            max(last for _, last in found),
            file.metadata.num_rows,
        )


def file_batches(
    path: Path,
    table: Table,
    *,
    columns: Sequence[str] | None = None,
    first: int | None = None,
    last: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file in bounded batches; see `Archive.batches`. Row groups outside the
    offsets are not read.

    Raises `OSError` and `pyarrow.ArrowException`.
    """
    schema = schema_of(table, columns)
    # The `yield` is inside this block, but the reader's own errors are not raised here.
    with damage_translated(), pq.ParquetFile(path) as file:
        there = [
            name
            for name in {**dict.fromkeys(schema.names), "offset": None}
            if name in file.schema_arrow.names
        ]
        groups = [
            group for group in range(file.num_row_groups) if _may_hold(file, group, first, last)
        ]
        for batch in file.iter_batches(
            BATCH_ROWS, row_groups=groups, columns=there, use_threads=False
        ):
            _check_cells(batch)
            rows = _within(batch, first, last)
            if rows.num_rows:
                yield _widened(rows, schema, path)


def _may_hold(file: pq.ParquetFile, group: int, first: int | None, last: int | None) -> bool:
    bounds = _bounds(file, group)
    return bounds is None or (
        (first is None or bounds[1] >= first) and (last is None or bounds[0] <= last)
    )


def _bounds(file: pq.ParquetFile, group: int) -> tuple[int, int] | None:
    """Return the first and last offset of a row group; None if the file has no statistics. Raises
    `pyarrow.ArrowInvalid` if invalid.
    """
    about = file.metadata
    column = file.schema_arrow.get_field_index("offset")
    if column < 0:
        raise pa.ArrowInvalid("it has no column offset")
    # Reading statistics of a column with inconsistent metadata makes pyarrow abort the process.
    # Reading a row raises instead, but does not check the statistics, so their type is compared
    # here.
    next(file.iter_batches(1, row_groups=[group], columns=["offset"], use_threads=False), None)
    described = about.schema.column(column)
    if (
        described.physical_type,
        described.max_definition_level,
        described.max_repetition_level,
    ) != _OFFSET_FORMAT:
        raise pa.ArrowInvalid(f"its column offset is of type {described.physical_type}")
    chunk = about.row_group(group).column(column)
    if chunk.physical_type != described.physical_type:
        raise pa.ArrowInvalid(
            f"its column offset is of type {described.physical_type}, and of {chunk.physical_type}"
            f" in its group {group}"
        )
    bounds = chunk.statistics
    if bounds is None or not bounds.has_min_max:
        return None
    first, last = bounds.min, bounds.max
    if not (isinstance(first, int) and isinstance(last, int) and first <= last):
        raise pa.ArrowInvalid(f"its offsets go from {first} to {last}")
    return first, last


def _check_cells(batch: pa.RecordBatch) -> None:
    """Raise `pyarrow.ArrowInvalid` for cells that were never written so: invalid text, or rows
    without an offset.
    """
    batch.validate(full=True)
    if batch["offset"].null_count:
        raise pa.ArrowInvalid("rows of it have no offset")


def _within(batch: pa.RecordBatch, first: int | None, last: int | None) -> pa.RecordBatch:
    if first is not None:
        batch = batch.filter(pc.greater_equal(batch["offset"], first))
    return batch if last is None else batch.filter(pc.less_equal(batch["offset"], last))


def _widened(batch: pa.RecordBatch, schema: pa.Schema, path: Path) -> pa.RecordBatch:
    """Add the columns of the current version, and the day of the file's folder if requested."""
    columns = []
    for field in schema:
        if field.name in batch.schema.names:
            columns.append(batch[field.name].cast(field.type))
        elif field.name == DAY.name:
            day = pa.scalar(parse_day(path.parent.name), pa.string()).cast(DAY.type)
            columns.append(pa.repeat(day, batch.num_rows))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def schema_of(table: Table, columns: Sequence[str] | None) -> pa.Schema:
    """Return some columns of a table in its current version, by default all of them with `day` at
    the end.
    """
    whole = pa.schema([*arrow_schema(SCHEMAS[table]), DAY])
    return whole if columns is None else pa.schema([whole.field(name) for name in columns])
