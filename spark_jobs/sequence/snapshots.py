"""Turn a view into the snapshot of an archive (compressed, entries sorted by name), and back.

A restored view has another order of entries than a folded one. Sorting makes the rows equal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import zstandard

from equipoise.channel.core.errors import SnapshotDamaged
from equipoise.channel.core.snapshot import from_bytes, still
from equipoise.channel.core.view import View

COMPRESSION_LEVEL: Final = 3
"""zstd's default."""

SNAPSHOT_BYTES_MAX: Final = 1 << 30
"""Largest snapshot to decompress: 4,000,000 bundles at 250 bytes each."""


def compress(data: bytes) -> bytes:
    """Return a value as one compressed frame with its size and a checksum. `decompress` reverses
    it.
    """
    return zstandard.ZstdCompressor(level=COMPRESSION_LEVEL, write_checksum=True).compress(data)


def decompress(data: bytes, *, size_max: int) -> bytes:
    """Return what `compress` compressed. Raises `ValueError` if `data` is damaged, not a frame, or
    longer than `size_max` bytes.
    """
    try:
        if zstandard.frame_content_size(data) > size_max:
            raise ValueError(f"it claims to hold more than {size_max} bytes")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_max)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


def canonical(view: View) -> bytes:
    """Return the snapshot of a view (`channel.core.snapshot`), identical for equal views at one
    offset.
    """
    parts = still(view)
    return replace(
        parts,
        namespaces=tuple(sorted(parts.namespaces, key=lambda entry: entry.name)),
        policies=tuple(sorted(parts.policies, key=lambda entry: entry.name)),
        brokers=tuple(sorted(parts.brokers, key=lambda row: row[-1].key)),
        bundles=tuple(sorted(parts.bundles, key=lambda entry: entry.name)),
    ).to_bytes()


def packed(view: View) -> bytes:
    """Return the view as the body of a row of `Table.SNAPSHOTS`. `unpacked` reverses it."""
    return compress(canonical(view))


def unpacked(data: bytes) -> View:
    """Return the view from the output of `packed`. Raise `SnapshotDamaged`."""
    try:
        spelled = decompress(data, size_max=SNAPSHOT_BYTES_MAX)
    except ValueError as error:
        raise SnapshotDamaged(problem=f"it cannot be decompressed: {error}") from error
    return from_bytes(spelled)
