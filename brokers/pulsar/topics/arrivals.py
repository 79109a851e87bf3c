"""Track which consumers a subscription waits for after a move, and the entries that it holds for
them.

`brokers.pulsar.topics.topic` decides when to stop waiting, `brokers.pulsar.topics.dispatch` who
gets which entry.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from equipoise.brokers.pulsar.topics.clients import Consumer
from equipoise.brokers.pulsar.topics.keys import slot_of

# The expected name of a consumer whose name the former broker generated: the next broker generates
# another one.
NAMELESS: Final = ""


@dataclass(slots=True)
class Entry:
    """The content of one SEND: its number in the topic, the block to forward unchanged, and its
    number of messages.
    """

    entry_id: int
    block: bytes
    messages: int
    _slot: int | None = field(default=None, compare=False, repr=False)

    @property
    def slot(self) -> int:
        """The slot of its key. It is computed once, however many Key_Shared subscriptions ask."""
        if self._slot is None:
            self._slot = slot_of(self.block)
        return self._slot


class Arrivals:
    """The consumers that are not yet back after a move, and the entries that wait for them, in
    order.

    * A consumer is back once it has subscribed under its former name and granted permits. If it
      leaves after that, nothing waits for it.
    * A consumer that leaves before it grants permits is expected again: a client whose connection
      breaks while it reconnects tries once more.
    * A consumer whose name the broker generated is expected and recognised as `NAMELESS`.
    """

    __slots__ = (
        "_bytes_max",
        "_coming",
        "_entries",
        "_entries_max",
        "_missing",
        "_ready",
        "bytes",
        "messages",
        "needs_one",
    )

    def __init__(self, names: Iterable[str], *, entries_max: int, bytes_max: int) -> None:
        """Expect one consumer for each of `names`, which may repeat a name.

        `entries_max` and `bytes_max` bound the entries held.
        """
        self._missing = Counter(names)
        self._coming: dict[Consumer, None] = {}
        self._ready: set[Consumer] = set()
        self._entries: OrderedDict[int, Entry] = OrderedDict()  # By rising entry id.
        self.bytes = 0
        self.messages = 0
        self.needs_one = False
        self._entries_max = entries_max
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        """Return the number of waiting entries."""
        return len(self._entries)

    @property
    def is_complete(self) -> bool:
        """Whether all consumers are back, or one ready consumer is here and is enough
        (`needs_one`).
        """
        return (not self._missing and not self._coming) or (self.needs_one and bool(self._ready))

    @property
    def missing(self) -> tuple[str, ...]:
        """The sorted names of consumers that have not subscribed yet. A name may repeat."""
        return tuple(sorted(self._missing.elements()))

    def is_awaited(self, consumer: Consumer) -> bool:
        """Return whether an expected consumer has subscribed but not yet granted permits."""
        return consumer in self._coming

    def subscribed(self, consumer: Consumer) -> None:
        """Note that a consumer has subscribed. If it was expected, only its permits are still
        missing.
        """
        name = name_to_expect(consumer)
        if name in self._missing:
            self._missing[name] -= 1
            if not self._missing[name]:
                del self._missing[name]
            self._coming[consumer] = None

    def flowed(self, consumer: Consumer) -> None:
        """Note that a consumer has granted permits."""
        self._coming.pop(consumer, None)
        self._ready.add(consumer)

    def left(self, consumer: Consumer) -> None:
        """Note that a consumer has left."""
        self._ready.discard(consumer)
        if consumer in self._coming:
            del self._coming[consumer]
            self._missing[name_to_expect(consumer)] += 1

    def hold(self, entry: Entry) -> bool:
        """Append an entry to those that wait. Return False if there is no room."""
        size = len(entry.block)
        if len(self._entries) >= self._entries_max or self.bytes + size > self._bytes_max:
            return False
        self._entries[entry.entry_id] = entry
        self.bytes += size
        self.messages += entry.messages
        return True

    def forget(self, entry_ids: Collection[int]) -> None:
        """Remove entries by id. Unknown ids are ignored."""
        for entry_id in entry_ids:
            if entry_id in self._entries:
                self.take(entry_id)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All waiting entries, in order."""
        return tuple(self._entries.values())

    @property
    def first(self) -> Entry | None:
        """The entry that has waited longest, or None."""
        return next(iter(self._entries.values()), None)

    def take(self, entry_id: int) -> Entry:
        """Remove and return a waiting entry."""
        entry = self._entries.pop(entry_id)
        self.bytes -= len(entry.block)
        self.messages -= entry.messages
        return entry


def name_to_expect(consumer: Consumer) -> str:
    """Return the name that identifies a consumer when it comes back after a move."""
    return consumer.name if consumer.is_name_users else NAMELESS
