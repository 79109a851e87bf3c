"""Read the archive's tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from equipoise.channel.core.errors import NotFound
from equipoise.channel.core.view import View
from equipoise.spark_jobs.sequence.rows import Arrival, Source, Table
from equipoise.spark_jobs.sequence.snapshots import unpacked
from equipoise.spark_jobs.tables.arrow import arrow_schema
from equipoise.spark_jobs.tables.delta import DataFile, Place, files_of
from equipoise.spark_jobs.tables.files import AUDITED_FILE, read_file
from equipoise.spark_jobs.tables.schema import SCHEMAS, WRITTEN_BY
from equipoise.spark_jobs.tables.writing import ABOUT, STATE, check_table, names_of

_ARRIVAL: Final = ("log_offset", "position", "logged_at", "behind_ms", "bytes")
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")

BATCH_ROWS = 16 * 1024
"""Rows per Arrow batch: 4 MB of records."""


class Tables:
    """The tables of an archive in a folder, or at a URL of object storage. Each call sees what is
    there now. Each raises `ArchiveDamaged`, and `PeerError` if object storage does not answer.
    """

    def __init__(self, place: str | Path | Place) -> None:
        """Open the archive at `place`. Raises `NotFound`, and `OperatorError` for a newer one."""
        self.place = place if isinstance(place, Place) else Place(place)
        if not any(self.is_written(writer) for writer in WRITTEN_BY):
            raise NotFound(
                f"there is no archive at {place}; write one with `equipoise archive`, or name"
                " another with --archive"
            )

    def is_written(self, writer: str) -> bool:
        """Return whether `writer` (`archive`, `audit`) has written here."""
        for name in names_of(writer):
            found = self.place.opened(name)
            if found is not None:
                check_table(found, self.place)
                return True
        return writer == "audit" and read_file(self.place.text, AUDITED_FILE) is not None

    @property
    def url(self) -> str | None:
        """The last URL of the log; None if it is not known."""
        about = read_file(self.place.text, AUDITED_FILE)
        table = self.place.opened(STATE)
        if table is not None:
            with self.place.reading_errors("state"):
                rows = table.to_pyarrow_dataset().to_table(filter=ds.field("key") == ABOUT)
            about = rows["data"][0].as_py() if rows.num_rows else about
        return None if about is None else str(orjson.loads(about)["url"])

    def position(self, table: Table = Table.RECORDS) -> int:
        """Return the position at which a table continues: 0 in an empty one."""
        found = self.place.opened(table)
        version = None if found is None else found.transaction_version(SCHEMAS[table].source.value)
        return version or 0

    def dataset(self, table: Table) -> ds.Dataset:
        """Return a table as it is now, with the columns of `SCHEMAS[table]` and then `day`."""
        found = self.place.opened(table)
        schema = arrow_schema(SCHEMAS[table])
        if found is None:
            return ds.dataset(schema.empty_table())
        check_table(found, self.place)
        with self.place.reading_errors(f"table {table}"):
            return found.to_pyarrow_dataset(schema=schema)

    def table(self, table: Table, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows of a table that fits into memory, in the order of their offsets."""
        with self.place.reading_errors(f"table {table}"):
            found = self.dataset(table).to_table()
        order = [
            (name, "ascending") for name in ("log_offset", "ordinal") if name in found.schema.names
        ]
        found = found.sort_by(order)
        return found if columns is None else found.select(columns)

    def files(self, table: Table) -> list[DataFile]:
        """Return the files of a table in the order of their offsets."""
        found = self.place.opened(table)
        if found is None:
            return []
        with self.place.reading_errors(f"table {table}"):
            return files_of(found)

    def batches(
        self, table: Table, *, columns: Sequence[str], first: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table from the offset `first` on, in bounded batches in order.
        `columns` has `log_offset`.
        """
        for file in self.files(table):
            if file.last is not None and file.last >= first:
                with self.place.reading_errors(f"file {table}/{file.path}"):
                    yield from file_batches(
                        self.place, table, file.path, columns=columns, first=first
                    )

    def arrivals(self, first: int = 0) -> Iterator[list[Arrival]]:
        """Yield the records from the offset `first` on as a source gives them, in batches."""
        for batch in self.batches(Table.RECORDS, columns=_ARRIVAL, first=first):
            logged_ms = pc.cast(pc.cast(batch["logged_at"], _MILLISECONDS), pa.int64())
            columns = (
                batch["position"],
                pc.subtract(logged_ms, batch["behind_ms"]),
                batch["bytes"],
            )
            values = zip(*(column.to_pylist() for column in columns), strict=True)
            yield [Arrival(Source.CHANNEL.value, *each) for each in values]

    def snapshot(self, first: int = 0) -> View | None:
        """Return the first snapshot at the offset `first` or above; None if there is none. Raises
        `SnapshotDamaged`, too.
        """
        for batch in self.batches(Table.SNAPSHOTS, columns=("log_offset", "bytes"), first=first):
            for data in batch["bytes"]:
                return unpacked(data.as_py() or b"")
        return None


def file_batches(
    place: Place,
    table: Table,
    path: str,
    *,
    columns: Sequence[str],
    first: int = 0,
    last: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one file with offsets from `first` to `last`, in bounded batches. `columns`
    has `log_offset`.

    Raises `OSError` and `pyarrow.ArrowException`.
    """
    whole = arrow_schema(SCHEMAS[table])
    schema = pa.schema([whole.field(name) for name in columns])
    with _damage_translated(), place.parquet(table, path) as file:
        for group in range(file.num_row_groups):
            # Not by its statistics: if they are damaged, pyarrow ends the process.
            offsets = file.read_row_group(group, columns=["log_offset"], use_threads=False)
            if not _overlaps(offsets["log_offset"], first=first, last=last):
                continue
            for batch in file.iter_batches(
                BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False
            ):
                batch = _checked(batch, schema)  # noqa: PLW2901 - the same rows
                within = pc.greater_equal(batch["log_offset"], first)
                if last is not None:
                    within = pc.and_(within, pc.less_equal(batch["log_offset"], last))
                yield batch if pc.all(within).as_py() else batch.filter(within)


def _checked(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`. Raise `pyarrow.ArrowInvalid` for cells that were never
    written so.
    """
    batch.validate(full=True)
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing:
        raise pa.ArrowInvalid(f"it has no column {missing[0]}")
    if "logged_at" in schema.names and batch["logged_at"].null_count:
        raise pa.ArrowInvalid("rows of it have no time")
    return pa.RecordBatch.from_arrays(
        [batch[field.name].cast(field.type) for field in schema], schema=schema
    )


def _overlaps(offsets: pa.ChunkedArray, *, first: int, last: int | None) -> bool:
    if offsets.type != pa.int64() or offsets.null_count:
        raise pa.ArrowInvalid("rows of it have no offset")
    found = pc.min_max(offsets).as_py()
    return found["max"] >= first and (last is None or found["min"] <= last)


@contextmanager
def _damage_translated() -> Iterator[None]:
    """Translate pyarrow's various exceptions for damaged files into `pyarrow.ArrowInvalid`.

    Put only reading inside: elsewhere these exceptions are programming errors.
    """
    try:
        yield
    except (OSError, pa.ArrowException):
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise pa.ArrowInvalid(f"{type(error).__name__}: {error}") from error
