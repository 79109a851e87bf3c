"""Pulsar's framing: bytes of a stream to frames and back, and the checksum of an entry.

May live here: what can be told of bytes without reading a command. Sizes are big-endian. A frame is its size, the size of
its command, the command and, for some commands, a block: `[0x0e01][CRC-32C]` (optional), `[size][metadata][payload]`.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

import google_crc32c

from equipoise.brokers.pulsar.wire.errors import FrameTooLarge, MalformedFrame, PulsarProtocolError

_SIZE: Final = Struct(">I")
_SIZES: Final = Struct(">II")
_SIZE_BYTES: Final = 4
_CHECKSUM_MAGIC: Final = b"\x0e\x01"
# The magic and the checksum itself, which cover all that comes after them.
_CHECKSUM_BYTES: Final = 6

# What it costs to act on a frame: an entry takes some 40 us, a command up to 500 us, if it makes a producer or asks a question.
_ENTRY_COST: Final = 1
_COMMAND_COST: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame: the bytes of its command, and the `block` of all that came after it, unchanged; None if nothing did."""

    command: bytes
    block: bytes | None


class FrameReader:
    """Cuts a stream into frames; keeps at most one that is unfinished, and what it was told to leave for later.

    The same stream gives the same frames, however it is cut.
    """

    __slots__ = ("_command_bytes_max", "_needed_bytes", "_unfinished", "frame_bytes_max", "has_more", "problem")

    def __init__(self, *, frame_bytes_max: int, command_bytes_max: int) -> None:
        """`frame_bytes_max` counts a frame without its first size, `command_bytes_max` the command within it."""
        self.frame_bytes_max = frame_bytes_max
        self._command_bytes_max = command_bytes_max
        self._unfinished = bytearray()
        self._needed_bytes = 0
        self.has_more = False
        """Whether `feed` left something for later, so that it is to be called again, with or without more bytes."""
        self.problem: PulsarProtocolError | None = None
        """What damaged the stream behind the frames given so far. From then on no frame is given, since none can be found."""

    @property
    def pending_bytes(self) -> int:
        """How much is kept: of an unfinished frame, or for later."""
        return len(self._unfinished)

    def clear(self) -> None:
        """Nothing of the stream is wanted any more."""
        self._unfinished.clear()
        self._needed_bytes = 0
        self.has_more = False

    def feed(self, data: bytes, *, cost_max: int | None = None) -> list[Frame]:
        """The frames that `data` completes, in order; with `cost_max` only so many that to act on them costs about that much.

        Raises nothing: damage is kept as `problem`.
        """
        if self.problem is not None:
            return []
        if self._unfinished:
            self._unfinished += data
            if len(self._unfinished) < self._needed_bytes:
                return []
            data = bytes(self._unfinished)
            self._unfinished.clear()
        frames: list[Frame] = []
        at = end = cost = 0
        self.has_more = False
        try:
            while not self.has_more and (end := self._end_of_frame(data, at)) <= len(data):
                command_end = at + 2 * _SIZE_BYTES + _SIZE.unpack_from(data, at + _SIZE_BYTES)[0]
                block = data[command_end:end] if end > command_end else None
                frames.append(Frame(command=data[at + 2 * _SIZE_BYTES : command_end], block=block))
                cost += _COMMAND_COST if block is None else _ENTRY_COST
                at = end
                # Before the next one is looked at: what it may be can depend on those that were given.
                self.has_more = cost_max is not None and cost >= cost_max and at < len(data)
        except PulsarProtocolError as problem:
            self.problem = problem
            return frames
        self._needed_bytes = end - at
        self._unfinished += data[at:]
        return frames

    def _end_of_frame(self, data: bytes, at: int) -> int:
        """Where the frame that starts at `at` ends, or, for want of its sizes, the next of them. Raises on impossible sizes."""
        if len(data) - at < _SIZE_BYTES:
            return at + _SIZE_BYTES
        if len(data) - at < 2 * _SIZE_BYTES:
            # Refused as soon as it is announced: what comes after so large a size would never be looked at.
            self._check_frame(_SIZE.unpack_from(data, at)[0])
            return at + 2 * _SIZE_BYTES
        frame_bytes, command_bytes = _SIZES.unpack_from(data, at)
        self._check_frame(frame_bytes)
        if command_bytes > self._command_bytes_max:
            raise FrameTooLarge(what="command", size=command_bytes, size_max=self._command_bytes_max)
        if command_bytes + _SIZE_BYTES > frame_bytes:
            raise MalformedFrame(problem=f"a command of {command_bytes} bytes in a frame of {frame_bytes}")
        return at + _SIZE_BYTES + int(frame_bytes)

    def _check_frame(self, frame_bytes: int) -> None:
        if frame_bytes > self.frame_bytes_max:
            raise FrameTooLarge(what="frame", size=frame_bytes, size_max=self.frame_bytes_max)
        if frame_bytes < _SIZE_BYTES:
            raise MalformedFrame(problem=f"a frame of {frame_bytes} bytes, too short for the size of its command")


def frame(command: bytes, block: bytes = b"") -> bytes:
    """A frame of a command and, if there is one, the block behind it."""
    return frame_head(command, len(block)) + block


def frame_head(command: bytes, block_bytes: int) -> bytes:
    """All of a frame that stands before its block, so that a large block need not be copied to send it."""
    return _SIZES.pack(_SIZE_BYTES + len(command) + block_bytes, len(command)) + command


def checksum_is_good(block: bytes) -> bool:
    """Whether the checksum of a block fits what it covers; a block without one is good."""
    if not block.startswith(_CHECKSUM_MAGIC):
        return True
    if len(block) < _CHECKSUM_BYTES:
        return False
    covered = block[_CHECKSUM_BYTES:]
    return bool(google_crc32c.value(covered) == _SIZE.unpack_from(block, len(_CHECKSUM_MAGIC))[0])


def metadata_of(block: bytes) -> bytes:
    """The bytes of the metadata in a block; raises `MalformedFrame` if it is too short to hold them."""
    at = _CHECKSUM_BYTES if block.startswith(_CHECKSUM_MAGIC) else 0
    start = at + _SIZE_BYTES
    if len(block) < start:
        raise MalformedFrame(problem=f"an entry of {len(block)} bytes, too short for the size of its metadata")
    end = start + int(_SIZE.unpack_from(block, at)[0])
    if end > len(block):
        raise MalformedFrame(problem=f"metadata of {end - start} bytes in an entry of {len(block)}")
    return block[start:end]
