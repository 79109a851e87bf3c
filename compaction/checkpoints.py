"""Choose the checkpoints that a marker keeps: how many bytes of records lie below some offsets, for retention by size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from equipoise.channel.snapshots.snapshot_rows import CHECKPOINTS_MAX

RECORDS_BETWEEN: Final = 8_000
"""Records between two checkpoints, at most. Up to this much more than requested is kept: 2 MB."""

Checkpoint = tuple[int, int]
"""A logical offset, and the size in bytes of all records up to it."""


def kept(checkpoints: Iterable[Checkpoint], *, first: int) -> tuple[Checkpoint, ...]:
    """Return those from logical offset `first`, the log's start, on. If there are too many, keep every second and the newest."""
    left = [checkpoint for checkpoint in checkpoints if checkpoint[0] >= first]
    while len(left) > CHECKPOINTS_MAX:
        left = left[::-1][::2][::-1]
    return tuple(left)
