"""A client's table, and the events that it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.brokers.client import http_source
from equipoise.brokers.client.http_source import events
from equipoise.brokers.client.table import Assigned, Table
from equipoise.brokers.runtime.service import Peer
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.ranges import HASH_MAX

MIDDLE = 0x80000000


def row(name: str, low: int, high: int, broker: str | None = "a") -> Assigned:
    return Assigned(
        bundle=name,
        low=low,
        high=high,
        token=1,
        peer=None if broker is None else Peer(broker=broker),
    )


def names(table: Table, *points: int) -> list[str | None]:
    """The names of the bundles that hold some points."""
    return [None if (found := table.at(point)) is None else found.bundle for point in points]


def test_a_point_lies_in_one_bundle() -> None:
    table = Table([row("right", MIDDLE, HASH_MAX), row("left", 0, MIDDLE)])
    assert ["left", "left", "right", "right"] == names(table, 0, MIDDLE - 1, MIDDLE, HASH_MAX)


def test_a_point_in_a_gap_is_in_no_bundle() -> None:
    assert [None, "middle", None] == names(Table([row("middle", 10, 20)]), 9, 10, 20)
    assert [None] == names(Table([]), 0)


def test_changes_replace_split_and_merge() -> None:
    table = Table([row("left", 0, MIDDLE), row("right", MIDDLE, HASH_MAX)])
    table.change([row("left", 0, MIDDLE, broker="b")], [])
    assert Peer(broker="b") == getattr(table.at(0), "peer", None)
    table.change([row("l1", 0, 100), row("l2", 100, MIDDLE)], ["left"])
    assert ["l1", "l2", "right"] == names(table, 99, 100, MIDDLE)
    table.change([row("union", 100, HASH_MAX)], ["l2", "right", "unheard of"])
    assert ["l1", "union", "union"] == names(table, 0, 100, HASH_MAX)
    table.change([], ["l1"])
    assert [None] == names(table, 0)


# --- server-sent events ---


async def chunked(chunks: Sequence[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def parsed(*chunks: bytes) -> list[tuple[str, bytes]]:
    async def collect() -> list[tuple[str, bytes]]:
        return [event async for event in events(chunked(chunks))]

    return asyncio.run(collect())


TEXT = (
    b': hello\n\nid: 5\nevent: table\ndata: {"a": 1}\n\n:\n\nid: 6\nevent: change\ndata: {"b: c":'
    b' ": "}\n\nevent: cut'
)


def test_comments_and_incomplete_events_are_skipped() -> None:
    assert [("table", b'{"a": 1}'), ("change", b'{"b: c": ": "}')] == parsed(TEXT)


@given(st.lists(st.integers(0, len(TEXT)), max_size=8))
def test_events_do_not_depend_on_chunks(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(TEXT)]
    assert parsed(TEXT) == parsed(*(TEXT[low:high] for low, high in pairwise(edges)))


@given(st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_are_events_or_a_value_error(chunks: list[bytes]) -> None:
    try:
        found = parsed(*chunks)
    except ValueError:
        return
    assert len(found) <= sum(map(len, chunks))


def test_a_giant_event_breaks_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_source, "EVENT_BYTES_MAX", 100)
    with pytest.raises(PeerError, match="larger than 100 bytes"):
        parsed(b"data: " + b"x" * 200)
