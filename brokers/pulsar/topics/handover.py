"""Encode and decode the topics of a bundle that moves to its next owner.

Theory of operation: there are two formats.

* The handover travels on the record that makes the next owner the owner, in at most 16 KiB. It
  names the consumers of each topic.
* The fetched state holds everything: what does not fit into the handover, and all undelivered
  entries. The next owner fetches it from the former owner. If that fails, only the handover is
  used.

Both carry a checksum, so decoders reject damage. Nothing here stores or sends them.
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

# The core's bound on the result of `Service.close`.
HANDOVER_BYTES_MAX: Final = 16 * 1024

# The size of an unpacked handover. Names compress to about a fifth, never to a sixteenth.
_UNPACKED_BYTES_MAX: Final = 16 * HANDOVER_BYTES_MAX

# Undelivered entries of one bundle: half of the most that the core fetches (64 MiB). The other half
# is for names.
ENTRY_BYTES_MAX: Final = 32 * 1024 * 1024

# Characters of the names of one bundle (100,000 topics with a consumer each), and of one topic
# (10,000 consumers with usual names). One step of the loop closes a bundle; it writes 8 MiB in 50
# ms.
NAMES_MAX: Final = 8 * 1024 * 1024
NAMES_OF_TOPIC_MAX: Final = 256 * 1024

# Characters between names.
_BESIDE_NAME: Final = 4

# Overhead of an entry: its row, and its id once for each subscription that has not delivered it.
_ENTRY_ROW_BYTES: Final = 40
_ENTRY_ID_BYTES: Final = 20

# Raise this when a layout below changes. Readers refuse other formats, and the topics then start
# without state.
FORMAT: Final = 1

_DIGEST_BYTES: Final = 16
_LENGTH_BYTES: Final = 4

# Decoded input that is not yet checked.
Raw = Any

# All errors that decoding bad input can raise.
_UNREADABLE: Final = (
    zlib.error,
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    OverflowError,
)


class Encoded(NamedTuple):
    """The result of `encode`.

    * `is_complete`: if False, the next owner must also fetch `fetchable(states)`.
    * `states`: the given states without what was cut.
    * `dropped`: messages that were cut for lack of room.
    * `forgotten`: consumer names that were cut; the next owner does not wait for them.
    """

    handover: bytes
    is_complete: bool
    states: Mapping[str, TopicState]
    dropped: int
    forgotten: int


def encode(
    states: Mapping[str, TopicState],
    *,
    entry_bytes_max: int = ENTRY_BYTES_MAX,
    names_max: int = NAMES_MAX,
) -> Encoded:
    """Encode the states of topics, by name, as a handover. Entries are not copied.

    The newest undelivered entries beyond `entry_bytes_max` are cut, and names beyond `names_max`
    characters.
    """
    states, dropped, forgotten = _named(states, names_max)
    rows = [_topic_row(name, states[name]) for name in sorted(states)]
    if not any(state.entries for state in states.values()):
        handover = _packed(rows, is_complete=True)
        if handover is not None:
            # A row has fields by position.
            return Encoded(handover, True, states, dropped, forgotten)  # noqa: FBT003
    # Halve the number of topics until they fit. This takes few tries, and the next owner fetches
    # the rest anyway.
    handover = _packed(rows, is_complete=False)
    while handover is None:
        rows = rows[: len(rows) // 2]
        handover = _packed(rows, is_complete=False)
    states, without_room = _with_room(states, entry_bytes_max)
    # As above.
    return Encoded(handover, False, states, dropped + without_room, forgotten)  # noqa: FBT003


def is_complete(handover: bytes) -> bool:
    """Return whether a handover needs no fetch. Raise `PeerError`."""
    try:
        return _unpacked(handover)[0]
    except _UNREADABLE as error:
        raise damaged("handover", str(error)) from error


def decode(handover: bytes, fetched: bytes | None) -> dict[str, TopicState]:
    """Return the states of topics by name, from `fetched` if given, else from the handover. Raise
    `PeerError`.
    """
    try:
        if fetched is not None:
            return _decode_fetched(fetched)
        return dict(_topic(row, ()) for row in _unpacked(handover)[1])
    except _UNREADABLE as error:
        raise damaged(
            "handover" if fetched is None else "fetched state", f"{type(error).__name__}: {error}"
        ) from error


def damaged(what: str, problem: str) -> PeerError:
    """Return the error of a `handover` or `fetched state` that cannot be decoded."""
    return PeerError(
        f"the {what} of a bundle's topics cannot be read: {problem}; open the bundle without it"
    )


def _packed(rows: Sequence[Raw], *, is_complete: bool) -> bytes | None:
    """Return a handover of these topics, or None if it is too large."""
    unpacked = orjson.dumps({"format": FORMAT, "complete": is_complete, "topics": rows})
    if len(unpacked) > _UNPACKED_BYTES_MAX:
        return None  # Check before compressing, which takes 30 times as long.
    packed = zlib.compress(unpacked)
    return packed if len(packed) <= HANDOVER_BYTES_MAX else None


def _unpacked(handover: bytes) -> tuple[bool, Raw]:
    """Return whether a handover is complete, and its rows. Raise one of `_UNREADABLE`."""
    unpacker = zlib.decompressobj()
    unpacked = unpacker.decompress(handover, _UNPACKED_BYTES_MAX)
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("it is cut off, or something follows it")
    document = orjson.loads(unpacked)
    _check_format(document)
    return _flag(document["complete"]), document["topics"]


def _named(
    states: Mapping[str, TopicState], room: int
) -> tuple[Mapping[str, TopicState], int, int]:
    """Cut states to names that fit into `room`. Return them with the numbers of dropped messages
    and forgotten consumers.

    Messages are dropped if no remaining subscription waits for them.
    """
    named = {}
    dropped = forgotten = 0
    for name in sorted(states):
        state = states[name]
        topic_room = before = min(room, NAMES_OF_TOPIC_MAX) - len(name) - _BESIDE_NAME
        subscriptions = []
        for each in state.subscriptions if topic_room >= 0 else ():
            ends = [
                0,
                *accumulate(len(text) + _BESIDE_NAME for text in (each.name, *each.expected)),
            ]
            fitting = bisect_right(ends, topic_room) - 1
            if fitting:
                subscriptions.append(replace(each, expected=each.expected[: fitting - 1]))
                topic_room -= ends[fitting]
        forgotten += _expected_in(state.subscriptions) - _expected_in(subscriptions)
        entries = state.entries
        if len(subscriptions) < len(state.subscriptions):
            waiting = {entry_id for each in subscriptions for entry_id in each.waiting}
            entries = tuple(entry for entry in entries if entry.entry_id in waiting)
        dropped += sum(entry.messages for entry in state.entries) - sum(
            entry.messages for entry in entries
        )
        if topic_room >= 0:
            named[name] = replace(state, subscriptions=tuple(subscriptions), entries=entries)
            room -= len(name) + _BESIDE_NAME + before - topic_room
    return named, dropped, forgotten


def _expected_in(subscriptions: Iterable[SubscriptionState]) -> int:
    return sum(len(each.expected) for each in subscriptions)


def _with_room(
    states: Mapping[str, TopicState], room_bytes: int
) -> tuple[Mapping[str, TopicState], int]:
    """Cut states to entries that fit into `room_bytes`. Return them with the number of dropped
    messages, the newest of each topic.

    If the next entry of a topic does not fit, the topic keeps the earlier ones, and the next topics
    use the remaining room.
    """
    dropped = 0
    fitting = {}
    for name in sorted(states):
        state = states[name]
        waiting_for = Counter(
            entry_id for subscription in state.subscriptions for entry_id in subscription.waiting
        )
        kept = 0
        for entry in state.entries:
            size = (
                len(entry.block) + _ENTRY_ROW_BYTES + _ENTRY_ID_BYTES * waiting_for[entry.entry_id]
            )
            if size > room_bytes:
                break
            room_bytes -= size
            kept += 1
        dropped += sum(entry.messages for entry in state.entries[kept:])
        fitting[name] = state if kept == len(state.entries) else _cut(state, kept)
    return fitting, dropped


def _cut(state: TopicState, kept: int) -> TopicState:
    """Return a state with only its first `kept` entries."""
    entries = state.entries[:kept]
    ids = {entry.entry_id for entry in entries}
    subscriptions = tuple(
        replace(each, waiting=tuple(one for one in each.waiting if one in ids))
        for each in state.subscriptions
    )
    return replace(state, subscriptions=subscriptions, entries=entries)


def size_of(states: Mapping[str, TopicState]) -> int:
    """Return the approximate size of states in bytes: names, undelivered entries and their ids."""
    size = 0
    for name, state in states.items():
        size += len(name) + sum(
            len(text) for each in state.subscriptions for text in (each.name, *each.expected)
        )
        size += sum(len(entry.block) + _ENTRY_ROW_BYTES for entry in state.entries)
        size += _ENTRY_ID_BYTES * sum(len(each.waiting) for each in state.subscriptions)
    return size


def fetchable(states: Mapping[str, TopicState]) -> bytes:
    """Encode everything: digest, length of the rows, rows, blocks.

    32 MiB take 0.25 s, so run this in a thread.
    """
    topics = []
    blocks = []
    for name in sorted(states):
        state = states[name]
        waiting = [subscription.waiting for subscription in state.subscriptions]
        topics.append(
            [
                _topic_row(name, state),
                waiting,
                [[each.entry_id, each.messages, len(each.block)] for each in state.entries],
            ]
        )
        blocks += [entry.block for entry in state.entries]
    rows = orjson.dumps({"format": FORMAT, "topics": topics})
    body = b"".join([len(rows).to_bytes(_LENGTH_BYTES, "big"), rows, *blocks])
    return blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def _decode_fetched(fetched: bytes) -> dict[str, TopicState]:
    """Decode the result of `fetchable`. Raise one of `_UNREADABLE`."""
    digest, body = fetched[:_DIGEST_BYTES], fetched[_DIGEST_BYTES:]
    if digest != blake2b(body, digest_size=_DIGEST_BYTES).digest():
        raise ValueError("its checksum is wrong: it is cut off or altered")
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
    """Encode a topic without its entries."""
    subscriptions = [
        [each.name, each.kind, each.is_sticky, each.expected] for each in state.subscriptions
    ]
    return [name, state.last_entry_id, subscriptions]


def _topic(row: Raw, waiting: Raw) -> tuple[str, TopicState]:
    """Decode the result of `_topic_row`. `waiting` has the ids of waiting entries per subscription,
    or is empty.
    """
    name, last_entry_id, subscription_rows = row
    waiting_ids = waiting or [()] * len(subscription_rows)
    subscriptions = tuple(
        SubscriptionState(
            name=_text(subscription),
            kind=SubscriptionKind(kind),
            is_sticky=_flag(is_sticky),
            expected=tuple(_text(each) for each in expected),
            waiting=tuple(_count(each) for each in ids),
        )
        for (subscription, kind, is_sticky, expected), ids in zip(
            subscription_rows, waiting_ids, strict=True
        )
    )
    return _text(name), TopicState(last_entry_id=_count(last_entry_id), subscriptions=subscriptions)


def _check_format(document: Raw) -> None:
    if document["format"] != FORMAT:
        raise ValueError(f"its format is not {FORMAT}, the only one that this version reads")


def _text(value: Raw) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is not text")
    return value


def _count(value: Raw) -> int:
    if type(value) is not int or value < 0:
        raise TypeError("a count is not a number, or is negative")
    return value


def _flag(value: Raw) -> bool:
    if not isinstance(value, bool):
        raise TypeError("a flag is neither true nor false")
    return value
