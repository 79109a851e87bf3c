"""Where a stream begins that has no batch yet: noted beside its checkpoint, so that each attempt at the first batch begins alike.

May live here: `Beginning`, how it is kept, and where a log begins. Once a batch was committed the checkpoint alone says where it goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson

from channel.log import Log
from channel.restore import earliest
from channel.snapshot import to_bytes
from channel.sqlite_file import sync_folder
from compaction.compressed import shortened, whole_again
from spark_jobs.arrivals import Source

FILE: Final = "beginning"

SNAPSHOT_BYTES_MAX: Final = 1 << 30
"""As much as a snapshot of an archive may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """`positions` by source (`spark_jobs.arrivals.Source`; one that is not named begins with its first entry), and the view there.

    `snapshot` is that of `channel.snapshot`; None: the log begins with its first record.
    """

    positions: Mapping[str, int] = field(default_factory=dict)
    snapshot: bytes | None = None


def beginning_of(log: Log) -> Beginning:
    """Where all that is left of a log can be told from. Raises what `channel.restore.earliest` raises."""
    reader = earliest(log)
    snapshot = None if reader.view.offset < 0 else to_bytes(reader.view)
    return Beginning(positions={Source.CHANNEL.value: reader.position}, snapshot=snapshot)


def kept_beginning(checkpoint: Path, make: Callable[[], Beginning]) -> Beginning:
    """The beginning that is noted beside `checkpoint`; `make` makes the one that is noted there first. Raises `OSError`."""
    path = checkpoint / FILE
    if path.exists():
        head, _, packed = path.read_bytes().partition(b"\n")
        return Beginning(positions=orjson.loads(head), snapshot=whole_again(packed, size_max=SNAPSHOT_BYTES_MAX) if packed else None)
    made = make()
    checkpoint.mkdir(parents=True, exist_ok=True)
    part = checkpoint / f".{FILE}.part"
    with part.open("wb") as file:
        file.write(orjson.dumps(dict(made.positions)) + b"\n" + (b"" if made.snapshot is None else shortened(made.snapshot)))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path)
    return made
