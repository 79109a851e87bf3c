"""Find the key of an entry, hash it to a slot, and map slots to consumers (Key_Shared).

The needed fields of MessageMetadata (three of 33) are parsed by hand: they are read once per entry, and this package stays free of
generated code. Damaged metadata counts as metadata without a key; full parsing reports the damage elsewhere.
"""

from __future__ import annotations

import binascii
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from hashlib import blake2b, shake_128
from itertools import pairwise
from struct import unpack, unpack_from
from typing import Final

# Pulsar's number of slots, and the points of each consumer on its consistent-hashing ring.
SLOTS: Final = 65_536
POINTS_PER_CONSUMER: Final = 100

# A STICKY consumer may name as many ranges as other consumers have points.
RANGES_PER_CONSUMER_MAX: Final = 100

# Longer keys are first reduced to a digest: Murmur3 in Python costs 0.1 us per byte, which is 0.5 s for a key of 5 MiB.
MURMUR_BYTES_MAX: Final = 256
_DIGEST_BYTES: Final = 16

# Metadata with more fields counts as having no key: each field costs 0.1 us, and a block has room for millions. Pulsar uses 33, plus one
# per property.
METADATA_FIELDS_MAX: Final = 1_000

# Buckets keep the cost of adding and removing a consumer the same with 500 consumers as with one.
_SLOTS_PER_BUCKET: Final = 1_024

# The key of entries without one: Pulsar's own text. They stay together, in order, on one consumer.
NO_KEY: Final = b"NONE_KEY"

_CHECKSUM_MAGIC: Final = b"\x0e\x01"
_BROKER_METADATA_MAGIC: Final = b"\x0e\x02"
_CHECKSUM_PART_BYTES: Final = 6
_LENGTH_BYTES: Final = 4
_VARINT_BYTES_MAX: Final = 10

# The continuation bit of a varint byte.
_MORE: Final = 0x80

# Protobuf's wire types, and the tags (number and wire type) of the fields read.
_VARINT: Final = 0
_FIXED_64: Final = 1
_LENGTH_DELIMITED: Final = 2
_FIXED_32: Final = 5
_PARTITION_KEY: Final = 6 << 3 | _LENGTH_DELIMITED
_IS_BASE64: Final = 17 << 3 | _VARINT
_ORDERING_KEY: Final = 18 << 3 | _LENGTH_DELIMITED


class _Damaged(Exception):
    """The metadata is truncated or malformed."""


def sticky_key(block: bytes) -> bytes:
    """Return the key that dispatches an entry: its ordering key, else its partition key, else `NO_KEY`.

    `block` is everything after the command of SEND: checksum part, length of the metadata, MessageMetadata, payload. Never raises: damaged
    metadata has no key. Source: `peekStickyKey` of Pulsar's `Commands`.
    """
    try:
        return _key_of_metadata(block, *_metadata_span(block))
    except (_Damaged, IndexError):
        return NO_KEY


def _metadata_span(block: bytes) -> tuple[int, int]:
    """Return where MessageMetadata begins and ends in a block."""
    start = 0
    if block.startswith(_BROKER_METADATA_MAGIC):
        start = 2 + _LENGTH_BYTES + int.from_bytes(block[2 : 2 + _LENGTH_BYTES], "big")
    if block.startswith(_CHECKSUM_MAGIC, start):
        start += _CHECKSUM_PART_BYTES
    begin = start + _LENGTH_BYTES
    end = begin + int.from_bytes(block[start:begin], "big")
    if not begin <= end <= len(block):
        raise _Damaged
    return begin, end


def _key_of_metadata(data: bytes, position: int, end: int) -> bytes:
    """Return the key of the MessageMetadata at `data[position:end]`. Raise `_Damaged` or IndexError."""
    partition_key: bytes | None = None
    is_base64 = False
    fields = 0
    while position < end and fields < METADATA_FIELDS_MAX:
        fields += 1
        # Nearly all tags and lengths are one byte; a function call for each would dominate the cost.
        tag = data[position]
        position += 1
        if tag >= _MORE:
            tag, position = _varint(data, position - 1)
        wire_type = tag & 7
        if wire_type == _LENGTH_DELIMITED:
            length = data[position]
            position += 1
            if length >= _MORE:
                length, position = _varint(data, position - 1)
            begin, position = position, position + length
            if tag == _ORDERING_KEY and position <= end:
                return data[begin:position]
            if tag == _PARTITION_KEY:
                partition_key = data[begin:position]
        elif wire_type == _VARINT:
            value, position = _varint(data, position)
            if tag == _IS_BASE64:
                is_base64 = value != 0
        elif wire_type in {_FIXED_64, _FIXED_32}:
            position += 8 if wire_type == _FIXED_64 else 4
        else:
            raise _Damaged
    if position != end:
        raise _Damaged
    if partition_key is None:
        return NO_KEY
    return _from_base64(partition_key) if is_base64 else partition_key


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at `position`, and the position behind it. Raise `_Damaged` or IndexError."""
    value = shift = 0
    for place in range(position, position + _VARINT_BYTES_MAX):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value, place + 1
        shift += 7
    raise _Damaged


def _from_base64(text: bytes) -> bytes:
    """Decode a Base64 key. Return the text itself if it is not valid Base64."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        return text


def murmur3(data: bytes) -> int:
    """Return MurmurHash3 (32 bits, seed 0) without its sign bit: 0 to 2**31 - 1.

    Source: Pulsar's `Murmur3_32Hash.makeHash`, which is Austin Appleby's MurmurHash3_x86_32 with that mask.
    """
    length = len(data)
    whole = length & ~3
    result = 0
    for word in unpack_from(f"<{whole >> 2}I", data):
        scrambled = (word * 0xCC9E2D51) & 0xFFFFFFFF
        result ^= ((scrambled << 15 | scrambled >> 17) * 0x1B873593) & 0xFFFFFFFF
        result = ((result << 13 | result >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    if whole != length:
        scrambled = (int.from_bytes(data[whole:], "little") * 0xCC9E2D51) & 0xFFFFFFFF
        result ^= ((scrambled << 15 | scrambled >> 17) * 0x1B873593) & 0xFFFFFFFF
    result ^= length
    result = ((result ^ (result >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    result = ((result ^ (result >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return (result ^ (result >> 16)) & 0x7FFFFFFF


def slot_of(block: bytes) -> int:
    """Return the slot of an entry, 0 to `SLOTS` - 1. Keys of at most `MURMUR_BYTES_MAX` get Pulsar's slot, longer keys a stable one."""
    key = sticky_key(block)
    return murmur3(key if len(key) <= MURMUR_BYTES_MAX else blake2b(key, digest_size=_DIGEST_BYTES).digest()) % SLOTS


# A holder is a name and a number that separates holders of the same name. A span is its last slot, its first slot, and its holder.
Holder = tuple[str, int]
_Span = tuple[int, int, Holder]


class _Spans:
    """Spans of slots, sorted by last slot and then by holder."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: list[list[_Span]] = [[] for _ in range(0, SLOTS, _SLOTS_PER_BUCKET)]

    def add(self, span: _Span) -> None:
        insort(self._buckets[span[0] // _SLOTS_PER_BUCKET], span)

    def remove(self, span: _Span) -> None:
        """Remove a span that is present."""
        bucket = self._buckets[span[0] // _SLOTS_PER_BUCKET]
        del bucket[bisect_left(bucket, span)]

    def remove_of(self, holders: Collection[Holder]) -> None:
        """Remove all spans of these holders, in one pass."""
        self._buckets = [[span for span in bucket if span[2] not in holders] for bucket in self._buckets]

    def from_slot(self, slot: int) -> _Span | None:
        """Return the first span that ends at or after `slot`, or None."""
        first = slot // _SLOTS_PER_BUCKET
        bucket = self._buckets[first]
        place = bisect_left(bucket, (slot, -1, ("", -1)))
        if place < len(bucket):
            return bucket[place]
        return next((bucket[0] for bucket in self._buckets[first + 1 :] if bucket), None)


class Ring:
    """AUTO_SPLIT: consistent hashing of the slots over the holders, Pulsar's default.

    The mapping depends only on the current holders, not on history. Once all consumers are back after a move, each key has its former
    consumer again.
    """

    __slots__ = ("_points",)

    def __init__(self) -> None:
        self._points = _Spans()

    def add(self, name: str, number: int) -> None:
        """Add the points of a new holder."""
        for point in _points_of(name, number):
            self._points.add(point)

    def remove(self, name: str, number: int) -> None:
        """Remove the points of a holder. Its slots go to the holders of the next points."""
        for point in _points_of(name, number):
            self._points.remove(point)

    def remove_many(self, holders: Collection[Holder]) -> None:
        """Remove several holders."""
        self._points.remove_of(holders)

    def holder(self, slot: int) -> Holder | None:
        """Return the holder of the first point at or after `slot`, wrapping around, or None if there are no holders."""
        point = self._points.from_slot(slot) or self._points.from_slot(0)
        return None if point is None else point[2]


def _points_of(name: str, number: int) -> Iterator[_Span]:
    """Yield the distinct points of a holder on the ring.

    One digest makes them all, because a name may have 1,024 characters.
    """
    digest = shake_128(f"{name}\0{number}".encode("utf-8", "replace")).digest(2 * POINTS_PER_CONSUMER)
    holder = (name, number)
    return ((slot, slot, holder) for slot in dict.fromkeys(unpack(f">{POINTS_PER_CONSUMER}H", digest)))


class Stripes:
    """STICKY: each holder has the ranges of slots that it asked for, both ends inclusive. Ranges never overlap."""

    __slots__ = ("_stripes",)

    def __init__(self) -> None:
        self._stripes = _Spans()

    def conflict(self, ranges: Sequence[tuple[int, int]]) -> str | None:
        """Return why these ranges cannot be added, or None if they can."""
        if not 0 < len(ranges) <= RANGES_PER_CONSUMER_MAX:
            return f"a STICKY consumer names 1 to {RANGES_PER_CONSUMER_MAX} ranges of hashes that it takes, not {len(ranges)}"
        for start, end in ranges:
            if not 0 <= start <= end < SLOTS:
                return f"{start} to {end} is no range within 0 to {SLOTS - 1}"
        taken = [start for (_, end), (start, _) in pairwise(sorted(ranges)) if start <= end]
        for start, end in ranges:
            stripe = self._stripes.from_slot(start)
            if stripe is not None and stripe[1] <= end:
                taken.append(max(start, stripe[1]))
        return f"two ranges take hash {min(taken)}; each hash is taken by one consumer" if taken else None

    def add(self, name: str, number: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Add a holder's ranges. Check `conflict` first."""
        for start, end in ranges:
            self._stripes.add((end, start, (name, number)))

    def remove(self, name: str, number: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Remove a holder's ranges. Their slots have no holder afterwards."""
        for start, end in ranges:
            self._stripes.remove((end, start, (name, number)))

    def remove_many(self, holders: Collection[Holder]) -> None:
        """Remove several holders."""
        self._stripes.remove_of(holders)

    def holder(self, slot: int) -> Holder | None:
        """Return the holder of `slot`, or None."""
        stripe = self._stripes.from_slot(slot)
        return stripe[2] if stripe is not None and stripe[1] <= slot else None
