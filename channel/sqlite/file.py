"""The file of an SQLite log, as the operating system sees it: where it may be, what tells it from others, how it is made and opened.

May live here: functions over paths. What stands in the file is the business of `sqlite_log`.
"""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from equipoise.channel.core.errors import InvalidLogUrl, LogHardLinked, LogNotBegun
from equipoise.channel.system import private_files

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

DISK_FULL_BYTES: Final = 65_536
"""Free space below which an input or output error is taken for a full disk: SQLite's shared memory grows by 32 KiB."""

FileId = tuple[int, int] | None
"""What tells a file from all others while it is open; None if it is gone."""


def usable_path(path: str, *, url: str, create: bool) -> Path:
    """The real path, where symbolic links lead: SQLite's own files stand beside that, so the notifier must too.

    Raises `InvalidLogUrl` if no log can be there, `LogNotBegun` if none is and none is to be made, and `LogHardLinked`.
    """
    if not path:
        raise InvalidLogUrl(url=url, problem="it has no path")
    try:
        real_path = Path(os.path.realpath(path))
        os.fsencode(real_path)
        status = _status(real_path)
        if status is not None:
            if not stat.S_ISREG(status.st_mode):
                raise InvalidLogUrl(url=url, problem=f"{real_path} is not a regular file")
            _refuse_hard_links(real_path, log=url)
        elif not create:
            raise LogNotBegun(log=url, problem=f"there is no file {real_path}")
        elif not real_path.parent.is_dir():
            raise InvalidLogUrl(url=url, problem=f"there is no folder {real_path.parent}")
    except (OSError, ValueError) as error:  # A name that is too long, or has a null or half a character in it; a loop of links.
        raise InvalidLogUrl(url=url, problem=str(error)) from error
    return real_path


def _status(path: Path) -> os.stat_result | None:
    """What the system knows of a file; None if there is none. Raises OSError where that cannot be known."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return path.stat()
    return None


def _refuse_hard_links(path: Path, *, log: str) -> None:
    """Raise `LogHardLinked` if the database or a file of SQLite's beside it has a second name.

    SQLite finds the WAL and the shared memory by the name of the database. Two processes that open one database by two names
    share neither, so each appends at the same offsets.
    """
    for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        status = _status(file)
        if status is not None and status.st_nlink > 1:
            raise LogHardLinked(log=log, path=str(file), names=status.st_nlink)


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """A connection that waits for nobody, and leaves transactions to us. A file that it makes is for its owner alone.

    SQLite gives the WAL and the shared memory the permissions of the database. Where no file can be made, SQLite reports the error.
    """
    if create:
        with suppress(OSError):
            private_files.make(path)
    uri = f"file:{quote(os.fsencode(path))}?mode={'rwc' if create else 'rw'}"
    connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
    connection.text_factory = bytes  # So that damaged text is not an error of Python's before we can look at it.
    return connection


def this_boot(boot_id: Path) -> str:
    """What tells one run of the machine from the next; "" where the system does not say.

    There offsets do not skip ahead, so only `Synchronous.FULL` is safe, which does not need it.
    """
    try:
        return boot_id.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def with_id(path: Path) -> tuple[Path, FileId]:
    """A path, and what tells the file there from all others while it is open; None if it is gone already."""
    try:
        status = path.stat()
    except OSError:
        return path, None
    return path, (status.st_dev, status.st_ino)


def sync_folder(path: Path) -> None:
    """Make the name of a new file as durable as what is in it."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def is_disk_full(path: Path) -> bool:
    """Whether so little is free on the disk of `path` that SQLite cannot work there."""
    try:
        status = os.statvfs(path.parent)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < DISK_FULL_BYTES
