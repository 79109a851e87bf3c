"""Hold a lock that ends with the process, and see from other processes whether it is held.

The lock is that of the open file, as `fcntl(2)` calls it (OFD), because others can ask for it
without taking it (F_OFD_GETLK): a look never keeps the next holder from its lock, also if the
process that looks is stopped in the middle. A `flock` can only be tried. A lock of the process
(F_SETLK) ends when the process closes any other descriptor of the file.

A child that has a copy of the descriptor holds the lock, too: see `forked`. A stopped process holds
it. Only Linux has these locks, and an id of the boot.
"""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final, Self

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

# `struct flock`: type, whence, start, length (0: to the end), process id.
_LOCK: Final = Struct("hhqqi4x")


def this_boot(boot_id: Path = BOOT_ID) -> str:
    """Return an id of the current boot of the machine, or "" if the system has none."""
    try:
        return boot_id.read_text(encoding="ascii").strip()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedFile:
    """A file whose lock a process holds, for other processes of the same boot.

    The path is where to look. Device and inode tell the file: while the process holds it, no other
    file has them, not even a copy in its place.
    """

    boot_id: str
    device: int
    inode: int
    path: str

    def __str__(self) -> str:
        return f"{self.boot_id}:{self.device}:{self.inode}:{self.path}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return what `str` has made a text of; None for any other text."""
        match text.split(":", 3):
            case [boot_id, device, inode, path] if device.isdecimal() and inode.isdecimal():
                return cls(boot_id=boot_id, device=int(device), inode=int(inode), path=path)
        return None

    def open(self) -> int | None:
        """Return a descriptor for reading, which the caller closes; None if the file is not there.

        Raises OSError if it cannot be opened.
        """
        # The path may lead to anything: a named pipe must not block.
        file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        status = os.fstat(file)
        if (status.st_dev, status.st_ino) == (self.device, self.inode):
            return file
        os.close(file)
        return None


def hold(file: int, path: Path) -> LockedFile | None:
    """Lock an open file until its descriptor is closed. Return how others find it; None if they
    cannot.
    """
    boot_id = this_boot()
    if sys.platform != "linux" or not boot_id:
        return None
    with suppress(OSError):  # The file system has no such locks.
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        status = os.fstat(file)
        return LockedFile(
            boot_id=boot_id,
            device=status.st_dev,
            inode=status.st_ino,
            path=os.path.realpath(path),
        )
    return None


def is_held(file: int) -> bool:
    """Return whether another open file holds the lock. Raises OSError."""
    asked = _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    found, *_ = _LOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
    return bool(found != fcntl.F_UNLCK)
