"""Files that the product makes beside a log or in a data directory: each is for its owner alone.

May live here: `make`. Files that a user names as output (exports, reports, archives) follow the user's umask instead.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

MODE: Final = 0o600


def make(path: Path) -> None:
    """Make an empty file of the mode 0600, unless there is one: that keeps its mode. Raises OSError.

    `mknod` opens no descriptor. To close one of a database drops the locks that SQLite holds on it in this process.
    """
    with suppress(FileExistsError):
        os.mknod(path, MODE)
