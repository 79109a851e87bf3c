"""The file of an SQLite log, as the operating system sees it: where it may be, what tells it from others, how it is opened.

May live here: functions over paths. What stands in the file is the business of `sqlite_log`.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from channel.errors import InvalidLogUrl, LogNotBegun

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

DISK_FULL_BYTES: Final = 65_536
"""Free space below which an input or output error is taken for a full disk: SQLite's shared memory grows by 32 KiB."""

FileId = tuple[int, int] | None
"""What tells a file from all others while it is open; None if it is gone."""


def usable_path(path: str, *, url: str, create: bool) -> Path:
    """The real path, where symbolic links lead: SQLite's own files stand beside that, so the bell must too.

    Raises `InvalidLogUrl` if no log can be there, and `LogNotBegun` if none is, and none is to be made.
    """
    if not path:
        raise InvalidLogUrl(url=url, problem="it has no path")
    try:
        real_path = Path(os.path.realpath(path))
        if real_path.exists():
            if not real_path.is_file():
                raise InvalidLogUrl(url=url, problem=f"{real_path} is not a regular file")
        elif not create:
            raise LogNotBegun(log=url, problem=f"there is no file {real_path}")
        elif not real_path.parent.is_dir():
            raise InvalidLogUrl(url=url, problem=f"there is no folder {real_path.parent}")
        os.fsencode(real_path)
    except (OSError, ValueError) as error:  # A name that is too long, or has a null or half a character in it.
        raise InvalidLogUrl(url=url, problem=str(error)) from error
    return real_path


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """A connection that waits for nobody, and leaves transactions to us."""
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
