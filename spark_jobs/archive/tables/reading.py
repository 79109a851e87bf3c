"""Read the archive's tables as Arrow batches and Spark frames.

Rows of the channel's tables come in order of their offsets: file names sort in order of writing, and the log's time never falls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from equipoise.spark_jobs.archive.tables.arrow import DAY, arrow_schema, ddl
from equipoise.spark_jobs.archive.tables.layout import day_folder, parse_day, resolved
from equipoise.spark_jobs.archive.tables.manifest import Manifest, read_manifest
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS, WRITER_OF, WRITTEN_BY
from equipoise.spark_jobs.sequence.emitted import Table
from equipoise.spark_jobs.streams.archive_errors import ArchiveDamaged, ArchiveFileGone, NoArchive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS: Final = 16 * 1024
"""Rows per Arrow batch: 4 MB of records."""

LOOKS_MAX: Final = 3
"""Attempts to read after files have vanished. While an archive grows, its files are compacted, which takes seconds each time."""

_OFFSETS_SAID: Final = ("INT64", 1, 0)
"""Parquet's description of the column `offset`: its physical type, that cells may be null, and that it is not a list."""

NOT_IN_ORDER: Final = (
    "its rows are not in order of their offsets, as after Delta's OPTIMIZE; deltalake.DeltaTable(FOLDER).optimize.z_order(['offset']) of "
    "the table's folder mends it"
)

_replace_glob_characters: Final = re.compile(r"[\\*?\[\]{}]").sub

Result = TypeVar("Result")

FINDING: Final = ("rule", "subject", "offset", "text")
"""The columns that identify a finding. A finding of another generation with the same values is the same finding."""


class Archive:
    """An archive. Every call looks at the files again, so readers see what was finished meanwhile."""

    def __init__(self, path: Path) -> None:
        """Open the archive in the folder `path`. Raises `NoArchive`, and what `manifest` raises."""
        self.path = path
        if all(self.manifest(writer) is None for writer in WRITTEN_BY):
            raise NoArchive(archive=str(path))

    def manifest(self, writer: str = "archive") -> Manifest | None:
        """Return a writer's manifest; None if it has written nothing. Raises `ArchiveDamaged` and `ArchiveTooNew`."""
        return read_manifest(self.path, writer)

    def days(self, table: Table) -> tuple[str, ...]:
        """Return the days for which a table has a folder, in order, as `YYYY-MM-DD`. Raises `ArchiveDamaged`."""
        folder = self.path / table
        names = sorted(self.names(folder)) if folder.is_dir() else []
        return tuple(day for day in map(parse_day, names) if day is not None)

    def files(self, table: Table, *, first_day: str = "", last_day: str = "9") -> tuple[Path, ...]:
        """Return the files with a table's rows of these days, in order of writing. Each row is in exactly one of them.

        Raises `ArchiveDamaged` and `ArchiveTooNew`.
        """
        manifest = self.manifest(WRITER_OF[table])
        if manifest is None:
            return ()
        if manifest.store == "delta":
            from equipoise.spark_jobs.archive.tables.delta import delta_files  # noqa: PLC0415 - needs an optional extra

            return delta_files(self.path, table, first_day=first_day, last_day=last_day)
        found = []
        for day in self.days(table):
            if first_day <= day <= last_day:
                folder = self.path / table / day_folder(day)
                found += [folder / name.text for name in resolved(self.names(folder), manifest.last_batches)]
        return tuple(found)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder of the archive. Raises `ArchiveDamaged`."""
        try:
            return [path.name for path in folder.iterdir()]
        except OSError as error:
            raise ArchiveDamaged(archive=str(self.path), problem=f"its folder {folder} cannot be read: {error}") from error

    def batches(
        self,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        first: int | None = None,
        last: int | None = None,
        first_day: str = "",
        last_day: str = "9",
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table in bounded batches, limited to offsets from `first` to `last` if given.

        Columns that an older file lacks are null. Raises what `files` and `file_batches` raise.
        """
        for path in self.files(table, first_day=first_day, last_day=last_day):
            yield from self.file_batches(path, table, columns=columns, first=first, last=last)

    def file_batches(
        self, path: Path, table: Table, *, columns: Sequence[str] | None = None, first: int | None = None, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read as the function `file_batches`. Raises `ArchiveDamaged` for an unreadable file and `ArchiveFileGone` for a missing one."""
        try:
            yield from file_batches(path, table, columns=columns, first=first, last=last)
        except FileNotFoundError as error:
            raise ArchiveFileGone(archive=str(self.path), file=str(path)) from error
        except (OSError, pa.ArrowException) as error:
            raise ArchiveDamaged(archive=str(self.path), problem=f"its file {path} cannot be read: {error}") from error

    def table(self, table: Table, *, columns: Sequence[str] | None = None, first_day: str = "", last_day: str = "9") -> pa.Table:
        """Return all rows of a table that fits into memory. Duplicate findings are removed.

        With `columns`, duplicates are removed only if all columns of `FINDING` are included. Raises what `batches` raises.
        """
        schema = _schema(table, columns)
        rows = read_again(
            lambda: pa.Table.from_batches(self.batches(table, columns=columns, first_day=first_day, last_day=last_day), schema=schema)
        )
        return _once(rows) if table is Table.FINDINGS and (columns is None or {*FINDING} <= {*columns}) else rows

    def frame(self, spark: SparkSession, table: Table, *, first_day: str = "", last_day: str = "9") -> DataFrame:
        """Return a table as a Spark frame with `day` as its last column. Duplicate findings are removed.

        Raises what `files` raises, and `ArchiveDamaged` for an empty file, which Spark would skip.
        """
        schema = ddl(SCHEMAS[table])
        files = self.files(table, first_day=first_day, last_day=last_day)
        if not files:
            return spark.createDataFrame([], schema)
        for path in files:
            with suppress(FileNotFoundError):  # Spark reports files that vanish.
                if not path.stat().st_size:
                    raise ArchiveDamaged(archive=str(self.path), problem=f"its file {path} has no bytes")
        frame = spark.read.schema(schema).option("basePath", str(self.path / table)).parquet(*map(_unglobbed, files))
        return frame.dropDuplicates(list(FINDING)) if table is Table.FINDINGS else frame


def _unglobbed(path: Path) -> str:
    """Return a path escaped for Spark, which expands globs in the paths that it reads, but not in `basePath`."""
    return _replace_glob_characters(r"\\\g<0>", str(path))


def read_again(read: Callable[[], Result]) -> Result:
    """Return the result of `read`. Start again if a file vanished meanwhile because it was joined into another.

    Raises what `read` raises. Raises `ArchiveFileGone` if that happens more than `LOOKS_MAX` times.
    """
    for _ in range(LOOKS_MAX):
        with suppress(ArchiveFileGone):
            return read()
    return read()


@contextmanager
def telling_damage() -> Iterator[None]:
    """Translate pyarrow's various exceptions for damaged files into those that `file_batches` documents.

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
    with telling_damage(), pq.ParquetFile(path) as file:
        bounds = [_bounds(file, group) for group in range(file.num_row_groups)]
        found = [each for each in bounds if each is not None]
        if not found or len(found) < len(bounds):
            raise pa.ArrowInvalid("it does not say which offsets are in it")
        return min(first for first, _ in found), max(last for _, last in found), file.metadata.num_rows


def check_order(path: Path, table: Table, *, after: int) -> int:
    """Return the last offset of a file. `after` is the last offset of the file before it.

    Raises `pyarrow.ArrowInvalid` if offsets fall, as in files joined by other programs, and what `file_batches` raises.
    """
    last = after
    for batch in file_batches(path, table, columns=("offset",)):
        offsets = batch["offset"]
        if offsets[0].as_py() < last or pc.any(pc.less(offsets[1:], offsets[:-1])).as_py():
            raise pa.ArrowInvalid(NOT_IN_ORDER)
        last = offsets[-1].as_py()
    return last


def file_batches(
    path: Path, table: Table, *, columns: Sequence[str] | None = None, first: int | None = None, last: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file in bounded batches; see `Archive.batches`. Row groups outside the offsets are not read.

    Raises `OSError` and `pyarrow.ArrowException`.
    """
    schema = _schema(table, columns)
    # The `yield` is inside this block, but the reader's own errors are not raised here.
    with telling_damage(), pq.ParquetFile(path) as file:
        there = [name for name in {**dict.fromkeys(schema.names), "offset": None} if name in file.schema_arrow.names]
        groups = [group for group in range(file.num_row_groups) if _may_hold(file, group, first, last)]
        for batch in file.iter_batches(BATCH_ROWS, row_groups=groups, columns=there, use_threads=False):
            _check_cells(batch)
            rows = _within(batch, first, last)
            if rows.num_rows:
                yield _widened(rows, schema, path)


def _may_hold(file: pq.ParquetFile, group: int, first: int | None, last: int | None) -> bool:
    bounds = _bounds(file, group)
    return bounds is None or ((first is None or bounds[1] >= first) and (last is None or bounds[0] <= last))


def _bounds(file: pq.ParquetFile, group: int) -> tuple[int, int] | None:
    """Return the first and last offset of a row group; None if the file has no statistics. Raises `pyarrow.ArrowInvalid` if invalid."""
    about = file.metadata
    column = file.schema_arrow.get_field_index("offset")
    if column < 0:
        raise pa.ArrowInvalid("it has no column offset")
    # Reading statistics of a column with inconsistent metadata makes pyarrow abort the process. Reading a row raises instead, but does
    # not check the statistics, so their type is compared here.
    next(file.iter_batches(1, row_groups=[group], columns=["offset"], use_threads=False), None)
    said = about.schema.column(column)
    if (said.physical_type, said.max_definition_level, said.max_repetition_level) != _OFFSETS_SAID:
        raise pa.ArrowInvalid(f"its column offset is of type {said.physical_type}")
    chunk = about.row_group(group).column(column)
    if chunk.physical_type != said.physical_type:
        raise pa.ArrowInvalid(f"its column offset is of type {said.physical_type}, and of {chunk.physical_type} in its group {group}")
    bounds = chunk.statistics
    if bounds is None or not bounds.has_min_max:
        return None
    first, last = bounds.min, bounds.max
    if not (isinstance(first, int) and isinstance(last, int) and first <= last):
        raise pa.ArrowInvalid(f"its offsets go from {first} to {last}")
    return first, last


def _check_cells(batch: pa.RecordBatch) -> None:
    """Raise `pyarrow.ArrowInvalid` for cells that were never written so: invalid text, or rows without an offset."""
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


def _schema(table: Table, columns: Sequence[str] | None) -> pa.Schema:
    whole = pa.schema([*arrow_schema(SCHEMAS[table]), DAY])
    return whole if columns is None else pa.schema([whole.field(name) for name in columns])


def _once(findings: pa.Table) -> pa.Table:
    """Remove duplicate findings and keep the first. An audit that starts anew repeats the findings of the previous generation."""
    numbered = findings.append_column("row", pa.array(range(findings.num_rows), pa.int64()))
    firsts = numbered.group_by(list(FINDING)).aggregate([("row", "min")])["row_min"]
    return findings.take(firsts.sort())
