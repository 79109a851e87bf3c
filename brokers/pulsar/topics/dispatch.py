"""Who of a subscription's consumers gets an entry: Exclusive, Failover, Shared and Key_Shared.

May live here: what a topic knows of a consumer, the four ways of choosing one, and what a refusal says. Nothing is sent from
here, and nobody knows of connections: what a consumer hangs on is its `link`, which only the service can read.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from equipoise.brokers.pulsar.topics.keys import Holder, Ring, Stripes
from equipoise.brokers.pulsar.topics.rates import Meter
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import KeyShared, SubscriptionKind

# A consumer may grant at most so many messages ahead; what it grants beyond is not remembered. Java's counter ends here, too.
PERMITS_MAX: Final = 2**31 - 1


@dataclass(slots=True, kw_only=True, eq=False)
class Consumer:
    """One consumer, as its topic sees it; compared by identity. The service makes it, and may set nothing in it afterwards.

    `permits` are the messages that it has granted and not yet got; a batch may take them below 0. `connected_since` is
    already in the form that Pulsar prints, because pure code has no calendar. `is_name_users`: the client chose the name, and
    so will come back under it after a move.
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
        """Whether it takes an entry at this moment."""
        return self.permits > 0 and self.is_writable


# To look for one point of a ring takes as long as to pass by so many.
_DEARER_SINGLY: Final = 10

ActiveChange = tuple[Consumer, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a producer or consumer is not let in. `holder` has what was asked for: if it is dead, remove it and ask again."""

    error: ServerError
    message: str
    holder: object | None = None


class Dispatcher(Protocol):
    """One way of choosing. A consumer is ready if it has permits and can be written to; only a ready one is ever chosen.

    `slot` is that of the entry; only Key_Shared looks at it, and for the others it may be any number.
    """

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """Let a consumer in, and say to whom what about being active must be told; or why it cannot come in."""
        ...

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """Let consumers go that are in, all in one step, and say to whom what about being active must be told."""
        ...

    def choose(self, slot: int) -> Consumer | None:
        """The consumer that gets an entry; None if the one that should, or all that could, are not ready."""
        ...

    def serves(self, slot: int) -> bool:
        """Whether there is a consumer that would get an entry if all were ready."""
        ...

    @property
    def active(self) -> Consumer | None:
        """The one consumer that gets everything; None if there is no such one."""
        ...


def wants_stripes(consumer: Consumer, kind: SubscriptionKind) -> bool:
    """Whether a consumer of this kind names its own slots (STICKY); for other kinds what it says of keys has no meaning."""
    return kind is SubscriptionKind.KEY_SHARED and consumer.key_shared is not None and consumer.key_shared.is_sticky


def dispatcher(kind: SubscriptionKind, *, is_sticky: bool, partition: int) -> Dispatcher:
    """The dispatcher of a subscription; `partition` is the topic's index, -1 if it is no partition."""
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
    """One consumer, and no other beside it."""

    __slots__ = ("_consumer",)

    def __init__(self) -> None:
        self._consumer: Consumer | None = None

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """See `Dispatcher`."""
        if self._consumer is not None:
            message = "Exclusive consumer is already connected"
            return Refusal(error=ServerError.CONSUMER_BUSY, message=message, holder=self._consumer)
        self._consumer = consumer
        return []

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:  # noqa: ARG002 - it is the only one
        """See `Dispatcher`."""
        self._consumer = None
        return []

    def choose(self, slot: int) -> Consumer | None:  # noqa: ARG002 - as the protocol asks
        """See `Dispatcher`."""
        consumer = self._consumer
        return consumer if consumer is not None and consumer.permits > 0 and consumer.is_writable else None

    def serves(self, slot: int) -> bool:  # noqa: ARG002 - as the protocol asks
        """See `Dispatcher`."""
        return self._consumer is not None

    @property
    def active(self) -> Consumer | None:
        """See `Dispatcher`."""
        return self._consumer


class Failover:
    """One active consumer; the others stand by. Told are those for whom something is new: who comes, who is active, who was.

    Pulsar tells everybody whenever another one becomes active; who stands by learns nothing from that, and hundreds who come
    or go at once would have to be told hundreds of times each.
    Only those of the best (lowest) priority can be active. Of them, sorted by name, the partition's index chooses one, so
    that the partitions of a topic spread over the same consumers. Source: AbstractDispatcherSingleActiveConsumer.
    """

    __slots__ = ("_active", "_consumers", "_index")

    def __init__(self, partition: int) -> None:
        """`partition` is the topic's index, -1 if it is no partition."""
        self._index = max(partition, 0)
        self._consumers: list[Consumer] = []
        self._active: Consumer | None = None

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """See `Dispatcher`."""
        insort(self._consumers, consumer, key=_rank)
        changes = self._chosen_anew()
        if all(told is not consumer for told, _ in changes):
            changes.append((consumer, False))
        return changes

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """See `Dispatcher`."""
        gone = set(consumers)
        self._consumers = [each for each in self._consumers if each not in gone]
        return [(told, is_active) for told, is_active in self._chosen_anew() if told not in gone]

    def _chosen_anew(self) -> list[ActiveChange]:
        """Choose the active one again; what that one and the former one must be told if they are not the same."""
        consumers, former = self._consumers, self._active
        active = None
        if consumers:
            best = bisect_left(consumers, (consumers[0].priority + 1, ""), key=_rank)
            active = consumers[self._index % best]
        if active is former:
            return []
        self._active = active
        return [(each, each is active) for each in (active, former) if each is not None]

    def choose(self, slot: int) -> Consumer | None:  # noqa: ARG002 - as the protocol asks
        """See `Dispatcher`."""
        consumer = self._active
        return consumer if consumer is not None and consumer.permits > 0 and consumer.is_writable else None

    def serves(self, slot: int) -> bool:  # noqa: ARG002 - as the protocol asks
        """See `Dispatcher`."""
        return self._active is not None

    @property
    def active(self) -> Consumer | None:
        """See `Dispatcher`."""
        return self._active


class Shared:
    """All in turn, as far as they are ready: those of the lowest priority number first, the next only if none there is."""

    __slots__ = ("_consumers", "_turns")

    def __init__(self) -> None:
        self._consumers: dict[int, list[Consumer]] = {}  # By priority, rising.
        self._turns: dict[int, int] = {}  # Of each priority, the place at which the next search begins.

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
            self._turns[priority] -= sum(1 for each in level[: self._turns[priority]] if each in gone)
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

    def serves(self, slot: int) -> bool:  # noqa: ARG002 - as the protocol asks
        """See `Dispatcher`."""
        return bool(self._consumers)

    @property
    def active(self) -> Consumer | None:
        """See `Dispatcher`."""
        return None


class KeySharing:
    """Key_Shared: all entries of a key go to one consumer. If that one is not ready, no other gets them."""

    __slots__ = ("_holders", "_is_sticky", "_ring", "_seats", "_stripes")

    def __init__(self, *, is_sticky: bool) -> None:
        """STICKY: the consumers say which slots they take; else (AUTO_SPLIT) the slots are spread over them."""
        self._is_sticky = is_sticky
        self._ring = Ring()
        self._stripes = Stripes()
        self._holders: dict[Holder, Consumer] = {}
        self._seats: dict[Consumer, Holder] = {}

    def add(self, consumer: Consumer) -> Refusal | list[ActiveChange]:
        """See `Dispatcher`. Two consumers may have the same name: the number tells them apart."""
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
        self._seats[consumer] = seat = (consumer.name, number)
        self._holders[seat] = consumer
        return []

    def remove(self, consumers: Collection[Consumer]) -> list[ActiveChange]:
        """See `Dispatcher`."""
        is_many = len(consumers) * _DEARER_SINGLY >= len(self._seats)
        gone = {self._seats.pop(consumer): consumer for consumer in consumers}
        for seat in gone:
            del self._holders[seat]
        if is_many:
            self._ring.remove_many(gone)
            self._stripes.remove_many(gone)
            return []
        for seat, consumer in gone.items():
            if self._is_sticky:
                self._stripes.remove(*seat, _ranges_of(consumer))
            else:
                self._ring.remove(*seat)
        return []

    def consumer_of(self, slot: int) -> Consumer | None:
        """The consumer that gets the entries of a slot, ready or not; None if nobody does."""
        holder = self._stripes.holder(slot) if self._is_sticky else self._ring.holder(slot)
        return None if holder is None else self._holders[holder]

    def choose(self, slot: int) -> Consumer | None:
        """See `Dispatcher`."""
        consumer = self.consumer_of(slot)
        return consumer if consumer is not None and consumer.permits > 0 and consumer.is_writable else None

    def serves(self, slot: int) -> bool:
        """See `Dispatcher`."""
        return self.consumer_of(slot) is not None

    @property
    def active(self) -> Consumer | None:
        """See `Dispatcher`."""
        return None


def _rank(consumer: Consumer) -> tuple[int, str]:
    """By what consumers of a Failover subscription are sorted."""
    return consumer.priority, consumer.name


def _ranges_of(consumer: Consumer) -> Sequence[tuple[int, int]]:
    """The ranges of slots that a STICKY consumer asked for."""
    return consumer.key_shared.ranges if consumer.key_shared is not None else ()
