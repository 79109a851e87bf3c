"""Make the files beside a log or in a data directory, each for its owner alone.

Files that a user names as output (exports, reports, archives) follow the user's umask instead.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

MODE: Final = 0o600


def make(path: Path) -> None:
    """Make an empty file with mode 0600, unless it exists: an existing file keeps its mode. Raises OSError.

    `mknod` opens no descriptor. Closing a descriptor of a database would drop SQLite's locks on it in this process.
    """
    with suppress(FileExistsError):
        os.mknod(path, MODE)
