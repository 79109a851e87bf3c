"""What waits for the consumers of a Key_Shared subscription after a move, each in a lane of its own.

May live here: the lanes, and the slots of what waits, which are made out once. Who is back and what is held is told in
`brokers.pulsar.topics.arrivals`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from equipoise.brokers.pulsar.topics.arrivals import Entry
from equipoise.brokers.pulsar.topics.dispatch import Consumer
from equipoise.brokers.pulsar.topics.keys import slot_of


class Slots:
    """The slots of entries that wait, of one topic: however many of its subscriptions ask, and how often, each is made out once."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, entry: Entry) -> int:
        """The slot of an entry of this topic."""
        slot = self._known.get(entry.entry_id)
        if slot is None:
            slot = self._known[entry.entry_id] = slot_of(entry.block)
        return slot

    def clear(self) -> None:
        """Nothing waits any more."""
        self._known.clear()


class Lanes:
    """The entries that wait for each consumer, in order. Who is slow holds up nobody else, since no key has two consumers."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: dict[Consumer, deque[Entry]] = {}

    def __contains__(self, consumer: Consumer) -> bool:
        """Whether anything waits for this consumer, so that what is new must wait behind it."""
        return consumer in self._lanes

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, consumer: Consumer, entry: Entry) -> None:
        """Let an entry wait behind all that wait for its consumer."""
        if consumer in self._lanes:
            self._lanes[consumer].append(entry)
        else:
            self._lanes[consumer] = deque((entry,))

    def ready(self) -> Iterable[tuple[Consumer, Entry]]:
        """Give up, one by one, what its consumer is ready for when it is asked for: who takes it must be charged before the next."""
        for consumer, lane in list(self._lanes.items()):
            while lane and consumer.is_ready:
                yield consumer, lane.popleft()
            if not lane:
                del self._lanes[consumer]
