"""Read and write lines in files, and single values, that may be compressed with zstd.

Only this module uses zstd. `exporting` defines the lines.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, BinaryIO, Final

import zstandard

SUFFIX: Final = ".zst"

_MAGIC: Final = b"\x28\xb5\x2f\xfd"  # The first bytes of each zstd frame (RFC 8878).

LINE_BYTES_MAX: Final = 8 << 20
"""The longest line that is read: a record of 1 MiB, each byte written as up to six (`\\u0000`), and
the verdict."""

LEVEL: Final = 3
"""zstd's default: an export shrinks to about a tenth at 300 MB/s, faster than it is made."""


def is_compressed(file: str) -> bool:
    """Return whether a file of this name is to be compressed."""
    return file.endswith(SUFFIX)


@contextmanager
def written(file: BinaryIO, *, compressed: bool) -> Iterator[IO[bytes]]:
    """Yield a stream that writes to `file`. The file is whole when the block ends without an
    error.
    """
    if not compressed:
        yield file
        file.flush()
        return
    with zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(
        file, closefd=False
    ) as stream:
        yield stream
    file.flush()


def lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file, compressed or not. Its first bytes decide.

    A line longer than `LINE_BYTES_MAX` is cut into several. Raises `ValueError` if a compressed
    file is damaged or cut off.
    """
    head = file.read(len(_MAGIC))
    whole = io.BufferedReader(_Chain(head, file))
    if head != _MAGIC:
        yield from _lines(whole)
        return
    try:
        with zstandard.ZstdDecompressor().stream_reader(whole, read_across_frames=True) as stream:
            yield from _lines(io.BufferedReader(stream))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error


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


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(LINE_BYTES_MAX):
        yield line


class _Chain(io.RawIOBase):
    """A stream whose first bytes have already been read, because a pipe cannot seek back."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    # Of all buffers only this one is ever given.
    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._head[: len(buffer)] if self._head else self._rest.read(len(buffer))
        self._head = self._head[len(data) :]
        buffer[: len(data)] = data
        return len(data)
