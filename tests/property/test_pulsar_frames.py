"""Test frames with any stream in any chunks."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.pulsar.wire.frames import (
    Frame,
    FrameReader,
    checksum_is_good,
    frame,
    metadata_of,
)
from equipoise.brokers.pulsar.wire.requests import PulsarProtocolError

FRAME_BYTES_MAX = 300
frames = st.builds(
    Frame,
    command=st.binary(max_size=100),
    block=st.one_of(st.none(), st.binary(min_size=1, max_size=FRAME_BYTES_MAX - 104)),
)


def reader() -> FrameReader:
    """A reader with small bounds."""
    return FrameReader(frame_bytes_max=FRAME_BYTES_MAX, command_bytes_max=100)


def stream_of(sent: list[Frame]) -> bytes:
    """The bytes of frames."""
    return b"".join(frame(each.command, each.block or b"") for each in sent)


def fed(stream: bytes, cuts: list[int]) -> tuple[list[Frame], str | None, int]:
    """Feed a reader with a stream in chunks. Return the frames, the problem, and the most bytes
    that it kept.
    """
    under_test = reader()
    found = list[Frame]()
    kept = 0
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in pairwise(places):
        found += under_test.feed(stream[start:end])
        kept = max(kept, under_test.pending_bytes)
    return found, None if under_test.problem is None else str(under_test.problem), kept


@given(
    st.lists(frames, max_size=6), st.lists(st.integers(min_value=0, max_value=2000), max_size=20)
)
def test_the_chunks_of_a_stream_do_not_matter(sent: list[Frame], cuts: list[int]) -> None:
    found, problem, _ = fed(stream_of(sent), cuts)
    assert sent == found
    assert problem is None


@given(
    st.lists(frames, max_size=3),
    st.binary(max_size=400),
    st.lists(st.integers(min_value=0, max_value=1200), max_size=20),
)
def test_the_chunks_of_garbage_do_not_matter(
    sent: list[Frame], garbage: bytes, cuts: list[int]
) -> None:
    """The reader keeps a bounded number of bytes."""
    stream = stream_of(sent) + garbage
    whole, problem, _ = fed(stream, [])
    found, same_problem, kept = fed(stream, cuts)
    assert (whole, problem) == (found, same_problem)
    assert sent == found[: len(sent)]
    assert kept < 4 + FRAME_BYTES_MAX


@given(
    st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(lambda rest: b"\x0e\x01" + rest))
)
def test_any_block_is_checked_without_other_errors(block: bytes) -> None:
    checksum_is_good(block)
    with suppress(PulsarProtocolError):
        assert metadata_of(block) in block
