"""Queue what waits for each consumer of a Key_Shared subscription after a move."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from equipoise.brokers.pulsar.topics.arrivals import Entry
from equipoise.brokers.pulsar.topics.dispatch import Consumer
from equipoise.brokers.pulsar.topics.keys import slot_of


class Slots:
    """A cache of the slots of a topic's waiting entries, shared by all subscriptions so that each slot is computed once."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, entry: Entry) -> int:
        """Return the slot of an entry of this topic."""
        slot = self._known.get(entry.entry_id)
        if slot is None:
            slot = self._known[entry.entry_id] = slot_of(entry.block)
        return slot

    def clear(self) -> None:
        """Forget all slots. Call this once nothing waits."""
        self._known.clear()


class Lanes:
    """A queue of waiting entries for each consumer. No key has two consumers, so a slow consumer delays no other."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: dict[Consumer, deque[Entry]] = {}

    def __contains__(self, consumer: Consumer) -> bool:
        """Return whether anything waits for this consumer. New entries must then wait behind it."""
        return consumer in self._lanes

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, consumer: Consumer, entry: Entry) -> None:
        """Append an entry to its consumer's queue."""
        if consumer in self._lanes:
            self._lanes[consumer].append(entry)
        else:
            self._lanes[consumer] = deque((entry,))

    def ready(self) -> Iterable[tuple[Consumer, Entry]]:
        """Remove and yield entries while their consumers are ready. Charge each entry's permits before you take the next one."""
        for consumer, lane in list(self._lanes.items()):
            while lane and consumer.is_ready:
                yield consumer, lane.popleft()
            if not lane:
                del self._lanes[consumer]
