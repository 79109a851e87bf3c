"""Define the producers and consumers of topics, what topics need of their connections, and the
meters of what they send and get.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from equipoise.brokers.pulsar.wire.pulsar_api_pb2 import ServerError
from equipoise.brokers.pulsar.wire.requests import AccessMode, KeyShared

_MILLISECONDS_PER_SECOND: Final = 1_000


class Meter:
    """Total entries, messages and bytes, and the rates per second of messages and bytes over the
    last closed window.

    An entry is what a producer sends at once: one message, or a batch. Only the meters of a topic
    count entries; nothing else needs them.

    A window lasts from one `roll` to the next. The rates are 0 until the first `roll`, as in
    Pulsar. Callers add to the counts in place (`meter.messages += n`), because a call per message
    costs more than the addition.
    """

    __slots__ = (
        "_bytes_before",
        "_messages_before",
        "_rolled_ms",
        "byte_rate",
        "bytes",
        "entries",
        "message_rate",
        "messages",
    )

    def __init__(self, *, now_ms: int) -> None:
        """Start the first window at `now_ms`."""
        self.entries = 0
        self.messages = 0
        self.bytes = 0
        self.message_rate = 0.0
        self.byte_rate = 0.0
        self._messages_before = 0
        self._bytes_before = 0
        self._rolled_ms = now_ms

    def roll(self, now_ms: int) -> None:
        """Close the window and set the rates to those of the time since the last roll. Keep the
        rates if no time has passed.
        """
        elapsed_ms = now_ms - self._rolled_ms
        if elapsed_ms <= 0:
            return
        self.message_rate = (
            (self.messages - self._messages_before) * _MILLISECONDS_PER_SECOND / elapsed_ms
        )
        self.byte_rate = (self.bytes - self._bytes_before) * _MILLISECONDS_PER_SECOND / elapsed_ms
        self._messages_before = self.messages
        self._bytes_before = self.bytes
        self._rolled_ms = now_ms


class Link(Protocol):
    """The connection of a producer or consumer, as topics and their service see it."""

    def deliver(self, consumer: Consumer, entry_id: int, partition: int, block: bytes) -> bool:
        """Write a message to a consumer. Return False if too much already waits for its client."""
        ...

    def confirm(self, producer: Producer, receipts: Iterable[Receipt]) -> None:
        """Write receipts to a producer."""
        ...

    def activate(self, consumer: Consumer, *, is_active: bool) -> None:
        """Send a consumer of a Failover subscription whether it is the active one."""
        ...

    def redirect(self, client: Producer | Consumer, url: str | None) -> None:
        """Redirect a producer or consumer to `url`, or make it look its topic up again if that is
        None.
        """
        ...

    async def settled(self) -> None:
        """Wait until the client has received its messages and its program has had time to read
        them.
        """
        ...

    async def is_alive(self) -> bool:
        """Return whether the client answers in time."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Producer:
    """One producer of a topic, compared by identity. The service creates it and does not change it
    afterwards.
    """

    name: str
    link: Link
    id: int
    published: Meter
    epoch: int = 0
    access_mode: AccessMode = AccessMode.SHARED
    properties: tuple[tuple[str, str], ...] = ()
    address: str = ""
    client_version: str = ""
    connected_since: str = ""


@dataclass(slots=True, kw_only=True, eq=False)
class Consumer:
    """One consumer of a topic, compared by identity. The service creates it and does not change it
    afterwards.

    * `permits`: messages granted and not yet delivered; a batch may take them below 0.
    * `connected_since`: already in Pulsar's format, because pure code has no calendar.
    * `is_name_users`: the client chose the name, and uses it again after a move.
    """

    name: str
    link: Link
    id: int
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


ActiveChange = tuple[Consumer, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a producer or consumer is refused. If `holder` is set and dead, remove it and try
    again.
    """

    error: ServerError
    message: str
    holder: Producer | Consumer | None = None


class Receipt(NamedTuple):
    """One receipt to write. The sequence ids come from the SEND; `entry_id` is the number of the
    entry in its topic.
    """

    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    entry_id: int


class Producers:
    """The producers of one topic, by name."""

    __slots__ = ("_by_name", "_topic", "count_max")

    def __init__(self, topic: str, *, count_max: int) -> None:
        """Start without producers. `topic` is the full name of the topic, used in refusals."""
        self._topic = topic
        self.count_max = count_max
        self._by_name: dict[str, Producer] = {}

    @property
    def by_name(self) -> Mapping[str, Producer]:
        """The current producers by name."""
        return MappingProxyType(self._by_name)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def add(self, producer: Producer) -> Refusal | Producer | None:
        """Add a producer. Return a `Refusal`, or the former producer if it replaces one.

        A producer replaces another one of the same connection, name and id with a lower epoch: the
        client reconnected before the broker noticed the end of the former one.
        """
        former = self._by_name.get(producer.name)
        if former is not None:
            if (
                former.link is producer.link
                and former.id == producer.id
                and former.epoch < producer.epoch
            ):
                self._by_name[producer.name] = producer
                return former
            message = (
                f"Producer with name {producer.name!r} is already connected to topic {self._topic}"
            )
            return Refusal(error=ServerError.ProducerBusy, message=message, holder=former)
        refusal = self._access_refused(producer)
        if refusal is not None:
            return refusal
        if len(self._by_name) >= self.count_max:
            return Refusal(
                error=ServerError.ProducerBusy,
                message=f"Topic {self._topic} reached max producers limit",
            )
        self._by_name[producer.name] = producer
        return None

    def remove(self, producers: Collection[Producer]) -> Collection[Producer]:
        """Remove producers. Return those that were present."""
        gone = dict.fromkeys(
            producer for producer in producers if self._by_name.get(producer.name) is producer
        )
        for producer in gone:
            del self._by_name[producer.name]
        return gone.keys()

    def _access_refused(self, producer: Producer) -> Refusal | None:
        """Return why a producer cannot have its access mode beside the current ones, or None if it
        can.
        """
        if producer.access_mode not in {AccessMode.SHARED, AccessMode.EXCLUSIVE}:
            return Refusal(
                error=ServerError.NotAllowedError,
                message="This access mode is not supported; use Exclusive or Shared",
            )
        owner = next(iter(self._by_name.values()), None)
        # An exclusive producer is always alone.
        if owner is not None and owner.access_mode is AccessMode.EXCLUSIVE:
            error = (
                ServerError.ProducerBusy
                if producer.access_mode is AccessMode.SHARED
                else ServerError.ProducerFenced
            )
            return Refusal(
                error=error,
                message=f"Topic has an existing exclusive producer: {owner.name}",
                holder=owner,
            )
        if producer.access_mode is AccessMode.EXCLUSIVE and owner is not None:
            return Refusal(
                error=ServerError.ProducerFenced, message="Topic has existing shared producers"
            )
        return None
