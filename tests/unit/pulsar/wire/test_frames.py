"""Test frames and checksums by example."""

from __future__ import annotations

import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass

import pytest

from equipoise.brokers.pulsar.wire.frames import (
    Frame,
    FrameReader,
    checksum_is_good,
    frame,
    metadata_of,
)
from equipoise.brokers.pulsar.wire.requests import PulsarProtocolError, Violation
from tests.pulsar.pulsar_speech import entry, with_checksum


def reader() -> FrameReader:
    """A reader with small bounds."""
    return FrameReader(frame_bytes_max=100, command_bytes_max=50)


@dataclass(frozen=True, kw_only=True)
class Vector:
    data: bytes
    checksum: int


# From RFC 3720, appendix B.4, and the check value of the polynomial.
VECTORS = (
    Vector(data=b"123456789", checksum=0xE3069283),
    Vector(data=bytes(32), checksum=0x8A9136AA),
    Vector(data=b"\xff" * 32, checksum=0x62A8AB43),
    Vector(data=bytes(range(32)), checksum=0x46DD794E),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.checksum:08x}")
def test_checksum_is_crc_32c(vector: Vector) -> None:
    assert checksum_is_good(b"\x0e\x01" + struct.pack(">I", vector.checksum) + vector.data)
    assert not checksum_is_good(b"\x0e\x01" + struct.pack(">I", vector.checksum ^ 1) + vector.data)


def test_the_checksum_covers_all_bytes_behind_it() -> None:
    block = entry()
    assert checksum_is_good(block)
    for at in range(2, len(block)):
        assert not checksum_is_good(block[:at] + bytes([block[at] ^ 4]) + block[at + 1 :])


def test_an_entry_without_a_checksum_is_good() -> None:
    assert checksum_is_good(entry()[6:])


def test_a_cut_checksum_is_bad() -> None:
    assert not checksum_is_good(b"\x0e\x01\x00\x00")


@pytest.mark.parametrize("has_checksum", [True, False])
def test_metadata_is_found_with_and_without_a_checksum(*, has_checksum: bool) -> None:
    covered = b"\x00\x00\x00\x03abcpayload"
    assert b"abc" == metadata_of(with_checksum(covered) if has_checksum else covered)


@pytest.mark.parametrize(
    "block", [b"", b"\x00\x00", b"\x00\x00\x00\x04abc", b"\x0e\x01\x00\x00\x00\x00\x00"]
)
def test_metadata_larger_than_its_entry_is_refused(block: bytes) -> None:
    with pytest.raises(PulsarProtocolError, match="entry of"):
        metadata_of(block)


def test_a_frame_has_both_sizes() -> None:
    assert b"\x00\x00\x00\x09\x00\x00\x00\x02abxyz" == frame(b"ab", b"xyz")


@dataclass(frozen=True, kw_only=True)
class Damage:
    data: bytes
    expected: Violation


DAMAGES = (
    Damage(data=struct.pack(">I", 101), expected=Violation.FRAME_TOO_LARGE),
    Damage(data=struct.pack(">II", 60, 51), expected=Violation.FRAME_TOO_LARGE),
    Damage(data=struct.pack(">I", 3), expected=Violation.MALFORMED_FRAME),
    Damage(data=struct.pack(">II", 10, 7), expected=Violation.MALFORMED_FRAME),
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.data.hex())
def test_impossible_sizes_end_the_stream_as_soon_as_they_are_known(damage: Damage) -> None:
    """The frames before them are returned."""
    under_test = reader()
    assert [Frame(command=b"ab", block=None)] == under_test.feed(frame(b"ab") + damage.data)
    assert under_test.problem is not None
    assert damage.expected is under_test.problem.violation
    assert [] == under_test.feed(frame(b"ab"))


def client_hello() -> bytes:
    """The first bytes of a TLS client."""
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), sent, server_hostname="broker"
        ).do_handshake()
    return sent.read()


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 100])
@pytest.mark.parametrize(
    ("data", "expected", "advice"),
    [
        (client_hello(), Violation.TLS, "use pulsar://"),
        *(
            (f"{method} /admin/v2/clusters HTTP/1.1\r\n".encode(), Violation.HTTP, "HTTP address")
            for method in (
                "GET",
                "HEAD",
                "POST",
                "PUT",
                "DELETE",
                "OPTIONS",
                "PATCH",
                "CONNECT",
                "TRACE",
                "PRI",
            )
        ),
    ],
)
def test_another_protocol_is_named(data: bytes, expected: Violation, advice: str, cut: int) -> None:
    under_test = reader()
    assert [] == under_test.feed(data[:cut])
    assert [] == under_test.feed(data[cut:])
    assert under_test.problem is not None
    assert (expected, True) == (under_test.problem.violation, advice in under_test.problem.problem)


@pytest.mark.parametrize("is_at_once", [True, False])
def test_a_stream_of_frames_does_not_become_another_protocol(*, is_at_once: bool) -> None:
    under_test = reader()
    frames = under_test.feed(frame(b"ab") + (b"GET " if is_at_once else b""))
    frames += under_test.feed(b"GET ")
    assert [Frame(command=b"ab", block=None)] == frames
    assert under_test.problem is not None
    assert Violation.FRAME_TOO_LARGE is under_test.problem.violation


def test_frames_beyond_the_cost_of_a_turn_are_left_for_later() -> None:
    """An entry costs 1, a command 8."""
    entries, commands = [Frame(command=b"e", block=b"x")] * 4, [Frame(command=b"c", block=None)] * 3
    stream = b"".join(frame(each.command, each.block or b"") for each in (*entries, *commands))
    under_test = reader()
    assert entries[:3] == under_test.feed(stream, cost_max=3)
    assert under_test.has_more
    assert [entries[3], *commands[:1]] == under_test.feed(b"", cost_max=3)
    assert commands[1:2] == under_test.feed(frame(b"z"), cost_max=3)
    assert commands[2:] == under_test.feed(b"", cost_max=3)
    assert [Frame(command=b"z", block=None)] == under_test.feed(b"", cost_max=3)
    assert (False, 0) == (under_test.has_more, under_test.pending_bytes)
