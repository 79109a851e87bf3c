"""Read and write ARCHIVE/WRITER.json: the log that a writer archives, its progress and its
format.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import orjson

from equipoise.channel.core.errors import OperatorError
from equipoise.spark_jobs.archive.tables.schema import ARCHIVE_FORMAT, SCHEMAS, WRITTEN_BY
from equipoise.spark_jobs.sources.beginnings import replacing
from equipoise.spark_jobs.streams.errors import ArchiveDamaged

MANIFEST_BYTES_MAX: Final = 1 << 20
"""A hundred times the size of a thousand generations of ten bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The progress of one writer.

    * `log`, `url`: the identity of the log, and its last URL.
    * `generation`, `batch`: the last finished ones; -1 for none.
    * `finished`: the last batch of each earlier generation.
    * `positions`: the storage offset at which each source continues
      (`spark_jobs.sequence.rows.Source`).
    * `base`: the difference between the channel's logical and storage offsets.
    * `batch_rows`: rows per table in the last batch; None in manifests written before this field
      existed.
    """

    writer: str
    log: str
    url: str
    generation: int = 1
    batch: int = -1
    positions: Mapping[str, int] = field(default_factory=dict)
    base: int = 0
    batch_rows: Mapping[str, int] | None = None
    finished: Mapping[int, int] = field(default_factory=dict)

    @property
    def last_batches(self) -> Mapping[int, int]:
        """The last batch of each generation, including the current one."""
        return {**self.finished, self.generation: self.batch}


def manifest_path(archive: Path, writer: str) -> Path:
    """Return the manifest file of a writer."""
    return archive / f"{writer}.json"


def read_manifest(archive: Path, writer: str) -> Manifest | None:
    """Read a writer's manifest; None if it has written nothing. Raises `ArchiveDamaged`, and
    `OperatorError` for other formats.
    """
    path = manifest_path(archive, writer)
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ArchiveDamaged(
            archive=str(archive), problem=f"{path.name} cannot be read: {error.strerror}"
        ) from error
    try:
        raw = orjson.loads(data)
        versions, form = dict(raw.pop("tables")), int(raw.pop("format"))
        _check_versions(archive, form, versions)
        raw["finished"] = {int(generation): batch for generation, batch in raw["finished"].items()}
        return Manifest(**raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArchiveDamaged(
            archive=str(archive), problem=f"{path.name} does not describe an archive: {error}"
        ) from error


def write_manifest(archive: Path, manifest: Manifest) -> None:
    """Replace a writer's manifest durably. Raises `OperatorError`."""
    versions = {str(table): SCHEMAS[table].version for table in WRITTEN_BY[manifest.writer]}
    raw = {"format": ARCHIVE_FORMAT, **asdict(manifest), "tables": versions}
    data = orjson.dumps(
        raw, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
    )
    path = manifest_path(archive, manifest.writer)
    with write_errors(archive, path), replacing(path, part=archive / f".{path.name}.part") as file:
        file.write(data)


@contextmanager
def write_errors(archive: Path, file: Path) -> Iterator[None]:
    """Translate the operating system's errors while writing `file` into an `OperatorError`."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise OperatorError(
                f"the disk of the archive {archive} is full: {file} could not be written; free"
                " space on it, and start again"
            ) from error
        raise OperatorError(
            f"the archive {archive} cannot be written: {file}: {error.strerror or error}; fix that,"
            " and start again"
        ) from error


def _check_versions(archive: Path, form: int, versions: Mapping[str, int]) -> None:
    if form > ARCHIVE_FORMAT:
        raise _too_new(archive, "the format", found=form, supported=ARCHIVE_FORMAT)
    known = {str(table): schema.version for table, schema in SCHEMAS.items()}
    for table, version in sorted(versions.items()):
        if version > known.get(table, 0):
            raise _too_new(
                archive, f"the table {table}", found=version, supported=known.get(table, 0)
            )


def _too_new(archive: Path, what: str, *, found: int, supported: int) -> OperatorError:
    return OperatorError(
        f"{what} of the archive {archive} has version {found}, this version reads up to"
        f" {supported}; install a newer Equipoise"
    )
