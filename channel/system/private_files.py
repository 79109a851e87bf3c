"""Make the files beside a log or in a data directory, each for its owner alone, and find those that
every user may write.

Files that a user names as output (reports, archives) follow the user's umask instead.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

MODE: Final = 0o600


def make(path: Path) -> None:
    """Make an empty file with mode 0600, unless it exists: an existing file keeps its mode. Raises
    OSError.

    `mknod` opens no descriptor. Closing a descriptor of a database would drop SQLite's locks on it
    in this process.
    """
    with suppress(FileExistsError):
        os.mknod(path, MODE)


def writable_by_all(log: Path | None, folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield what every user of this machine may write, with its mode: a log, its companion files,
    its folder, and `folder`.

    A folder with the sticky bit is not among them: users can replace only their own files there.
    Skips paths that cannot be read.
    """
    paths = [folder]
    if log is not None:
        real = Path(os.path.realpath(log))
        with suppress(OSError):
            paths = [
                real.parent,
                *sorted(each for each in real.parent.iterdir() if each.name.startswith(real.name)),
                folder,
            ]
    for path in paths:
        with suppress(OSError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & stat.S_IWOTH and not (path.is_dir() and mode & stat.S_ISVTX):
                yield path, mode
