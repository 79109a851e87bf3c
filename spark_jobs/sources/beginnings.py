"""Find where a log begins, and replace files.

Files are written atomically and durably: even after a power cut a file is complete or absent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from equipoise.channel.core.log import Log
from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import beginning, earliest
from equipoise.channel.sqlite.file import sync_folder
from equipoise.spark_jobs.sequence.rows import Source


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The start positions of a stream and the view there.

    * `positions`: by source (`spark_jobs.sequence.rows.Source`). A missing source begins with
      its first entry.
    * `snapshot`: as in `channel.core.snapshot`. None if the log begins with its first record.
    """

    positions: Mapping[str, int] = field(default_factory=dict)
    snapshot: bytes | None = None


def beginning_of(log: Log) -> Beginning:
    """Return the earliest place from which a log can be read. Raises what
    `channel.snapshots.restore.earliest` raises.
    """
    reader = earliest(log)
    snapshot = None if reader.view.offset < 0 else to_bytes(reader.view)
    return Beginning(positions={Source.CHANNEL.value: reader.position}, snapshot=snapshot)


def beginning_at(log_url: str) -> Beginning:
    """Return `beginning_of` the log at a URL. Also raises what `channel.log.open_log` raises."""
    with closing(open_log(log_url, create=False)) as log:
        return beginning_of(log)


# See `spark_jobs.sequence.folding.Lost`.
def lost(log_url: str, first: int, below: int) -> bytes | None:  # noqa: ARG001
    """Answer `spark_jobs.sequence.folding.Lost` for the log at this URL.

    Gaps occur only after a failed write, so it may open the log each time. The log's start only
    rises: if it is not above `first` after the batch was read, nothing was lost.
    """
    with closing(open_log(log_url, create=False)) as log:
        return None if log.start() <= first else to_bytes(beginning(log).reader.view)
