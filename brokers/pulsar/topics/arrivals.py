"""A subscription of a topic that has just moved here: whom it waits for, and what it holds for them.

May live here: the bookkeeping of who is still to come back, and the bounded backlog meanwhile. When to give up waiting is
decided in `brokers.pulsar.topics.topic`, and who gets what in `brokers.pulsar.topics.subscription`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from equipoise.brokers.pulsar.topics.dispatch import Consumer

# The name under which one is expected whose name was chosen by its broker: the next one chooses another.
NAMELESS: Final = ""


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

    Who left the choice of its name to the broker comes back without one: it is expected, and recognised, as `NAMELESS`.
    """

    __slots__ = ("_bytes_max", "_coming", "_entries", "_entries_max", "_missing", "_ready", "bytes", "messages", "needs_one")

    def __init__(self, names: Iterable[str], *, entries_max: int, bytes_max: int) -> None:
        """Wait for one consumer for each of `names`, which may hold a name twice; hold at most so many entries and bytes."""
        self._missing = Counter(names)
        self._coming: dict[Consumer, None] = {}
        self._ready: set[Consumer] = set()
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # By entry id, which rises.
        self.bytes = 0
        self.messages = 0
        self.needs_one = False
        self._entries_max = entries_max
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        """How many entries wait."""
        return len(self._entries)

    @property
    def is_complete(self) -> bool:
        """Whether all are back, or, where that is enough (`needs_one`), anybody is here who has granted permits."""
        return (not self._missing and not self._coming) or (self.needs_one and bool(self._ready))

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of those who have not even subscribed, sorted; a name that is missing twice stands there twice."""
        return tuple(sorted(self._missing.elements()))

    def is_awaited(self, consumer: Consumer) -> bool:
        """Whether this consumer has subscribed, was there before, and has not yet granted permits."""
        return consumer in self._coming

    def subscribed(self, consumer: Consumer) -> None:
        """A consumer has come; if it is one of the missing, only its permits are waited for now."""
        name = name_to_expect(consumer)
        if name in self._missing:
            self._missing[name] -= 1
            if not self._missing[name]:
                del self._missing[name]
            self._coming[consumer] = None

    def flowed(self, consumer: Consumer) -> None:
        """A consumer has granted permits."""
        self._coming.pop(consumer, None)
        self._ready.add(consumer)

    def left(self, consumer: Consumer) -> None:
        """A consumer has gone again."""
        self._ready.discard(consumer)
        if consumer in self._coming:
            del self._coming[consumer]
            self._missing[name_to_expect(consumer)] += 1

    def hold(self, entry: Entry) -> bool:
        """Keep an entry behind all that wait already; False if there is no room for it."""
        size = len(entry.block)
        if len(self._entries) >= self._entries_max or self.bytes + size > self._bytes_max:
            return False
        self._entries[entry.entry_id] = entry
        self.bytes += size
        self.messages += entry.messages
        return True

    def forget(self, entry_ids: Collection[int]) -> None:
        """Give up entries, wherever they stand; ids of others are passed over."""
        for entry_id in entry_ids:
            if entry_id in self._entries:
                self.take(entry_id)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All that waits, in order."""
        return tuple(self._entries.values())

    @property
    def first(self) -> Entry | None:
        """What waits longest; None if nothing waits."""
        return next(iter(self._entries.values()), None)

    def take(self, entry_id: int) -> Entry:
        """Give up an entry that waits, wherever it stands."""
        entry = self._entries.pop(entry_id)
        self.bytes -= len(entry.block)
        self.messages -= entry.messages
        return entry


def name_to_expect(consumer: Consumer) -> str:
    """The name by which a consumer is recognised when it comes back after a move."""
    return consumer.name if consumer.is_name_users else NAMELESS
