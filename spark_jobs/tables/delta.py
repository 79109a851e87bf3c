"""Open tables of Delta Lake and their files, in a folder or in object storage.

Object storage is named by a URL, as `s3://bucket/archive`. The environment has its keys, region and
address (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, ...).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from equipoise.channel.core.errors import OperatorError, PeerError
from equipoise.channel.sqlite.file import sync_folder
from equipoise.spark_jobs.streams.errors import ArchiveDamaged, ArchiveInUse

_FULL: Final = ("No space left", "Disk quota exceeded", "File too large")
_FULL_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


_PATIENCE: Final = {"max_retries": "3", "retry_timeout": "10s"}
"""How long one call waits for object storage. The jobs themselves repeat a batch for minutes."""


class DataFile(NamedTuple):
    """One file of a table, by the table's log: its path in the table, day, size, and the first and
    last offset and time of its rows; these are None in a file of intervals that last.
    """

    path: str
    day: str | None
    size_bytes: int
    rows: int
    first: int | None
    last: int | None
    first_at: datetime | None
    last_at: datetime | None


class Place:
    """The place of an archive: a folder, or a URL of object storage."""

    def __init__(self, place: str | Path) -> None:
        """Name the place. Nothing is opened."""
        self.text = str(place).rstrip("/") or "/"
        self.folder = None if "://" in self.text else Path(self.text)
        self.options = dict(_PATIENCE) if self.folder is None else None

    def __str__(self) -> str:
        return self.text

    def uri(self, name: str) -> str:
        """Return the place of a table."""
        return f"{self.text}/{name}"

    def opened(self, name: str) -> DeltaTable | None:
        """Open a table as it is now; None if there is none. Raises as `reading_errors`."""
        with self.reading_errors(name):
            try:
                return DeltaTable(self.uri(name), storage_options=self.options)
            except TableNotFoundError:
                return None

    @contextmanager
    def new_file(self, name: str, path: str) -> Iterator[IO[bytes]]:
        """Yield a new file of a table. It is durable at the end of the block."""
        if self.folder is None:
            with self._files(name).open_output_stream(path) as stream:
                yield stream
            return
        there = self.folder / name / path
        if not there.parent.is_dir():
            there.parent.mkdir(parents=True, exist_ok=True)
            # A power cut that loses a folder's name loses its contents.
            for made in (there.parent, there.parent.parent):
                sync_folder(made)
        with there.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        sync_folder(there)

    def keep_commit(self, name: str, version: int) -> None:
        """Make a commit of a table durable."""
        if self.folder is not None:
            commit = self.folder / name / "_delta_log" / f"{version:020}.json"
            descriptor = os.open(commit, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_folder(commit)

    def mend(self, name: str) -> None:
        """Remove the last commit of a table if a power cut left it empty."""
        if self.folder is not None:
            commits = sorted((self.folder / name / "_delta_log").glob("[0-9]*.json"))
            if len(commits) > 1 and not commits[-1].stat().st_size:
                commits[-1].unlink()

    def parquet(self, name: str, path: str) -> pq.ParquetFile:
        """Open a file of a table. Raises `OSError` and `pyarrow.ArrowException`."""
        if self.folder is not None:
            return pq.ParquetFile(self.folder / name / path)
        return pq.ParquetFile(self._files(name).open_input_file(path))

    def read_file(self, name: str) -> bytes | None:
        """Return a file beside the tables; None if there is none. Raises as `reading_errors`."""
        with self.reading_errors(name):
            try:
                with self._files("").open_input_file(name) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def write_file(self, name: str, data: bytes) -> None:
        """Write a file beside the tables. Raises as `writing_errors`."""
        with self.writing_errors(name, writer=name):
            stream = self._files("").open_output_stream(name)
            # The stream takes bytes only, which a larger buffer hands over.
            with pa.BufferedOutputStream(stream, 2 * len(data)) as file:
                file.write(data)

    def _files(self, name: str) -> pa_fs.FileSystem:
        return pa_fs.PyFileSystem(DeltaStorageHandler(self.uri(name), self.options))

    @contextmanager
    def reading_errors(self, what: str) -> Iterator[None]:
        """Translate errors while a table or a file is read. Raises `ArchiveDamaged`, and
        `PeerError` if object storage does not answer.
        """
        try:
            yield
        except TableNotFoundError:
            raise
        except (DeltaError, OSError, pa.ArrowException) as error:
            if self.folder is None and not isinstance(error, FileNotFoundError):
                raise self._away(error) from error
            raise ArchiveDamaged(
                archive=self.text, problem=f"its {what} cannot be read: {_brief(error)}"
            ) from error

    @contextmanager
    def writing_errors(self, name: str, *, writer: str) -> Iterator[None]:
        """Translate errors while a table is written. Raises `ArchiveInUse`, `OperatorError`, and
        `PeerError` if object storage does not answer.
        """
        try:
            yield
        except CommitFailedError as error:
            raise ArchiveInUse(archive=self.text, who=writer) from error
        except (DeltaError, OSError, pa.ArrowException) as error:
            number = error.errno if isinstance(error, OSError) else None
            if number in _FULL_ERRORS or any(sign in str(error) for sign in _FULL):
                raise OperatorError(
                    f"the disk of the archive {self.text} is full: the table {name} could not be"
                    " written; free space on it, and start again"
                ) from error
            if self.folder is None:
                raise self._away(error) from error
            raise OperatorError(
                f"the archive {self.text} cannot be written: {_brief(error)}; fix that, and start"
                " again"
            ) from error

    def _away(self, error: Exception) -> PeerError:
        return PeerError(
            f"the object storage of the archive {self.text} does not answer: {_brief(error)};"
            " check its address and keys, and start again when it is back"
        )


def files_of(table: DeltaTable) -> list[DataFile]:
    """Return the files of a table in the order of their offsets."""
    found: Any = pa.table(table.get_add_actions(flatten=True))
    names = found.column_names

    def column(name: str) -> list[Any]:
        return found[name].to_pylist() if name in names else [None] * found.num_rows

    days = (None if day is None else str(day) for day in column("partition.day"))
    files = map(
        DataFile,
        column("path"),
        days,
        column("size_bytes"),
        column("num_records"),
        column("min.log_offset"),
        column("max.log_offset"),
        column("min.logged_at"),
        column("max.logged_at"),
    )
    return sorted(files, key=lambda file: (file.first is None, file.first or 0, file.path))


def _brief(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())[:500]
