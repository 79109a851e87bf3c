"""Files that are whole, or are not there: how a job writes one so that nobody, not even after a power cut, sees half of it.

May live here: `replacing`. What is written is its callers' own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from equipoise.channel.sqlite.file import sync_folder


@contextmanager
def replacing(path: Path, *, part: Path) -> Iterator[BinaryIO]:
    """What is written in the block is all of the file `path` after it; an older one is replaced. Until then it is called `part`.

    Its bytes are safe before it has its name, and its name is safe when the block ends. Raises `OSError`.
    """
    with part.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path)
