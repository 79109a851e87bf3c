"""Find, identify, create and open the file of an SQLite log."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from equipoise.channel.core.errors import LogNotBegun, OperatorError, invalid_log_url
from equipoise.channel.system import private_files

DISK_FULL_BYTES: Final = 65_536
"""Free space below which an I/O error counts as a full disk: SQLite's shared memory grows by 32
KiB."""

FileId = tuple[int, int] | None
"""Identifies a file while it is open: device and inode. None if the file is gone."""


def usable_path(path: str, *, url: str, create: bool) -> Path:
    """Return the real path, without symbolic links. SQLite keeps its own files beside that path, so
    the notifier must, too.

    Raises `CallerError` if no log can be there, `LogNotBegun` if there is none and `create` is
    false, and `OperatorError` if a file of the log has a hard link.
    """
    if not path:
        raise invalid_log_url(url=url, problem="it has no path")
    try:
        real_path = Path(os.path.realpath(path))
        os.fsencode(real_path)
        status = _status(real_path)
        if status is not None:
            if not stat.S_ISREG(status.st_mode):
                raise invalid_log_url(url=url, problem=f"{real_path} is not a regular file")
            _refuse_hard_links(real_path, log=url)
        elif not create:
            raise LogNotBegun(log=url, problem=f"there is no file {real_path}")
        elif not real_path.parent.is_dir():
            raise invalid_log_url(url=url, problem=f"there is no folder {real_path.parent}")
    except (OSError, ValueError) as error:
        # The name is too long, holds a null or an invalid character, or is a loop of links.
        raise invalid_log_url(url=url, problem=str(error)) from error
    return real_path


def _status(path: Path) -> os.stat_result | None:
    """Return the status of a file, or None if there is no file. Raises OSError if it cannot be
    read.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.stat()
    return None


def _refuse_hard_links(path: Path, *, log: str) -> None:
    """Raise `OperatorError` if the database, its WAL or its shared memory has a second name.

    SQLite derives the names of the WAL and the shared memory from the name of the database. Two
    processes that open one database by two names share neither, so both append at the same offsets.
    """
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        status = _status(file)
        if status is not None and status.st_nlink > 1:
            raise OperatorError(
                f"the log {log} cannot be opened: {file} has {status.st_nlink} names (hard links),"
                " and two brokers that open it by different names would corrupt it; delete the"
                f" other names (find / -xdev -samefile {file}), and make backups with `equipoise"
                " channel copy --leave-open`, not by hard links"
            )


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Return a connection that does not wait for locks and leaves transactions to the caller.

    A file that it creates is readable by its owner only; SQLite gives the WAL and the shared memory
    the same permissions. If the file cannot be created, SQLite reports the error.
    """
    if create:
        with suppress(OSError):
            private_files.make(path)
    uri = f"file:{quote(os.fsencode(path))}?mode={'rwc' if create else 'rw'}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False
    )
    connection.text_factory = bytes  # So that the caller, not Python, detects damaged text.
    return connection


def with_id(path: Path) -> tuple[Path, FileId]:
    """Return `path` with the id of its file."""
    try:
        status = path.stat()
    except OSError:
        return path, None
    return path, (status.st_dev, status.st_ino)


def sync_folder(path: Path) -> None:
    """Sync the folder, so that the name of a new file is as durable as its content."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def is_disk_full(path: Path) -> bool:
    """Return whether the disk of `path` has too little space for SQLite."""
    try:
        status = os.statvfs(path.parent)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < DISK_FULL_BYTES
