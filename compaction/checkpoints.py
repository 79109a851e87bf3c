"""Checkpoints: how many bytes of records stand below some offsets, so that a log can be kept by size.

May live here: which of them a marker goes on carrying.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from equipoise.channel.snapshots.snapshot_rows import CHECKPOINTS_MAX

RECORDS_BETWEEN: Final = 8_000
"""Records from one checkpoint to the next, at most, and so how much more than was asked for may be kept: 2 MB."""

Checkpoint = tuple[int, int]
"""A logical offset, and the size in bytes of all records up to it."""


def kept(checkpoints: Iterable[Checkpoint], *, first: int) -> tuple[Checkpoint, ...]:
    """Those from the logical offset `first` on, where the log now begins; of too many only every second, the newest among them."""
    left = [checkpoint for checkpoint in checkpoints if checkpoint[0] >= first]
    while len(left) > CHECKPOINTS_MAX:
        left = left[::-1][::2][::-1]
    return tuple(left)
