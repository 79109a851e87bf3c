"""Read the archive's tables as Arrow batches and Spark frames.

Rows of the channel's tables come in order of their offsets: file names sort in order of writing,
and the log's time never falls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from equipoise.channel.core.errors import NotFound
from equipoise.spark_jobs.archive.tables.arrow import ddl
from equipoise.spark_jobs.archive.tables.layout import day_folder, parse_day, resolved
from equipoise.spark_jobs.archive.tables.manifest import Manifest, read_manifest
from equipoise.spark_jobs.archive.tables.parquet import file_batches, schema_of
from equipoise.spark_jobs.archive.tables.schema import SCHEMAS, WRITER_OF, WRITTEN_BY
from equipoise.spark_jobs.sequence.rows import Table
from equipoise.spark_jobs.streams.errors import ArchiveDamaged, ArchiveFileGone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOKS_MAX: Final = 3
"""Attempts to read after files have vanished. While an archive grows, its files are compacted,
which takes seconds each time."""

_replace_glob_characters: Final = re.compile(r"[\\*?\[\]{}]").sub

Result = TypeVar("Result")

FINDING: Final = ("rule", "subject", "offset", "text")
"""The columns that identify a finding. A finding of another generation with the same values is the
same finding."""


class Archive:
    """An archive. Every call looks at the files again, so readers see what was finished
    meanwhile.
    """

    def __init__(self, path: Path) -> None:
        """Open the archive in the folder `path`. Raises `NotFound`, and what `manifest` raises."""
        self.path = path
        if all(self.manifest(writer) is None for writer in WRITTEN_BY):
            raise NotFound(
                f"there is no archive at {path}; write one with `equipoise spark archive`, or name"
                " another with --archive"
            )

    def manifest(self, writer: str = "archive") -> Manifest | None:
        """Return a writer's manifest; None if it has written nothing. Raises what `read_manifest`
        raises.
        """
        return read_manifest(self.path, writer)

    def days(self, table: Table) -> tuple[str, ...]:
        """Return the days that have a folder in the table, in order, as `YYYY-MM-DD`. Raises
        `ArchiveDamaged`.
        """
        folder = self.path / table
        names = sorted(self.names(folder)) if folder.is_dir() else []
        return tuple(day for day in map(parse_day, names) if day is not None)

    def files(self, table: Table, *, first_day: str = "", last_day: str = "9") -> tuple[Path, ...]:
        """Return the files with a table's rows of these days, in order of writing. Each row is in
        exactly one of them.

        Raises `ArchiveDamaged`, and what `manifest` raises.
        """
        manifest = self.manifest(WRITER_OF[table])
        if manifest is None:
            return ()
        found = []
        for day in self.days(table):
            if first_day <= day <= last_day:
                folder = self.path / table / day_folder(day)
                found += [
                    folder / name.text
                    for name in resolved(self.names(folder), manifest.last_batches)
                ]
        return tuple(found)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder of the archive. Raises `ArchiveDamaged`."""
        try:
            return [path.name for path in folder.iterdir()]
        except OSError as error:
            raise ArchiveDamaged(
                archive=str(self.path), problem=f"its folder {folder} cannot be read: {error}"
            ) from error

    def batches(
        self, table: Table, *, columns: Sequence[str] | None = None, first: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a table in bounded batches, from the offset `first` on if given.

        Columns that an older file lacks are null. Raises what `files` and `file_batches` raise.
        """
        for path in self.files(table):
            yield from self.file_batches(path, table, columns=columns, first=first)

    def file_batches(
        self,
        path: Path,
        table: Table,
        *,
        columns: Sequence[str] | None = None,
        first: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Read as the function `file_batches`. Raises `ArchiveDamaged` for an unreadable file and
        `ArchiveFileGone` for a missing one.
        """
        try:
            yield from file_batches(path, table, columns=columns, first=first)
        except FileNotFoundError as error:
            raise ArchiveFileGone(archive=str(self.path), file=str(path)) from error
        except (OSError, pa.ArrowException) as error:
            raise ArchiveDamaged(
                archive=str(self.path), problem=f"its file {path} cannot be read: {error}"
            ) from error

    def table(self, table: Table, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows of a table that fits into memory. Duplicate findings are removed.

        With `columns`, duplicates are removed only if all columns of `FINDING` are included. Raises
        what `batches` raises.
        """
        schema = schema_of(table, columns)
        rows = read_again(
            lambda: pa.Table.from_batches(self.batches(table, columns=columns), schema=schema)
        )
        return (
            _once(rows)
            if table is Table.FINDINGS and (columns is None or {*FINDING} <= {*columns})
            else rows
        )

    def frame(
        self, spark: SparkSession, table: Table, *, first_day: str = "", last_day: str = "9"
    ) -> DataFrame:
        """Return a table as a Spark frame with `day` as its last column. Duplicate findings are
        removed.

        Raises what `files` raises, and `ArchiveDamaged` for an empty file, which Spark would skip.
        """
        schema = ddl(SCHEMAS[table])
        files = self.files(table, first_day=first_day, last_day=last_day)
        if not files:
            return spark.createDataFrame([], schema)
        for path in files:
            with suppress(FileNotFoundError):  # Spark reports files that vanish.
                if not path.stat().st_size:
                    raise ArchiveDamaged(
                        archive=str(self.path), problem=f"its file {path} has no bytes"
                    )
        frame = (
            spark.read.schema(schema)
            .option("basePath", str(self.path / table))
            .parquet(*map(_unglobbed, files))
        )
        return frame.dropDuplicates(list(FINDING)) if table is Table.FINDINGS else frame


def _unglobbed(path: Path) -> str:
    """Return a path escaped for Spark, which expands globs in the paths that it reads, but not in
    `basePath`.
    """
    return _replace_glob_characters(r"\\\g<0>", str(path))


def read_again(read: Callable[[], Result]) -> Result:
    """Return the result of `read`. Start again if a file vanished meanwhile because it was joined
    into another.

    Raises what `read` raises. Raises `ArchiveFileGone` if that happens more than `LOOKS_MAX` times.
    """
    for _ in range(LOOKS_MAX):
        with suppress(ArchiveFileGone):
            return read()
    return read()


def _once(findings: pa.Table) -> pa.Table:
    """Remove duplicate findings and keep the first. An audit that starts anew repeats the findings
    of the previous generation.
    """
    numbered = findings.append_column("row", pa.array(range(findings.num_rows), pa.int64()))
    firsts = numbered.group_by(list(FINDING)).aggregate([("row", "min")])["row_min"]
    return findings.take(firsts.sort())
