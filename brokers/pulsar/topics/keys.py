"""Hash the key of an entry to a slot, and map slots to consumers (Key_Shared)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b, shake_128
from itertools import pairwise
from struct import unpack, unpack_from
from typing import Final

from equipoise.brokers.pulsar.wire.commands import key_of
from equipoise.brokers.pulsar.wire.limits import RANGES_PER_CONSUMER_MAX

# Pulsar's number of slots, and the points of each consumer on its consistent-hashing ring.
SLOTS: Final = 65_536
POINTS_PER_CONSUMER: Final = 100

# Longer keys are first reduced to a digest: Murmur3 in Python costs 0.1 us per byte, which is 0.5 s
# for a key of 5 MiB.
MURMUR_BYTES_MAX: Final = 256
_DIGEST_BYTES: Final = 16

# Buckets keep the cost of adding a consumer the same with 500 consumers as with one.
_SLOTS_PER_BUCKET: Final = 1_024

# The key of entries without one: Pulsar's own text. They stay together, in order, on one consumer.
NO_KEY: Final = b"NONE_KEY"


def murmur3(data: bytes) -> int:
    """Return MurmurHash3 (32 bits, seed 0) without its sign bit: 0 to 2**31 - 1.

    Source: Pulsar's `Murmur3_32Hash.makeHash`, which is Austin Appleby's MurmurHash3_x86_32 with
    that mask.
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
    """Return the slot of an entry, 0 to `SLOTS` - 1. Keys of at most `MURMUR_BYTES_MAX` get
    Pulsar's slot, longer keys a stable one.
    """
    key = key_of(block)
    if key is None:
        key = NO_KEY
    return (
        murmur3(
            key
            if len(key) <= MURMUR_BYTES_MAX
            else blake2b(key, digest_size=_DIGEST_BYTES).digest()
        )
        % SLOTS
    )


# A holder is a name and a number that separates holders of the same name. A span is its last slot,
# its first slot, and its holder.
Holder = tuple[str, int]
_Span = tuple[int, int, Holder]


class _Spans:
    """Spans of slots, sorted by last slot and then by holder."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        """Start without holders."""
        self._buckets: list[list[_Span]] = [[] for _ in range(0, SLOTS, _SLOTS_PER_BUCKET)]

    def _insert(self, spans: Iterable[_Span]) -> None:
        for span in spans:
            insort(self._buckets[span[0] // _SLOTS_PER_BUCKET], span)

    def remove(self, holders: Collection[Holder]) -> None:
        """Remove all spans of these holders, in one pass. Their slots go to the holders of the next
        points of a ring, and have no holder among stripes.
        """
        self._buckets = [
            [span for span in bucket if span[2] not in holders] for bucket in self._buckets
        ]

    def _from_slot(self, slot: int) -> _Span | None:
        """Return the first span that ends at or after `slot`, or None."""
        first = slot // _SLOTS_PER_BUCKET
        bucket = self._buckets[first]
        place = bisect_left(bucket, (slot, -1, ("", -1)))
        if place < len(bucket):
            return bucket[place]
        return next((bucket[0] for bucket in self._buckets[first + 1 :] if bucket), None)


class Ring(_Spans):
    """AUTO_SPLIT: consistent hashing of the slots over the holders, Pulsar's default.

    The mapping depends only on the current holders, not on history. Once all consumers are back
    after a move, each key has its former consumer again.
    """

    __slots__ = ()

    def add(self, holder: Holder) -> None:
        """Add the distinct points of a new holder.

        One digest makes them all, because a name may have 1,024 characters.
        """
        name, number = holder
        digest = shake_128(f"{name}\0{number}".encode("utf-8", "replace")).digest(
            2 * POINTS_PER_CONSUMER
        )
        slots = dict.fromkeys(unpack(f">{POINTS_PER_CONSUMER}H", digest))
        self._insert((slot, slot, holder) for slot in slots)

    def holder(self, slot: int) -> Holder | None:
        """Return the holder of the first point at or after `slot`, wrapping around, or None if
        there are no holders.
        """
        point = self._from_slot(slot) or self._from_slot(0)
        return None if point is None else point[2]


class Stripes(_Spans):
    """STICKY: each holder has the ranges of slots that it asked for, both ends inclusive. Ranges
    never overlap.
    """

    __slots__ = ()

    def conflict(self, ranges: Sequence[tuple[int, int]]) -> str | None:
        """Return why these ranges cannot be added, or None if they can."""
        if not 0 < len(ranges) <= RANGES_PER_CONSUMER_MAX:
            return (
                f"a STICKY consumer must name 1 to {RANGES_PER_CONSUMER_MAX} hash ranges, not"
                f" {len(ranges)}"
            )
        for start, end in ranges:
            if not 0 <= start <= end < SLOTS:
                return f"{start} to {end} is not a range within 0 to {SLOTS - 1}"
        taken = [start for (_, end), (start, _) in pairwise(sorted(ranges)) if start <= end]
        for start, end in ranges:
            stripe = self._from_slot(start)
            if stripe is not None and stripe[1] <= end:
                taken.append(max(start, stripe[1]))
        return (
            f"two ranges contain hash {min(taken)}; each hash belongs to one consumer"
            if taken
            else None
        )

    def add(self, holder: Holder, ranges: Sequence[tuple[int, int]]) -> None:
        """Add a holder's ranges. Check `conflict` first."""
        self._insert((end, start, holder) for start, end in ranges)

    def holder(self, slot: int) -> Holder | None:
        """Return the holder of `slot`, or None."""
        stripe = self._from_slot(slot)
        return stripe[2] if stripe is not None and stripe[1] <= slot else None
