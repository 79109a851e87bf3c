"""Choose which consumer of a subscription gets an entry: Exclusive, Failover, Shared and
Key_Shared.

Nothing here sends or knows connections. A consumer's connection is its opaque `link`, which only
the service reads.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, Final, Protocol

from equipoise.brokers.pulsar.topics.keys import Holder, Ring, Stripes, slot_of
from equipoise.brokers.pulsar.topics.rates import Meter
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import KeyShared, Sent, SubscriptionKind

# The most permits that a consumer may have outstanding; the excess is ignored. Java's counter has
# the same maximum.
PERMITS_MAX: Final = 2**31 - 1


@dataclass(slots=True, kw_only=True, eq=False)
class Consumer:
    """One consumer of a topic, compared by identity. The service creates it and does not change it
    afterwards.

    * `permits`: messages granted and not yet delivered; a batch may take them below 0.
    * `connected_since`: already in Pulsar's format, because pure code has no calendar.
    * `is_name_users`: the client chose the name, and uses it again after a move.
    """

    name: str
    link: object
    consumer_id: int
    delivered: Meter
    is_name_users: bool = True
    priority: int = 0
    key_shared: KeyShared | None = None
    properties: tuple[tuple[str, str], ...] = ()
    address: str = ""
    client_version: str = ""
    connected_since: str = ""
    permits: int = 0
    is_writable: bool = True
    has_flowed: bool = False

    @property
    def is_ready(self) -> bool:
        """Whether it can take an entry now."""
        return self.permits > 0 and self.is_writable


# Finding one point of a ring costs as much as scanning past this many.
_DEARER_SINGLY: Final = 10

ActiveChange = tuple[Consumer, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a producer or consumer is refused. If `holder` is set and dead, remove it and try
    again.
    """

    error: ServerError
    message: str
    holder: object | None = None


class Dispatcher(Protocol):
    """One way to choose a consumer. A consumer is ready if it has permits and can be written to;
    `choose` returns only ready ones.

    `slot` is the slot of the entry. Only Key_Shared uses it; others accept any number.
    """

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """Add a consumer. Return the changes of the active consumer to send, or a refusal."""
        ...

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """Remove consumers that are present, in one step. Return the changes of the active consumer
        to send.
        """
        ...

    def choose(self, slot: int) -> Consumer | None:
        """Return the consumer that gets an entry, or None if no eligible consumer is ready."""
        ...

    def room_for(self, entries: Sequence[Sent]) -> int:
        """Return how many of these entries, from the first one on, surely have a ready consumer. 0
        means that the first one has none.

        An entry of a slot that no consumer takes needs none.
        """
        ...

    @property
    def active(self) -> Consumer | None:
        """The one consumer that gets everything, or None if the kind has none."""
        ...


def wants_stripes(consumer: Consumer, kind: SubscriptionKind) -> bool:
    """Return whether a consumer names its own slots (STICKY). Only Key_Shared uses a consumer's key
    settings.
    """
    return (
        kind is SubscriptionKind.KEY_SHARED
        and consumer.key_shared is not None
        and consumer.key_shared.is_sticky
    )


def dispatcher(kind: SubscriptionKind, *, is_sticky: bool, partition: int) -> Dispatcher:
    """Create the dispatcher of a subscription. `partition` is the topic's index, or -1."""
    match kind:
        case SubscriptionKind.EXCLUSIVE:
            return Exclusive()
        case SubscriptionKind.FAILOVER:
            return Failover(partition)
        case SubscriptionKind.SHARED:
            return Shared()
        case SubscriptionKind.KEY_SHARED:
            return KeySharing(is_sticky=is_sticky)


class Exclusive:
    """Dispatch to the only consumer. A second one is refused."""

    __slots__ = ("active",)

    def __init__(self) -> None:
        self.active: Consumer | None = None

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """See `Dispatcher`."""
        if self.active is not None:
            message = "Exclusive consumer is already connected"
            return Refusal(error=ServerError.CONSUMER_BUSY, message=message, holder=self.active)
        self.active = consumer
        return []

    # It is the only one.
    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:  # noqa: ARG002
        """See `Dispatcher`."""
        self.active = None
        return []

    def choose(self, slot: int) -> Consumer | None:  # noqa: ARG002 - as the protocol asks
        """See `Dispatcher`."""
        consumer = self.active
        return (
            consumer
            if consumer is not None and consumer.permits > 0 and consumer.is_writable
            else None
        )

    def room_for(self, entries: Sequence[Sent]) -> int:
        """See `Dispatcher`."""
        return _room_for(entries, (self.active,))


class Failover:
    """Dispatch to one active consumer; the others stand by.

    * Only consumers of the best (lowest) priority can be active. The partition's index chooses one
      of them, sorted by name, so that the partitions of a topic spread over the same consumers.
      Source: AbstractDispatcherSingleActiveConsumer.
    * A change is sent to the new consumer, the active one and the former one. Pulsar notifies all
      consumers of each change, which costs hundreds of messages each when hundreds join or leave at
      once and gives standby consumers no information.
    """

    __slots__ = ("_consumers", "_index", "active")

    def __init__(self, partition: int) -> None:
        """Use the partition's index, or 0 if `partition` is -1."""
        self._index = max(partition, 0)
        self._consumers: list[Consumer] = []
        self.active: Consumer | None = None

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """See `Dispatcher`."""
        insort(self._consumers, consumer, key=_rank)
        changes = self._choose_again()
        if all(each is not consumer for each, _ in changes):
            changes.append((consumer, False))
        return changes

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """See `Dispatcher`."""
        gone = set(consumers)
        self._consumers = [each for each in self._consumers if each not in gone]
        return [(each, is_active) for each, is_active in self._choose_again() if each not in gone]

    def _choose_again(self) -> list[ActiveChange]:
        """Choose the active consumer again. Return the changes for the new and the former one if
        they differ.
        """
        consumers, former = self._consumers, self.active
        active = None
        if consumers:
            best = bisect_left(consumers, (consumers[0].priority + 1, ""), key=_rank)
            active = consumers[self._index % best]
        if active is former:
            return []
        self.active = active
        return [(each, each is active) for each in (active, former) if each is not None]

    def choose(self, slot: int) -> Consumer | None:  # noqa: ARG002 - as the protocol asks
        """See `Dispatcher`."""
        consumer = self.active
        return (
            consumer
            if consumer is not None and consumer.permits > 0 and consumer.is_writable
            else None
        )

    def room_for(self, entries: Sequence[Sent]) -> int:
        """See `Dispatcher`."""
        return _room_for(entries, (self.active,))


class Shared:
    """Dispatch round-robin to ready consumers. A priority is used only if no consumer of a better
    (lower) one is ready.
    """

    __slots__ = ("_consumers", "_turns")

    active: ClassVar = None

    def __init__(self) -> None:
        self._consumers: dict[int, list[Consumer]] = {}  # By rising priority.
        self._turns: dict[int, int] = {}  # By priority: the index at which the next search begins.

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """See `Dispatcher`."""
        self._consumers.setdefault(consumer.priority, []).append(consumer)
        self._turns.setdefault(consumer.priority, 0)
        self._consumers = dict(sorted(self._consumers.items()))
        return []

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """See `Dispatcher`."""
        gone = set(consumers)
        for priority in sorted({each.priority for each in gone}):
            level = self._consumers[priority]
            self._turns[priority] -= sum(
                1 for each in level[: self._turns[priority]] if each in gone
            )
            self._consumers[priority] = [each for each in level if each not in gone]
            if not self._consumers[priority]:
                del self._consumers[priority], self._turns[priority]
        return []

    def choose(self, slot: int) -> Consumer | None:  # noqa: ARG002 - as the protocol asks
        """See `Dispatcher`."""
        for priority, level in self._consumers.items():
            turn = self._turns[priority]
            for step in range(turn, turn + len(level)):
                consumer = level[step % len(level)]
                if consumer.permits > 0 and consumer.is_writable:
                    self._turns[priority] = step % len(level) + 1
                    return consumer
        return None

    def room_for(self, entries: Sequence[Sent]) -> int:
        """See `Dispatcher`."""
        return _room_for(entries, chain.from_iterable(self._consumers.values()))


class KeySharing:
    """Dispatch all entries of a key to one consumer (Key_Shared). If it is not ready, no other
    consumer gets them.
    """

    __slots__ = ("_holder_of", "_holders", "_is_sticky", "_ring", "_stripes")

    active: ClassVar = None

    def __init__(self, *, is_sticky: bool) -> None:
        """Use the slots that consumers name (STICKY), or spread the slots over them
        (AUTO_SPLIT).
        """
        self._is_sticky = is_sticky
        self._ring = Ring()
        self._stripes = Stripes()
        self._holders: dict[Holder, Consumer] = {}
        self._holder_of: dict[Consumer, Holder] = {}

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """See `Dispatcher`. A number separates consumers of the same name."""
        number = 0
        while (consumer.name, number) in self._holders:
            number += 1
        if self._is_sticky:
            ranges = _ranges_of(consumer)
            conflict = self._stripes.conflict(ranges)
            if conflict is not None:
                return Refusal(error=ServerError.CONSUMER_ASSIGN_ERROR, message=conflict)
            self._stripes.add(consumer.name, number, ranges)
        else:
            self._ring.add(consumer.name, number)
        self._holder_of[consumer] = holder = (consumer.name, number)
        self._holders[holder] = consumer
        return []

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """See `Dispatcher`."""
        is_many = len(consumers) * _DEARER_SINGLY >= len(self._holder_of)
        gone = {self._holder_of.pop(consumer): consumer for consumer in consumers}
        for holder in gone:
            del self._holders[holder]
        if is_many:
            self._ring.remove_many(gone)
            self._stripes.remove_many(gone)
            return []
        for holder, consumer in gone.items():
            if self._is_sticky:
                self._stripes.remove(*holder, _ranges_of(consumer))
            else:
                self._ring.remove(*holder)
        return []

    def consumer_of(self, slot: int) -> Consumer | None:
        """Return the consumer of a slot, ready or not, or None if it has none."""
        holder = self._stripes.holder(slot) if self._is_sticky else self._ring.holder(slot)
        return None if holder is None else self._holders[holder]

    def choose(self, slot: int) -> Consumer | None:
        """See `Dispatcher`."""
        consumer = self.consumer_of(slot)
        return (
            consumer
            if consumer is not None and consumer.permits > 0 and consumer.is_writable
            else None
        )

    def room_for(self, entries: Sequence[Sent]) -> int:
        """See `Dispatcher`. Slots are computed only if some consumer lacks permits for all of the
        entries.
        """
        messages = sum(entry.messages for entry in entries)
        if all(each.is_writable and each.permits >= messages for each in self._holders.values()):
            return len(entries)
        used = Counter[Consumer]()
        for place, entry in enumerate(entries):
            consumer = self.consumer_of(slot_of(entry.block))
            if consumer is not None:
                if not consumer.is_writable or consumer.permits <= used[consumer]:
                    return place
                used[consumer] += entry.messages
        return len(entries)


def _room_for(entries: Sequence[Sent], consumers: Iterable[Consumer | None]) -> int:
    """Return how many entries fit into the permits of these consumers. Each may take any entry."""
    messages, permits = sum(entry.messages for entry in entries), 0
    for each in consumers:
        if each is not None and each.is_ready:
            permits += each.permits
            if permits >= messages:  # The first of many consumers usually suffice.
                return len(entries)
    for place, entry in enumerate(entries):
        if permits <= 0:
            return place
        permits -= entry.messages
    return len(entries)


def _rank(consumer: Consumer) -> tuple[int, str]:
    """Return the sort key of a Failover consumer."""
    return consumer.priority, consumer.name


def _ranges_of(consumer: Consumer) -> Sequence[tuple[int, int]]:
    """Return the slot ranges that a STICKY consumer asked for."""
    return consumer.key_shared.ranges if consumer.key_shared is not None else ()
