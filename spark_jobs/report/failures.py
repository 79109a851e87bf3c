"""Translate Spark's errors about archive files into Equipoise errors that name the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from equipoise.spark_jobs.streams.causes import spark_failed
from equipoise.spark_jobs.streams.errors import ArchiveDamaged, ArchiveFileGone

if TYPE_CHECKING:
    from equipoise.channel.core.errors import EquipoiseError

JOB: Final = "report"

# For a failed task Spark reports a file URL. For a file missing at planning time it reports a plain path.
_find_unread: Final = re.compile(r"\[FAILED_READ_FILE\.(?P<how>\w+)\][^\n]* file:/+(?P<address>[^\n]*\.parquet)").search
_find_not_found: Final = re.compile(r"\[PATH_NOT_FOUND\][^\n]* file:/+(?P<path>[^\n]*\.parquet)").search
_find_causes: Final = re.compile(r"^Caused by: (?:[\w.$]+: )?(?P<cause>\S[^\n]*)", re.MULTILINE).findall
_without_call: Final = re.compile(r"\AAn error occurred while calling [^\n]*\n: ")


@contextmanager
def failures_named(archive: Path) -> Iterator[None]:
    """Raise `ArchiveFileGone` for a missing file, `ArchiveDamaged` for an unreadable file and `PeerError` for all other Spark errors."""
    try:
        yield
    except (PySparkException, Py4JError) as error:  # PySpark raises the first if it knows the error's Java class, else the second.
        raise _named(archive, str(error)) from error


def _named(archive: Path, said: str) -> EquipoiseError:
    not_found, unread = _find_not_found(said), _find_unread(said)
    if not_found is not None:
        return ArchiveFileGone(archive=str(archive), file=f"/{not_found['path']}")
    if unread is None:
        return spark_failed(JOB, _without_call.sub("", said))
    file = f"/{unquote(unread['address'])}"
    if unread["how"] == "FILE_NOT_EXIST":
        return ArchiveFileGone(archive=str(archive), file=file)
    causes = _find_causes(said)
    return ArchiveDamaged(archive=str(archive), problem=f"its file {file} cannot be read{f': {causes[-1]}' if causes else ''}")
