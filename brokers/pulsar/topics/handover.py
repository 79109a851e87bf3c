"""The topics of a bundle as bytes, from their former owner to their next one.

May live here: the two formats, and nothing that keeps or sends them. The handover travels on the record by which the next
owner takes over, in at most 16 KiB: who was there, topic by topic. What does not fit into it, and all entries that were not
delivered, are fetched from the former owner; then the fetched bytes hold everything once more, and the handover is only what
is left if they cannot be had. Both carry a checksum, so a decoder never has to guess.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final, NamedTuple

import orjson

from equipoise.brokers.pulsar.topics.arrivals import Entry
from equipoise.brokers.pulsar.topics.topic import SubscriptionState, TopicState
from equipoise.brokers.pulsar.wire.requests import SubscriptionKind
from equipoise.channel.core.errors import PeerError

# The bound of the core on what `Service.close` returns.
HANDOVER_BYTES_MAX: Final = 16 * 1024

# What a handover may unpack to: names compress to about a fifth, and never to a sixteenth.
_UNPACKED_BYTES_MAX: Final = 16 * HANDOVER_BYTES_MAX

# Undelivered entries of one bundle: half of what the core fetches at most (64 MiB), which leaves as much for names.
ENTRY_BYTES_MAX: Final = 32 * 1024 * 1024

# What the names of a bundle and of one topic may come to, in characters: of 100,000 topics with a consumer each, and of 10,000
# consumers with usual names. A bundle is closed in one step of the loop, in which 8 MiB are written in 50 ms.
NAMES_MAX: Final = 8 * 1024 * 1024
NAMES_OF_TOPIC_MAX: Final = 256 * 1024

# What stands between names.
_BESIDE_NAME: Final = 4

# Beside its block an entry costs its own row, and its id once for each subscription that has not delivered it.
_ENTRY_ROW_BYTES: Final = 40
_ENTRY_ID_BYTES: Final = 20

# Raised whenever a layout below changes. Another format is refused, and the topics begin anew.
FORMAT: Final = 1

_DIGEST_BYTES: Final = 16
_LENGTH_BYTES: Final = 4

# What was read from outside, and is looked at before it is used.
Raw = Any

# All that reading it can come to, where it is not what it should be.
_UNREADABLE: Final = (zlib.error, KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


class HandoverDamaged(PeerError):
    """What the former owner of a bundle said of its topics cannot be read."""

    def __init__(self, *, what: str, problem: str) -> None:
        """`what` is `handover` or `fetched state`, `problem` is what is wrong with it."""
        self.what = what
        self.problem = problem
        super().__init__(f"the {what} of a bundle's topics cannot be read: {problem}; open the bundle without it")


class Encoded(NamedTuple):
    """What `encode` made. Unless the handover `is_complete`, the next owner fetches what `fetchable` makes of the states.

    `states` are those that were given, without `dropped` messages that had no room, and the names of `forgotten` consumers, for
    whom nobody will wait.
    """

    handover: bytes
    is_complete: bool
    states: Mapping[str, TopicState]
    dropped: int
    forgotten: int


def encode(states: Mapping[str, TopicState], *, entry_bytes_max: int = ENTRY_BYTES_MAX, names_max: int = NAMES_MAX) -> Encoded:
    """The states of topics, by name, as a handover; entries are not copied, and how large they are is no matter here.

    Of undelivered entries the newest are left out beyond `entry_bytes_max`, and names beyond `names_max` characters.
    """
    states, dropped, forgotten = _named(states, names_max)
    rows = [_topic_row(name, states[name]) for name in sorted(states)]
    if not any(state.entries for state in states.values()):
        handover = _packed(rows, is_complete=True)
        if handover is not None:
            return Encoded(handover, True, states, dropped, forgotten)  # noqa: FBT003 - a row has fields by position
    # As many topics as fit, found by halving: a few tries, and what is left out is fetched anyway.
    handover = _packed(rows, is_complete=False)
    while handover is None:
        rows = rows[: len(rows) // 2]
        handover = _packed(rows, is_complete=False)
    states, without_room = _with_room(states, entry_bytes_max)
    return Encoded(handover, False, states, dropped + without_room, forgotten)  # noqa: FBT003 - as above


def is_complete(handover: bytes) -> bool:
    """Whether a handover says all; if not, fetch the rest. Raises `HandoverDamaged`."""
    try:
        return _unpacked(handover)[0]
    except _UNREADABLE as error:
        raise HandoverDamaged(what="handover", problem=str(error)) from error


def decode(handover: bytes, fetched: bytes | None) -> dict[str, TopicState]:
    """The states of topics by name: those fetched if there are any, else those of the handover. Raises `HandoverDamaged`."""
    try:
        if fetched is not None:
            return _decode_fetched(fetched)
        return dict(_topic(row, ()) for row in _unpacked(handover)[1])
    except _UNREADABLE as error:
        what = "handover" if fetched is None else "fetched state"
        raise HandoverDamaged(what=what, problem=f"{type(error).__name__}: {error}") from error


def _packed(rows: Sequence[Raw], *, is_complete: bool) -> bytes | None:
    """A handover of these topics; None if it is too large."""
    unpacked = orjson.dumps({"format": FORMAT, "complete": is_complete, "topics": rows})
    if len(unpacked) > _UNPACKED_BYTES_MAX:
        return None  # Before it is compressed, which takes 30 times as long.
    packed = zlib.compress(unpacked)
    return packed if len(packed) <= HANDOVER_BYTES_MAX else None


def _unpacked(handover: bytes) -> tuple[bool, Raw]:
    """Whether a handover is complete, and its rows; raises one of `_UNREADABLE`."""
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(handover, _UNPACKED_BYTES_MAX)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("it ends too early, or too late")
    document = orjson.loads(unpacked)
    _check_format(document)
    return _flag(document["complete"]), document["topics"]


def _named(states: Mapping[str, TopicState], room: int) -> tuple[Mapping[str, TopicState], int, int]:
    """States whose names fit into `room`; messages that wait for nobody then, and consumers whose names have no room."""
    named = {}
    dropped = forgotten = 0
    for name in sorted(states):
        state = states[name]
        topic_room = before = min(room, NAMES_OF_TOPIC_MAX) - len(name) - _BESIDE_NAME
        subscriptions = []
        for each in state.subscriptions if topic_room >= 0 else ():
            ends = [0, *accumulate(len(text) + _BESIDE_NAME for text in (each.name, *each.expected))]
            fitting = bisect_right(ends, topic_room) - 1
            if fitting:
                subscriptions.append(replace(each, expected=each.expected[: fitting - 1]))
                topic_room -= ends[fitting]
        forgotten += _expected_in(state.subscriptions) - _expected_in(subscriptions)
        entries = state.entries
        if len(subscriptions) < len(state.subscriptions):
            waiting = {entry_id for each in subscriptions for entry_id in each.waiting}
            entries = tuple(entry for entry in entries if entry.entry_id in waiting)
        dropped += sum(entry.messages for entry in state.entries) - sum(entry.messages for entry in entries)
        if topic_room >= 0:
            named[name] = replace(state, subscriptions=tuple(subscriptions), entries=entries)
            room -= len(name) + _BESIDE_NAME + before - topic_room
    return named, dropped, forgotten


def _expected_in(subscriptions: Iterable[SubscriptionState]) -> int:
    return sum(len(each.expected) for each in subscriptions)


def _with_room(states: Mapping[str, TopicState], room_bytes: int) -> tuple[Mapping[str, TopicState], int]:
    """States whose entries fit into `room_bytes`, and how many messages had no room: of each topic the newest.

    A topic whose next entry is too large keeps those before it, and the next topics have the room that is left.
    """
    dropped = 0
    fitting = {}
    for name in sorted(states):
        state = states[name]
        waiting_for = Counter(entry_id for subscription in state.subscriptions for entry_id in subscription.waiting)
        kept = 0
        for entry in state.entries:
            size = len(entry.block) + _ENTRY_ROW_BYTES + _ENTRY_ID_BYTES * waiting_for[entry.entry_id]
            if size > room_bytes:
                break
            room_bytes -= size
            kept += 1
        dropped += sum(entry.messages for entry in state.entries[kept:])
        fitting[name] = state if kept == len(state.entries) else _cut(state, kept)
    return fitting, dropped


def _cut(state: TopicState, kept: int) -> TopicState:
    """A state with the first so many of its entries."""
    entries = state.entries[:kept]
    ids = {entry.entry_id for entry in entries}
    subscriptions = tuple(replace(each, waiting=tuple(one for one in each.waiting if one in ids)) for each in state.subscriptions)
    return replace(state, subscriptions=subscriptions, entries=entries)


def size_of(states: Mapping[str, TopicState]) -> int:
    """How many bytes states take, about: their names, and their entries, as far as they are on their way to somebody."""
    size = 0
    for name, state in states.items():
        size += len(name) + sum(len(text) for each in state.subscriptions for text in (each.name, *each.expected))
        size += sum(len(entry.block) + _ENTRY_ROW_BYTES for entry in state.entries)
        size += _ENTRY_ID_BYTES * sum(len(each.waiting) for each in state.subscriptions)
    return size


def fetchable(states: Mapping[str, TopicState]) -> bytes:
    """Everything in one piece: digest, length of the rows, rows, blocks one behind another.

    32 MiB take a quarter of a second: not for the loop, but for a thread.
    """
    topics = []
    blocks = []
    for name in sorted(states):
        state = states[name]
        waiting = [subscription.waiting for subscription in state.subscriptions]
        topics.append([_topic_row(name, state), waiting, [[each.entry_id, each.messages, len(each.block)] for each in state.entries]])
        blocks += [entry.block for entry in state.entries]
    rows = orjson.dumps({"format": FORMAT, "topics": topics})
    body = b"".join([len(rows).to_bytes(_LENGTH_BYTES, "big"), rows, *blocks])
    return blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def _decode_fetched(fetched: bytes) -> dict[str, TopicState]:
    """What `fetchable` was given; raises one of `_UNREADABLE`."""
    digest, body = fetched[:_DIGEST_BYTES], fetched[_DIGEST_BYTES:]
    if digest != blake2b(body, digest_size=_DIGEST_BYTES).digest():
        raise ValueError("its checksum is another: it is cut off, altered, or something else")
    position = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "big")
    document = orjson.loads(body[_LENGTH_BYTES:position])
    _check_format(document)
    states = {}
    for row, waiting, entry_rows in document["topics"]:
        entries = []
        for entry_id, messages, size in entry_rows:
            block = body[position : position + _count(size)]
            if len(block) != size:
                raise ValueError("a block is cut off")
            position += size
            entries.append(Entry(_count(entry_id), block, _count(messages)))
        name, state = _topic(row, waiting)
        states[name] = replace(state, entries=tuple(entries))
    return states


def _topic_row(name: str, state: TopicState) -> Raw:
    """A topic without its entries."""
    subscriptions = [[each.name, each.kind, each.is_sticky, each.is_durable, each.expected] for each in state.subscriptions]
    return [name, state.last_entry_id, subscriptions]


def _topic(row: Raw, waiting: Raw) -> tuple[str, TopicState]:
    """What `_topic_row` was given; `waiting` has the ids of waiting entries of each subscription, or nothing at all."""
    name, last_entry_id, subscription_rows = row
    waiting_ids = waiting or [()] * len(subscription_rows)
    subscriptions = tuple(
        SubscriptionState(
            name=_text(subscription),
            kind=SubscriptionKind(kind),
            is_sticky=_flag(is_sticky),
            is_durable=_flag(is_durable),
            expected=tuple(_text(each) for each in expected),
            waiting=tuple(_count(each) for each in ids),
        )
        for (subscription, kind, is_sticky, is_durable, expected), ids in zip(subscription_rows, waiting_ids, strict=True)
    )
    return _text(name), TopicState(last_entry_id=_count(last_entry_id), subscriptions=subscriptions)


def _check_format(document: Raw) -> None:
    if document["format"] != FORMAT:
        raise ValueError(f"it is of another format than {FORMAT}, the one that this version reads")


def _text(value: Raw) -> str:
    if not isinstance(value, str):
        raise TypeError("a name that is no text")
    return value


def _count(value: Raw) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("a count that is no number, or negative")
    return value


def _flag(value: Raw) -> bool:
    if not isinstance(value, bool):
        raise TypeError("a flag that is neither true nor false")
    return value
