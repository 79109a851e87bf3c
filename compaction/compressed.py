"""Lines in files that may be compressed, and single values that are: the one place that knows of zstd.

May live here: opening such files to read and to write, how it is told whether one is compressed, and values that are kept short.
What stands in the lines is the business of `exporting`.
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
"""The longest line that is read: a record of 1 MiB, of which each byte may be spelled by six (`\\u0000`), and the verdict."""

LEVEL: Final = 3
"""zstd's default: an export shrinks to about a tenth at 300 MB/s, faster than it is made."""


def is_compressed(file: str) -> bool:
    """Whether a file is to be compressed by its name."""
    return file.endswith(SUFFIX)


@contextmanager
def written(file: BinaryIO, *, compressed: bool) -> Iterator[IO[bytes]]:
    """What is written to the yielded stream goes to `file`, whole when the block ends without an error."""
    if not compressed:
        yield file
        file.flush()
        return
    with zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(file, closefd=False) as stream:
        yield stream
    file.flush()


def lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, compressed or not, which its first bytes tell.

    A line longer than `LINE_BYTES_MAX` is cut into several. Raises `ValueError` where a compressed file is damaged or cut off.
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


def shortened(data: bytes) -> bytes:
    """A value as one compressed frame, which bears its size and a checksum; `whole_again` gives it back."""
    return zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress(data)


def whole_again(data: bytes, *, size_max: int) -> bytes:
    """What `shortened` compressed. Raises `ValueError` where it is damaged, no such frame, or would be longer than `size_max` bytes."""
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
    """A stream whose first bytes have been read already: not every one can be turned back, such as a pipe."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # Of all buffers only this one is ever given.
        data = self._head[: len(buffer)] if self._head else self._rest.read(len(buffer))
        self._head = self._head[len(data) :]
        buffer[: len(data)] = data
        return len(data)
