"""Compress single values with zstd. Only this module uses zstd."""

from __future__ import annotations

from typing import Final

import zstandard

LEVEL: Final = 3
"""zstd's default."""


def compress(data: bytes) -> bytes:
    """Return a value as one compressed frame with its size and a checksum. `decompress` reverses
    it.
    """
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(data)


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
