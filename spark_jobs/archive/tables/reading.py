"""Reading the archive: the files that count, as Arrow batches and as Spark frames.

May live here: `Archive`, for all that reads tables, and reading anew what was tidied meanwhile. Rows of the channel's tables come in
order of their offsets, because files are named in the order in which they were written, and the log's time never falls.
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
"""Rows in one Arrow batch: 4 MB of records."""

LOOKS_MAX: Final = 3
"""How often files that have gone are looked for again: an archive that is written is tidied meanwhile, which takes seconds each time."""

_OFFSETS_SAID: Final = ("INT64", 1, 0)
"""How Parquet describes the column of offsets: its physical type, that a cell may be null, and that it is no list."""

NOT_IN_ORDER: Final = (
    "its rows are not in order of their offsets, as after Delta's OPTIMIZE; deltalake.DeltaTable(FOLDER).optimize.z_order(['offset']) of "
    "the table's folder mends it"
)

_replace_glob_characters: Final = re.compile(r"[\\*?\[\]{}]").sub

Result = TypeVar("Result")

FINDING: Final = ("rule", "subject", "offset", "text")
"""By these columns one finding is told from another: one of another generation that has all of them is the same."""


class Archive:
    """An archive as it is now; each call looks anew, so that a reader sees what was finished meanwhile."""

    def __init__(self, path: Path) -> None:
        """The archive in the folder `path`. Raises `NoArchive`, and what `manifest` raises."""
        self.path = path
        if all(self.manifest(writer) is None for writer in WRITTEN_BY):
            raise NoArchive(archive=str(path))

    def manifest(self, writer: str = "archive") -> Manifest | None:
        """What a writer says of itself; None if it has written nothing. Raises `ArchiveDamaged` and `ArchiveTooNew`."""
        return read_manifest(self.path, writer)

    def days(self, table: Table) -> tuple[str, ...]:
        """The days for which a table has a folder, rising, as `YYYY-MM-DD`. Raises `ArchiveDamaged`."""
        folder = self.path / table
        names = sorted(self.names(folder)) if folder.is_dir() else []
        return tuple(day for day in map(parse_day, names) if day is not None)

    def files(self, table: Table, *, first_day: str = "", last_day: str = "9") -> tuple[Path, ...]:
        """The files that hold a table's rows of these days, each row in exactly one of them, in the order of writing.

        Raises `ArchiveDamaged` and `ArchiveTooNew`.
        """
        manifest = self.manifest(WRITER_OF[table])
        if manifest is None:
            return ()
        if manifest.store == "delta":
            from equipoise.spark_jobs.archive.tables.delta import delta_files  # noqa: PLC0415 - needs an extra that few have

            return delta_files(self.path, table, first_day=first_day, last_day=last_day)
        found = []
        for day in self.days(table):
            if first_day <= day <= last_day:
                folder = self.path / table / day_folder(day)
                found += [folder / name.text for name in resolved(self.names(folder), manifest.last_batches)]
        return tuple(found)

    def names(self, folder: Path) -> list[str]:
        """What is in one of its folders. Raises `ArchiveDamaged`."""
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
        """The rows of a table in batches of bounded size, those of offsets from `first` to `last` alone where these are given.

        Columns that a file of an older version does not have are null. Raises what `files` and `file_batches` raise.
        """
        for path in self.files(table, first_day=first_day, last_day=last_day):
            yield from self.file_batches(path, table, columns=columns, first=first, last=last)

    def file_batches(
        self, path: Path, table: Table, *, columns: Sequence[str] | None = None, first: int | None = None, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As the function `file_batches`. Raises `ArchiveDamaged` for a file that cannot be read, `ArchiveFileGone` for none."""
        try:
            yield from file_batches(path, table, columns=columns, first=first, last=last)
        except FileNotFoundError as error:
            raise ArchiveFileGone(archive=str(self.path), file=str(path)) from error
        except (OSError, pa.ArrowException) as error:
            raise ArchiveDamaged(archive=str(self.path), problem=f"its file {path} cannot be read: {error}") from error

    def table(self, table: Table, *, columns: Sequence[str] | None = None, first_day: str = "", last_day: str = "9") -> pa.Table:
        """All rows of a table at once: for tables that fit into memory. Of findings that were found again, each once.

        With `columns`, that holds of findings as far as they tell one from another (`FINDING`). Raises what `batches` raises.
        """
        schema = _schema(table, columns)
        rows = read_again(
            lambda: pa.Table.from_batches(self.batches(table, columns=columns, first_day=first_day, last_day=last_day), schema=schema)
        )
        return _once(rows) if table is Table.FINDINGS and (columns is None or {*FINDING} <= {*columns}) else rows

    def frame(self, spark: SparkSession, table: Table, *, first_day: str = "", last_day: str = "9") -> DataFrame:
        """A table as a Spark frame, with `day` as its last column. Of findings that were found again, each once.

        Raises what `files` raises, and `ArchiveDamaged` for a file of no bytes, which Spark would pass over.
        """
        schema = ddl(SCHEMAS[table])
        files = self.files(table, first_day=first_day, last_day=last_day)
        if not files:
            return spark.createDataFrame([], schema)
        for path in files:
            with suppress(FileNotFoundError):  # Spark tells that itself, as of any file that goes while it reads.
                if not path.stat().st_size:
                    raise ArchiveDamaged(archive=str(self.path), problem=f"its file {path} has no bytes")
        frame = spark.read.schema(schema).option("basePath", str(self.path / table)).parquet(*map(_unglobbed, files))
        return frame.dropDuplicates(list(FINDING)) if table is Table.FINDINGS else frame


def _unglobbed(path: Path) -> str:
    """A path as Spark takes it for this one file: it expands what it reads, although not its `basePath`."""
    return _replace_glob_characters(r"\\\g<0>", str(path))


def read_again(read: Callable[[], Result]) -> Result:
    """What `read` reads of an archive, all of it anew where a file has gone meanwhile: it was joined into another.

    Raises what `read` raises, `ArchiveFileGone` too if that goes on for more than `LOOKS_MAX` times.
    """
    for _ in range(LOOKS_MAX):
        with suppress(ArchiveFileGone):
            return read()
    return read()


@contextmanager
def telling_damage() -> Iterator[None]:
    """Whatever form the damage of a file takes while pyarrow reads it, as the exceptions that `file_batches` names.

    To stand around reading alone: beyond it these exceptions are those of a mistake in a program.
    """
    try:
        yield
    except (OSError, pa.ArrowException):
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise pa.ArrowInvalid(f"{type(error).__name__}: {error}") from error


def file_offsets(path: Path) -> tuple[int, int, int]:
    """The first and last offset in a file, and how many rows it has, by its own statistics. The file is one of the archive's tables.

    Raises `OSError` and `pyarrow.ArrowException`.
    """
    with telling_damage(), pq.ParquetFile(path) as file:
        bounds = [_bounds(file, group) for group in range(file.num_row_groups)]
        found = [each for each in bounds if each is not None]
        if not found or len(found) < len(bounds):
            raise pa.ArrowInvalid("it does not say which offsets are in it")
        return min(first for first, _ in found), max(last for _, last in found), file.metadata.num_rows


def check_order(path: Path, table: Table, *, after: int) -> int:
    """The last offset in a file, whose first is above `after`, as that of the file before it.

    Raises `pyarrow.ArrowInvalid` for one whose offsets fall, as those may that others joined, and what `file_batches` raises.
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
    """The rows of one file in batches of bounded size; see `Archive.batches`. Groups of rows outside the offsets are not read.

    Raises `OSError` and `pyarrow.ArrowException`.
    """
    schema = _schema(table, columns)
    # What a reader does with a batch is outside of this, although it stands around the `yield`: it raises nothing in here.
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
    """The first and last offset in a group of rows, if the file says them. Raises `pyarrow.ArrowInvalid` if they cannot be offsets."""
    about = file.metadata
    column = file.schema_arrow.get_field_index("offset")
    if column < 0:
        raise pa.ArrowInvalid("it has no column offset")
    # Asked about a column whose descriptions in the file do not fit together, pyarrow ends the process, and raises nothing. Asked for a
    # row of it, it raises; but so it looks at no statistics, and the type by which those are read is compared here.
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
    """Raise `pyarrow.ArrowInvalid` where cells cannot be what was written: text that is none, and rows without an offset."""
    batch.validate(full=True)
    if batch["offset"].null_count:
        raise pa.ArrowInvalid("rows of it have no offset")


def _within(batch: pa.RecordBatch, first: int | None, last: int | None) -> pa.RecordBatch:
    if first is not None:
        batch = batch.filter(pc.greater_equal(batch["offset"], first))
    return batch if last is None else batch.filter(pc.less_equal(batch["offset"], last))


def _widened(batch: pa.RecordBatch, schema: pa.Schema, path: Path) -> pa.RecordBatch:
    """With all columns of the present version, and the day of the file's folder where that is asked for."""
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
    """A generation of the audit that began anew finds again what the one before it found: of these the first stays."""
    numbered = findings.append_column("row", pa.array(range(findings.num_rows), pa.int64()))
    firsts = numbered.group_by(list(FINDING)).aggregate([("row", "min")])["row_min"]
    return findings.take(firsts.sort())
