"""Lock an archive, and keep small files beside its tables, without the libraries that tables need:
those take 70 MB.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from equipoise.channel.core.errors import OperatorError
from equipoise.spark_jobs.sources.beginnings import replacing
from equipoise.spark_jobs.streams.errors import ArchiveInUse

AUDITED_FILE: Final = "audited.json"
"""The offset that the audit of an archive has reached, and its log."""


def folder_of(place: str | Path) -> Path | None:
    """Return the folder of an archive; None for a URL of object storage."""
    return None if "://" in str(place) else Path(place)


def read_file(place: str | Path, name: str) -> bytes | None:
    """Return a file of an archive; None if there is none. Raises `PeerError` if object storage does
    not answer, and `OSError`.
    """
    folder = folder_of(place)
    if folder is None:
        from equipoise.spark_jobs.tables.delta import Place  # noqa: PLC0415 - see above

        return Place(place).read_file(name)
    try:
        return (folder / name).read_bytes()
    except FileNotFoundError:
        return None


def write_file(place: str | Path, name: str, data: bytes) -> None:
    """Write a file of an archive in one step. Raises `OperatorError`, and `PeerError` if object
    storage does not answer.
    """
    folder = folder_of(place)
    if folder is None:
        from equipoise.spark_jobs.tables.delta import Place  # noqa: PLC0415 - see above

        Place(place).write_file(name, data)
        return
    try:
        with replacing(folder / name, part=folder / f".{name}.part") as file:
            file.write(data)
    except OSError as error:
        raise unwritable(folder / name, error) from error


def unwritable(path: Path, error: OSError) -> OperatorError:
    """Return the error for a file or folder that cannot be written."""
    return OperatorError(
        f"{path} cannot be written: {error.strerror or error}; fix that, and start again: it"
        " continues where it stopped"
    )


def locked(folder: Path, who: str) -> int:
    """Make a folder, and return the descriptor of its lock file, locked until it is closed or the
    process ends. Raises `ArchiveInUse`, and `OperatorError` without write access.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / f".{who}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise ArchiveInUse(archive=str(folder), who=who) from error
    return descriptor
