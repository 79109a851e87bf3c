"""Write files atomically and durably: even after a power cut a file is complete or absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from equipoise.channel.sqlite.file import sync_folder


@contextmanager
def replacing(path: Path, *, part: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` when the block ends. Until then it is named `part`.

    The contents are on disk before the file has its name. The name is on disk when the block ends.
    Raises `OSError`.
    """
    with part.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path)
