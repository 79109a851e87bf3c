"""Define the producers and consumers of topics, what topics need of their connections, and the
meters of what they send and get.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from equipoise.brokers.pulsar.wire.errors import ServerError
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

    def redirect_producer(self, producer: Producer, url: str | None) -> None:
        """Redirect a producer to `url`, or make it look its topic up again if that is None."""
        ...

    def redirect_consumer(self, consumer: Consumer, url: str | None) -> None:
        """Redirect a consumer; see `redirect_producer`."""
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
    producer_id: int
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
