"""A subscription of a topic that has just moved here: whom it waits for, and what it holds for them.

May live here: the bookkeeping of who is still to come back, and the bounded backlog meanwhile. When to give up waiting is
decided in `brokers.pulsar.topic`, and who gets what in `brokers.pulsar.subscription`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import NamedTuple

from brokers.pulsar.dispatch import Consumer


class Entry(NamedTuple):
    """What one SEND brought: its number in the topic, the block to pass on unchanged, and how many messages are in it."""

    entry_id: int
    block: bytes
    messages: int


class Arrivals:
    """Who was there before the move and is not yet back, and the entries that wait for them, in order.

    A consumer is back once it has subscribed under its former name AND granted permits. From then on it is like any other:
    if it leaves again, nobody waits for it. One that leaves before it granted permits is expected again, since a client
    whose connection breaks in the middle of coming back tries once more.
    """

    __slots__ = ("_bytes_max", "_coming", "_entries", "_entries_max", "_missing", "bytes", "messages")

    def __init__(self, names: Iterable[str], *, entries_max: int, bytes_max: int) -> None:
        """Wait for one consumer for each of `names`, which may hold a name twice; hold at most so many entries and bytes."""
        self._missing = Counter(names)
        self._coming: dict[Consumer, None] = {}
        self._entries: deque[Entry] = deque()
        self.bytes = 0
        self.messages = 0
        self._entries_max = entries_max
        self._bytes_max = bytes_max

    @property
    def is_complete(self) -> bool:
        """Whether all are back."""
        return not self._missing and not self._coming

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of those who have not even subscribed, sorted; a name that is missing twice stands there twice."""
        return tuple(sorted(self._missing.elements()))

    def is_awaited(self, consumer: Consumer) -> bool:
        """Whether this consumer has subscribed, was there before, and has not yet granted permits."""
        return consumer in self._coming

    def subscribed(self, consumer: Consumer) -> None:
        """A consumer has come; if it is one of the missing, only its permits are waited for now."""
        if consumer.name in self._missing:
            self._missing -= Counter((consumer.name,))
            self._coming[consumer] = None

    def flowed(self, consumer: Consumer) -> None:
        """A consumer has granted permits."""
        self._coming.pop(consumer, None)

    def left(self, consumer: Consumer) -> None:
        """A consumer has gone again."""
        if consumer in self._coming:
            del self._coming[consumer]
            self._missing[consumer.name] += 1

    def hold(self, entry: Entry) -> bool:
        """Keep an entry behind all that wait already; False if there is no room for it."""
        size = len(entry.block)
        if len(self._entries) >= self._entries_max or self.bytes + size > self._bytes_max:
            return False
        self._entries.append(entry)
        self.bytes += size
        self.messages += entry.messages
        return True

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that waits, in order."""
        return tuple(self._entries)

    @property
    def first(self) -> Entry | None:
        """What waits longest; None if nothing waits."""
        return self._entries[0] if self._entries else None

    def take_first(self) -> Entry:
        """Give up what waits longest; something must wait."""
        entry = self._entries.popleft()
        self.bytes -= len(entry.block)
        self.messages -= entry.messages
        return entry
