"""Split a byte stream into frames and back, and check the checksum of an entry.

A frame is its size, the size of its command, the command and, for some commands, a block:
`[0x0e01][CRC-32C]` (optional), `[size][metadata][payload]`. Sizes are big-endian. Commands are
parsed elsewhere.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from equipoise.brokers.pulsar.wire.requests import PulsarProtocolError, Violation

_SIZE: Final = Struct(">I")
_SIZES: Final = Struct(">II")
_SIZE_BYTES: Final = 4
_CHECKSUM_MAGIC: Final = b"\x0e\x01"
# The magic and the checksum, which covers everything behind it.
_CHECKSUM_BYTES: Final = 6

# The first bytes of other protocols: a handshake record of TLS, the methods of HTTP/1, the preface
# of HTTP/2. Read as the size of a frame, each of them exceeds 300 MB.
_TLS_STARTS: Final = (b"\x16\x03",)
_HTTP_STARTS: Final = (
    b"GET ",
    b"HEAD",
    b"POST",
    b"PUT ",
    b"DELE",
    b"OPTI",
    b"PATC",
    b"CONN",
    b"TRAC",
    b"PRI ",
)

# Cost of a frame: an entry takes about 40 us, a command up to 500 us (a new producer or a
# question).
_ENTRY_COST: Final = 1
_COMMAND_COST: Final = 8


class Frame(NamedTuple):
    """The bytes of a command, and the unchanged `block` behind it, or None."""

    command: bytes
    block: bytes | None


class FrameReader:
    """Splits a stream into frames. It keeps at most one unfinished frame, and what `cost_max` left
    for later.

    The same stream gives the same frames, however it is chunked.
    """

    __slots__ = (
        "_command_bytes_max",
        "_has_begun",
        "_kept",
        "frame_bytes_max",
        "has_more",
        "problem",
    )

    def __init__(self, *, frame_bytes_max: int, command_bytes_max: int) -> None:
        """`frame_bytes_max` bounds a frame without its first size, `command_bytes_max` its
        command.
        """
        self.frame_bytes_max = frame_bytes_max
        self._command_bytes_max = command_bytes_max
        self._has_begun = False
        self._kept = bytearray()
        self.has_more = False
        """Whether `feed` left bytes for later. Call it again, with or without more bytes."""
        self.problem: PulsarProtocolError | None = None
        """The damage behind the frames returned so far. No more frames follow, because their start
        is unknown."""

    @property
    def pending_bytes(self) -> int:
        """The number of bytes kept: an unfinished frame, or frames left for later."""
        return len(self._kept)

    def clear(self) -> None:
        """Drop all bytes kept."""
        self._kept.clear()
        self.has_more = False

    def keep(self, data: bytes) -> None:
        """Leave `data` for a later `feed`."""
        self._kept += data
        self.has_more = bool(self._kept)

    def feed(self, data: bytes, *, cost_max: int | None = None) -> list[Frame]:
        """Return the frames that `data` completes, in order. Stop once handling them costs
        `cost_max`.

        Never raises: damage is kept as `problem`.
        """
        frames: list[Frame] = []
        if self.problem is not None:
            return frames
        self._kept += data
        at = cost = 0
        try:
            with memoryview(self._kept) as kept:
                # Stop before the next frame is checked: the frames returned may change its bounds.
                while cost_max is None or cost < cost_max:
                    end = self._end_of_frame(kept, at)
                    if end > len(kept):
                        break
                    start = at + 2 * _SIZE_BYTES
                    command_end = start + _SIZE.unpack_from(kept, at + _SIZE_BYTES)[0]
                    block = bytes(kept[command_end:end]) if end > command_end else None
                    frames.append(Frame(bytes(kept[start:command_end]), block))
                    cost += _COMMAND_COST if block is None else _ENTRY_COST
                    at = end
        except PulsarProtocolError as problem:
            is_start = not self._has_begun and not frames
            self.problem = (_other_protocol(bytes(self._kept)) if is_start else None) or problem
            return frames
        del self._kept[:at]
        self._has_begun = self._has_begun or bool(frames)
        self.has_more = cost_max is not None and cost >= cost_max and bool(self._kept)
        return frames

    def _end_of_frame(self, kept: memoryview, at: int) -> int:
        """Return where the frame at `at` ends, or a greater place than the end if too little of it
        came to tell. Raise on an impossible size as soon as it is announced.
        """
        length = len(kept) - at
        if length < _SIZE_BYTES:
            return len(kept) + 1
        frame_bytes = _SIZE.unpack_from(kept, at)[0]
        has_sizes = length >= 2 * _SIZE_BYTES
        self._check_sizes(
            frame_bytes, _SIZE.unpack_from(kept, at + _SIZE_BYTES)[0] if has_sizes else 0
        )
        return at + _SIZE_BYTES + frame_bytes if has_sizes else len(kept) + 1

    def _check_sizes(self, frame_bytes: int, command_bytes: int) -> None:
        if frame_bytes > self.frame_bytes_max:
            raise _too_large("frame", frame_bytes, self.frame_bytes_max)
        if frame_bytes < _SIZE_BYTES:
            raise PulsarProtocolError(
                Violation.MALFORMED_FRAME,
                f"a frame of {frame_bytes} bytes, too short for the size of its command",
            )
        if command_bytes > self._command_bytes_max:
            raise _too_large("command", command_bytes, self._command_bytes_max)
        if command_bytes + _SIZE_BYTES > frame_bytes:
            raise PulsarProtocolError(
                Violation.MALFORMED_FRAME,
                f"a command of {command_bytes} bytes in a frame of {frame_bytes}",
            )


def _other_protocol(start: bytes) -> PulsarProtocolError | None:
    """Return the error for a stream that starts as another protocol does, or None."""
    if start.startswith(_TLS_STARTS):
        return PulsarProtocolError(
            Violation.TLS,
            "it started TLS, which this port does not accept; use pulsar:// instead of pulsar+ssl://",
        )
    if start.startswith(_HTTP_STARTS):
        return PulsarProtocolError(
            Violation.HTTP,
            "it sent an HTTP request to the Pulsar port; use the broker's HTTP address",
        )
    return None


def _too_large(what: str, size: int, size_max: int) -> PulsarProtocolError:
    return PulsarProtocolError(
        Violation.FRAME_TOO_LARGE, f"a {what} of {size} bytes; the maximum is {size_max}"
    )


def frame(command: bytes, block: bytes = b"") -> bytes:
    """Return a frame of a command and an optional block."""
    return frame_head(command, len(block)) + block


def frame_head(command: bytes, block_bytes: int) -> bytes:
    """Return the part of a frame before its block, so that a large block is not copied."""
    return _SIZES.pack(_SIZE_BYTES + len(command) + block_bytes, len(command)) + command


def checksum_is_good(block: bytes) -> bool:
    """Return whether the checksum of a block is correct or absent."""
    if not block.startswith(_CHECKSUM_MAGIC):
        return True
    if len(block) < _CHECKSUM_BYTES:
        return False
    covered = block[_CHECKSUM_BYTES:]
    return bool(google_crc32c.value(covered) == _SIZE.unpack_from(block, len(_CHECKSUM_MAGIC))[0])


def metadata_of(block: bytes) -> bytes:
    """Return the metadata bytes of a block. Raise `PulsarProtocolError` if it is too short."""
    at = _CHECKSUM_BYTES if block.startswith(_CHECKSUM_MAGIC) else 0
    start = at + _SIZE_BYTES
    if len(block) < start:
        raise PulsarProtocolError(
            Violation.MALFORMED_FRAME,
            f"an entry of {len(block)} bytes, too short for the size of its metadata",
        )
    end = start + int(_SIZE.unpack_from(block, at)[0])
    if end > len(block):
        raise PulsarProtocolError(
            Violation.MALFORMED_FRAME,
            f"metadata of {end - start} bytes in an entry of {len(block)}",
        )
    return block[start:end]
