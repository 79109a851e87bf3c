"""What a writer of the archive says of itself in ARCHIVE/WRITER.json: of which log it is, how far it has come, and in which form.

May live here: that file, its spelling and checks, and how it is told that a file of an archive cannot be written.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal

import orjson

from equipoise.spark_jobs.archive.tables.schema import ARCHIVE_FORMAT, SCHEMAS, WRITTEN_BY
from equipoise.spark_jobs.sources.whole_files import replacing
from equipoise.spark_jobs.streams.archive_errors import ArchiveDamaged, ArchiveFull, ArchiveTooNew, ArchiveUnwritable

Store = Literal["parquet", "delta"]

MANIFEST_BYTES_MAX: Final = 1 << 20
"""A thousand generations of ten bytes, a hundred times over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one writer has written.

    `log` is the identity of the log and `url` how it was named last. `generation` and `batch` are the last that is finished, -1 for
    none; `finished` says of each generation before, which batch was its last. `positions` are those at which each source goes on
    (`spark_jobs.sequence.arrivals.Source`, storage offsets), and `base` is what the channel's logical offsets have above these.
    `batch_rows` is how many rows of each table the last batch had; None where nobody counted them, as before there was this field.
    """

    writer: str
    log: str
    url: str
    store: Store = "parquet"
    generation: int = 1
    batch: int = -1
    positions: Mapping[str, int] = field(default_factory=dict)
    base: int = 0
    batch_rows: Mapping[str, int] | None = None
    finished: Mapping[int, int] = field(default_factory=dict)

    @property
    def last_batches(self) -> Mapping[int, int]:
        """Which batch is the last of each generation, the present one's among them."""
        return {**self.finished, self.generation: self.batch}


def manifest_path(archive: Path, writer: str) -> Path:
    """The file of a writer."""
    return archive / f"{writer}.json"


def read_manifest(archive: Path, writer: str) -> Manifest | None:
    """What a writer says of itself; None if it has written nothing. Raises `ArchiveDamaged` and `ArchiveTooNew`."""
    path = manifest_path(archive, writer)
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ArchiveDamaged(archive=str(archive), problem=f"{path.name} cannot be read: {error.strerror}") from error
    try:
        raw = orjson.loads(data)
        versions, form = dict(raw.pop("tables")), int(raw.pop("format"))
        _check_versions(archive, form, versions)
        raw["finished"] = {int(generation): batch for generation, batch in raw["finished"].items()}
        return Manifest(**raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArchiveDamaged(archive=str(archive), problem=f"{path.name} is no description of an archive: {error}") from error


def write_manifest(archive: Path, manifest: Manifest) -> None:
    """Replace what a writer says of itself, durably. Raises `ArchiveFull` and `ArchiveUnwritable`."""
    versions = {str(table): SCHEMAS[table].version for table in WRITTEN_BY[manifest.writer]}
    raw = {"format": ARCHIVE_FORMAT, **asdict(manifest), "tables": versions}
    data = orjson.dumps(raw, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE)
    path = manifest_path(archive, manifest.writer)
    with told(archive, path), replacing(path, part=archive / f".{path.name}.part") as file:
        file.write(data)


@contextmanager
def told(archive: Path, file: Path) -> Iterator[None]:
    """What the operating system refuses while `file` is written, as the archive's own errors: `ArchiveFull`, `ArchiveUnwritable`."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise ArchiveFull(archive=str(archive), file=str(file)) from error
        raise ArchiveUnwritable(archive=str(archive), problem=f"{file}: {error.strerror or error}") from error


def _check_versions(archive: Path, form: int, versions: Mapping[str, int]) -> None:
    if form > ARCHIVE_FORMAT:
        raise ArchiveTooNew(archive=str(archive), what="the format", found=form, supported=ARCHIVE_FORMAT)
    known = {str(table): schema.version for table, schema in SCHEMAS.items()}
    for table, version in sorted(versions.items()):
        if version > known.get(table, 0):
            raise ArchiveTooNew(archive=str(archive), what=f"the table {table}", found=version, supported=known.get(table, 0))
