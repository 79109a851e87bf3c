"""Test how topics are encoded for their next owner."""

from __future__ import annotations

import zlib
from dataclasses import replace
from hashlib import blake2b

import orjson
import pytest

from equipoise.brokers.pulsar.topics.arrivals import Entry
from equipoise.brokers.pulsar.topics.handover import (
    HANDOVER_BYTES_MAX,
    NAMES_OF_TOPIC_MAX,
    decode,
    encode,
    fetchable,
    is_complete,
)
from equipoise.brokers.pulsar.topics.topic import SubscriptionState, TopicState
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind
from equipoise.channel.core.errors import PeerError

QUIET = TopicState(
    last_entry_id=7,
    subscriptions=(
        SubscriptionState(
            name="s", kind=SubscriptionKind.KEY_SHARED, is_sticky=True, expected=("a", "a", "é")
        ),
        SubscriptionState(name="t", kind=SubscriptionKind.FAILOVER),
    ),
)
WAITING = TopicState(
    last_entry_id=9,
    subscriptions=(
        SubscriptionState(name="s", kind=SubscriptionKind.SHARED, expected=("a",), waiting=(8, 9)),
        SubscriptionState(name="t", kind=SubscriptionKind.SHARED, waiting=(9,)),
    ),
    entries=(Entry(8, b"\x00first", 3), Entry(9, b"", 1)),
)


def unlike(number: int, consumers: int = 1) -> TopicState:
    """A state whose names hardly compress."""
    name, *names = (
        blake2b(f"{number} {each}".encode()).hexdigest() for each in range(1 + consumers)
    )
    return TopicState(
        subscriptions=(
            SubscriptionState(name=name, kind=SubscriptionKind.SHARED, expected=tuple(names)),
        )
    )


def test_a_hundred_ordinary_topics_need_no_fetch() -> None:
    """Names compress, so the usual bundle moves without a second request."""
    states = {
        f"non-persistent://tenant/namespace/orders-partition-{number}": TopicState(
            last_entry_id=number * 1000,
            subscriptions=(
                SubscriptionState(
                    name="billing",
                    kind=SubscriptionKind.SHARED,
                    expected=(blake2b(bytes([number])).hexdigest()[:10],),
                ),
            ),
        )
        for number in range(100)
    } | {"quiet": QUIET}
    encoded = encode(states)
    assert (True, 0, True) == (encoded.is_complete, encoded.dropped, is_complete(encoded.handover))
    assert len(encoded.handover) < HANDOVER_BYTES_MAX / 4
    assert states == decode(encoded.handover, None)


def test_undelivered_entries_are_fetched() -> None:
    """The handover alone still names the consumers."""
    states = {"t1": QUIET, "t2": WAITING}
    encoded = encode(states)
    assert not encoded.is_complete
    assert not is_complete(encoded.handover)
    assert states == decode(encoded.handover, fetchable(encoded.states))
    bare = tuple(replace(each, waiting=()) for each in WAITING.subscriptions)
    assert {"t1": QUIET, "t2": replace(WAITING, subscriptions=bare, entries=())} == decode(
        encoded.handover, None
    )


@pytest.mark.parametrize(("topics", "consumers", "least"), [(1000, 1, 1), (1, 1000, 0)])
def test_more_topics_than_fit_are_fetched(topics: int, consumers: int, least: int) -> None:
    """The handover names as many as fit, which may be none."""
    states = {f"t{number:04}": unlike(number, consumers) for number in range(topics)}
    encoded = encode(states)
    assert len(encoded.handover) <= HANDOVER_BYTES_MAX
    assert not encoded.is_complete
    assert states == decode(encoded.handover, fetchable(encoded.states))
    few = decode(encoded.handover, None)
    assert least <= len(few) < topics
    assert all(states[name] == state for name, state in few.items())


def test_the_newest_entries_without_room_are_cut() -> None:
    """They are counted in messages, and none of their ids is left."""
    encoded = encode({"t": WAITING}, entry_bytes_max=145)
    assert not encoded.is_complete
    state = decode(encoded.handover, fetchable(encoded.states))["t"]
    assert (1, [8], [(8,), ()]) == (
        encoded.dropped,
        [entry.entry_id for entry in state.entries],
        [each.waiting for each in state.subscriptions],
    )


def test_an_entry_without_room_leaves_it_to_other_topics() -> None:
    def waiting(*sizes: int) -> TopicState:
        entries = tuple(Entry(number, b"x" * size, 1) for number, size in enumerate(sizes))
        subscription = SubscriptionState(
            name="s",
            kind=SubscriptionKind.SHARED,
            waiting=tuple(entry.entry_id for entry in entries),
        )
        return TopicState(subscriptions=(subscription,), entries=entries)

    states = {"a": waiting(100, 100), "b": waiting(900, 1), "c": waiting(100, 100)}
    encoded = encode(states, entry_bytes_max=4 * (100 + 60))
    assert [2, 0, 2] == [
        len(state.entries) for state in decode(encoded.handover, fetchable(encoded.states)).values()
    ]
    assert 2 == encoded.dropped


def test_names_without_room_are_cut_and_counted() -> None:
    """The messages of a subscription without room for its own name are dropped."""
    states = {
        "t": TopicState(
            subscriptions=(
                SubscriptionState(
                    name="s" * 16,
                    kind=SubscriptionKind.SHARED,
                    expected=("a" * 26, "b" * 26, "c" * 26),
                    waiting=(1,),
                ),
                SubscriptionState(
                    name="w" * 40, kind=SubscriptionKind.SHARED, expected=("a", "b"), waiting=(1, 2)
                ),
            ),
            entries=(Entry(1, b"1", 3), Entry(2, b"2", 5)),
        ),
        "u" * 30: TopicState(
            subscriptions=(
                SubscriptionState(name="s", kind=SubscriptionKind.SHARED, expected=("a",)),
            )
        ),
    }
    encoded = encode(states, names_max=5 + 20 + 30 + 30)
    state = decode(encoded.handover, fetchable(encoded.states))["t"]
    assert [("a" * 26, "b" * 26)] == [each.expected for each in state.subscriptions]
    assert ((Entry(1, b"1", 3),), 5, 1 + 2 + 1) == (
        state.entries,
        encoded.dropped,
        encoded.forgotten,
    )
    assert {"t"} == decode(encoded.handover, fetchable(encoded.states)).keys()


def test_the_names_of_one_topic_are_bounded() -> None:
    names = tuple(f"{number:01000}" for number in range(1_000))
    large = TopicState(
        subscriptions=(SubscriptionState(name="s", kind=SubscriptionKind.SHARED, expected=names),)
    )
    encoded = encode({"a": large, "b": QUIET})
    states = decode(encoded.handover, fetchable(encoded.states))
    kept = len(states["a"].subscriptions[0].expected)
    assert 1_000 == kept + encoded.forgotten
    assert 200 < kept <= NAMES_OF_TOPIC_MAX / 1_000
    assert QUIET == states["b"]


def test_a_handover_that_cannot_fit_is_not_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressing it would take longer than the whole move."""
    compressed: list[int] = []
    original = zlib.compress

    def compress(unpacked: bytes) -> bytes:
        compressed.append(len(unpacked))
        return original(unpacked)

    monkeypatch.setattr("equipoise.brokers.pulsar.topics.handover.zlib.compress", compress)
    encode({f"t{number:05}": unlike(number) for number in range(10_000)})
    assert max(compressed) <= 16 * HANDOVER_BYTES_MAX


def packed(document: object) -> bytes:
    """A handover with a good checksum and any content."""
    return zlib.compress(orjson.dumps(document))


def checked(document: object, blocks: bytes = b"") -> bytes:
    """Fetched bytes with a good checksum and any content."""
    rows = orjson.dumps(document)
    body = len(rows).to_bytes(4, "big") + rows + blocks
    return blake2b(body, digest_size=16).digest() + body


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"not at all",
        encode({"t": QUIET}).handover[:-1],
        encode({"t": QUIET}).handover + b"x",
        packed("x" * 300_000),
        packed([]),
        packed({"format": 2, "complete": True, "topics": []}),
        packed({"format": 1, "complete": 1, "topics": []}),
        packed({"format": 1, "topics": []}),
    ],
)
def test_a_damaged_handover_is_a_typed_error(damaged: bytes) -> None:
    with pytest.raises(PeerError, match="the handover of"):
        is_complete(damaged)
    with pytest.raises(PeerError, match="the handover of"):
        decode(damaged, None)


@pytest.mark.parametrize(
    "topic",
    [
        7,
        [1, 2, []],
        ["t", "2", []],
        ["t", -1, []],
        ["t", True, []],
        ["t", 1, [["s", 9, False, True, []]]],
        ["t", 1, [["s", 1, 0, True, []]]],
        ["t", 1, [["s", 1, False, True, [1]]]],
        ["t", 1, [["s", 1, False, True]]],
    ],
)
def test_a_topic_of_the_wrong_shape_is_a_typed_error(topic: object) -> None:
    """A good checksum does not replace the check."""
    with pytest.raises(PeerError, match="cannot be read"):
        decode(packed({"format": 1, "complete": True, "topics": [topic]}), None)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        fetchable(encode({"t": WAITING}).states)[:-1],
        checked({"format": 2, "topics": []}),
        checked({"format": 1, "topics": [[["t", 1, []], [], [[1, 1, 5]]]]}, b"1234"),
        checked({"format": 1, "topics": [[["t", 1, []], [], [[1, 1, -5]]]]}, b"1234"),
        checked({"format": 1, "topics": [[["t", 1, []], [[1]], []]]}),
    ],
)
def test_damaged_fetched_bytes_are_a_typed_error(damaged: bytes) -> None:
    """The service can then open the bundle with the handover alone."""
    with pytest.raises(PeerError, match="the fetched state of"):
        decode(encode({"t": WAITING}).handover, damaged)
