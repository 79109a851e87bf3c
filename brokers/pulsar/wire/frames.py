"""Split a byte stream into frames and back, and check the checksum of an entry.

A frame is its size, the size of its command, the command and, for some commands, a block:
`[0x0e01][CRC-32C]` (optional), `[size][metadata][payload]`. Sizes are big-endian. Commands are
parsed elsewhere.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import google_crc32c

from equipoise.brokers.pulsar.wire.errors import PulsarProtocolError, Violation

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

    The same stream gives the same frames, however it is chunked. A byte is copied once into its
    frame, and once more if its frame comes in several chunks.
    """

    __slots__ = (
        "_command_bytes_max",
        "_cost",
        "_has_begun",
        "_left",
        "_left_at",
        "_needed_bytes",
        "_unfinished",
        "frame_bytes_max",
        "problem",
    )

    def __init__(self, *, frame_bytes_max: int, command_bytes_max: int) -> None:
        """`frame_bytes_max` bounds a frame without its first size, `command_bytes_max` its
        command.
        """
        self.frame_bytes_max = frame_bytes_max
        self._command_bytes_max = command_bytes_max
        self._has_begun = False
        # The start of a frame, and how many bytes of it are needed to read on.
        self._unfinished = bytearray()
        self._needed_bytes = 0
        # A chunk with frames that `feed` left for later, and where they begin.
        self._left = b""
        self._left_at = 0
        self._cost = 0
        self.problem: PulsarProtocolError | None = None
        """The damage behind the frames returned so far. No more frames follow, because their start
        is unknown."""

    @property
    def has_more(self) -> bool:
        """Whether `feed` left bytes for later. Call it again, with or without more bytes."""
        return bool(self._left)

    @property
    def pending_bytes(self) -> int:
        """The number of bytes kept: an unfinished frame, or frames left for later."""
        return len(self._unfinished) + len(self._left) - self._left_at

    def clear(self) -> None:
        """Drop all bytes kept."""
        self._unfinished.clear()
        self._needed_bytes = 0
        self._left, self._left_at = b"", 0

    def keep(self, data: bytes) -> None:
        """Leave `data` for a later `feed`. The last `feed` must have ended at its `cost_max`."""
        assert not self._unfinished, "a feed that ended at its cost_max begins no frame"
        self._left += data

    def feed(self, data: bytes, *, cost_max: int | None = None) -> list[Frame]:
        """Return the frames that `data` completes, in order. Stop once handling them costs
        `cost_max`.

        Never raises: damage is kept as `problem`.
        """
        if self.problem is not None:
            return []
        data, at = self._left + data if data else self._left, self._left_at
        self._left, self._left_at, self._cost = b"", 0, 0
        frames: list[Frame] = []
        unfinished = self._unfinished
        try:
            while (
                unfinished and (missing := self._needed_bytes - len(unfinished)) <= len(data) - at
            ):
                unfinished += data[at : at + missing]
                at += missing
                with memoryview(unfinished) as start:
                    is_whole = self._split(start, 0, frames, cost_max) > 0
                if is_whole:
                    unfinished.clear()
            if not unfinished:
                at = self._split(data, at, frames, cost_max)
        except PulsarProtocolError as problem:
            is_start = not self._has_begun and not frames
            self.problem = (
                _other_protocol(bytes(unfinished) + data) if is_start else None
            ) or problem
            return frames
        self._has_begun = self._has_begun or bool(frames)
        if cost_max is not None and self._cost >= cost_max and at < len(data):
            self._left, self._left_at = data, at
        else:
            unfinished += data[at:]
        return frames

    def _split(
        self, data: bytes | memoryview, at: int, frames: list[Frame], cost_max: int | None
    ) -> int:
        """Append the complete frames of `data` from `at` on. Return where they end, and set
        `_needed_bytes` for the next one.
        """
        length = len(data)
        # Stop before the next frame is checked: the frames returned may change its bounds.
        while at < length and (cost_max is None or self._cost < cost_max):
            start = at + 2 * _SIZE_BYTES
            if length < start:
                self._needed_bytes = self._end_of_next_size(data, at) - at
                break
            frame_bytes, command_bytes = _SIZES.unpack_from(data, at)
            self._check_sizes(frame_bytes, command_bytes)
            end = at + _SIZE_BYTES + frame_bytes
            if end > length:
                self._needed_bytes = end - at
                break
            command_end = start + command_bytes
            block = bytes(data[command_end:end]) if end > command_end else None
            frames.append(Frame(bytes(data[start:command_end]), block))
            self._cost += _COMMAND_COST if block is None else _ENTRY_COST
            at = end
        return at

    def _end_of_next_size(self, data: bytes | memoryview, at: int) -> int:
        """Return where the first missing size of a frame ends. Raise on an impossible size."""
        if len(data) - at < _SIZE_BYTES:
            return at + _SIZE_BYTES
        # Check the size as soon as it is announced; the content of a frame that is too large is
        # never needed.
        self._check_sizes(_SIZE.unpack_from(data, at)[0], 0)
        return at + 2 * _SIZE_BYTES

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
