"""Test Key_Shared: keys of entries, Murmur3, and which consumer has which slot."""

from __future__ import annotations

import pytest

from equipoise.brokers.pulsar.topics import keys
from equipoise.brokers.pulsar.topics.keys import (
    MURMUR_BYTES_MAX,
    SLOTS,
    Ring,
    Stripes,
    murmur3,
    slot_of,
)
from equipoise.brokers.pulsar.wire.commands import key_of
from equipoise.brokers.pulsar.wire.limits import RANGES_PER_CONSUMER_MAX
from tests.pulsar.topics import block_of

# Published test values of MurmurHash3_x86_32 with seed 0. The first three come from a Pulsar
# client, without the sign bit.
VECTORS = {
    "I will not buy this record, it is scratched.": 684731290,
    "Hello world": 764499724,
    "Съешь ещё этих мягких французских булок, да выпей чаю": 1885574967,
    "": 0,
    "a": 1009084850,
    "ab": 2613040991,
    "abc": 3017643002,
    "abcd": 1139631978,
    "abcde": 3902511862,
    "abcdefgh": 1239272644,
    "hello": 0x248BFA47,
    "The quick brown fox jumps over the lazy dog": 0x2E4FF723,
}
PRODUCER = b"\x0a\x03abc\x10\x96\x01\x18\xff\xff\xff\xff\x0f"  # Name, sequence id, publish time.
# Fields 18 of the wrong wire types, fixed 64 and 32.
FIXED = b"\x91\x01" + bytes(8) + b"\x95\x01" + bytes(4)


@pytest.mark.parametrize("text", VECTORS)
def test_murmur3_is_pulsars(text: str) -> None:
    assert VECTORS[text] & 0x7FFFFFFF == murmur3(text.encode())


@pytest.mark.parametrize(
    ("expected", "metadata"),
    [
        (None, PRODUCER),
        (b"key", PRODUCER + b"\x32\x03key"),
        (b"key", b"\x32\x03key" + FIXED + PRODUCER),
        (b"order", PRODUCER + b"\x32\x03key" + b"\x92\x01\x05order"),
        (b"\x00\xff", PRODUCER + b"\x32\x04AP8=" + b"\x88\x01\x01"),
        (b"AP8=", PRODUCER + b"\x32\x04AP8=" + b"\x88\x01\x00"),
        (b"no!", PRODUCER + b"\x32\x03no!" + b"\x88\x01\x01"),
        (b"", PRODUCER + b"\x32\x00"),
        (b"k" * 300, PRODUCER + b"\x32\xac\x02" + b"k" * 300),
    ],
)
def test_the_key_of_an_entry(expected: bytes | None, metadata: bytes) -> None:
    """The ordering key comes before the partition key, which may be Base64."""
    assert expected == key_of(block_of(metadata))


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"\x0e\x01",
        b"\x00\x00\x00\x09\x32\x03key",  # Metadata longer than the block.
        block_of(b"\x32\x7fkey", payload=b""),  # A key longer than the metadata.
        # More metadata than is searched.
        block_of(PRODUCER + b"\x32\x03key" + b"\x22\x00" * 131_072),
    ],
)
def test_damaged_metadata_has_no_key(block: bytes) -> None:
    assert key_of(block) is None
    assert murmur3(b"NONE_KEY") % SLOTS == slot_of(block)


def ordered(key: bytes) -> bytes:
    """A block whose entry has this ordering key, of 128 to 16,383 bytes."""
    return block_of(PRODUCER + b"\x92\x01" + bytes([len(key) & 0x7F | 0x80, len(key) >> 7]) + key)


def test_a_long_key_is_reduced_to_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Murmur3 in Python would stop the loop. Shorter keys get Pulsar's slot."""
    hashed: list[bytes] = []

    def noting(data: bytes) -> int:
        hashed.append(data)
        return murmur3(data)

    monkeypatch.setattr(keys, "murmur3", noting)
    longest, longer = b"k" * MURMUR_BYTES_MAX, b"k" * (MURMUR_BYTES_MAX + 1)
    assert murmur3(longest) % SLOTS == slot_of(ordered(longest))
    assert slot_of(ordered(longer)) == slot_of(ordered(longer))
    assert [MURMUR_BYTES_MAX, 16, 16] == [len(data) for data in hashed]
    assert 1 < len({slot_of(ordered(longer + bytes([last]))) for last in range(9)})


def test_the_ring_depends_only_on_its_holders() -> None:
    """A new holder takes slots, and moves none between the others."""
    one, other = Ring(), Ring()
    for name in ("a", "b", "c"):
        one.add((name, 0))
    for name in ("c", "x", "a", "b"):
        other.add((name, 0))
    other.remove({("x", 0)})
    before = [one.holder(slot) for slot in range(0, SLOTS, 7)]
    assert before == [other.holder(slot) for slot in range(0, SLOTS, 7)]
    one.add(("d", 0))
    after = [one.holder(slot) for slot in range(0, SLOTS, 7)]
    assert all(new in {old, ("d", 0)} for old, new in zip(before, after, strict=True))
    assert ("d", 0) in after


def test_the_ring_shares_slots_fairly_between_equal_names() -> None:
    ring = Ring()
    assert ring.holder(1) is None
    ring.add(("same", 0))
    ring.add(("same", 1))
    held = [ring.holder(slot) for slot in range(SLOTS)]
    assert all(held.count(("same", number)) > SLOTS / 3 for number in (0, 1))


def test_the_slots_behind_the_last_point_belong_to_the_first() -> None:
    for name in "abcdefgh":
        ring = Ring()
        ring.add((name, 0))
        ring.add((name, 1))
        assert ring.holder(0) == ring.holder(SLOTS - 1)


def test_a_stripe_includes_both_ends() -> None:
    """Slots that no holder named have none."""
    stripes = Stripes()
    stripes.add(("a", 0), [(10, 20), (30, 30)])
    stripes.add(("b", 0), [(21, 29)])
    assert [None, ("a", 0), ("a", 0), ("b", 0), ("b", 0), ("a", 0), None] == [
        stripes.holder(slot) for slot in (9, 10, 20, 21, 29, 30, 31)
    ]
    stripes.remove({("a", 0)})
    assert [None, ("b", 0), None] == [stripes.holder(slot) for slot in (20, 21, 30)]


@pytest.mark.parametrize(
    ("word", "ranges"),
    [
        ("must name 1 to", []),
        ("must name 1 to", [(slot, slot) for slot in range(RANGES_PER_CONSUMER_MAX + 1)]),
        ("is not a range", [(5, 4)]),
        ("is not a range", [(-1, 4)]),
        ("is not a range", [(0, SLOTS)]),
        ("hash 30", [(0, 5), (30, 40)]),
        ("hash 20", [(0, 200)]),
        ("hash 3", [(1, 3), (3, 5)]),
    ],
)
def test_impossible_ranges_are_refused_with_the_reason(
    word: str, ranges: list[tuple[int, int]]
) -> None:
    stripes = Stripes()
    stripes.add(("a", 0), [(20, 30)])
    assert word in (stripes.conflict(ranges) or "")
    assert stripes.conflict([(0, 19), (31, SLOTS - 1)]) is None
