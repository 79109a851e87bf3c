"""Define producers and the results that a topic returns to the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from equipoise.brokers.pulsar.topics.dispatch import ActiveChange
from equipoise.brokers.pulsar.topics.rates import Meter
from equipoise.brokers.pulsar.topics.subscription import Delivery
from equipoise.brokers.pulsar.wire.requests import AccessMode


@dataclass(slots=True, kw_only=True, eq=False)
class Producer:
    """One producer of a topic, compared by identity. The service creates it and does not change it afterwards."""

    name: str
    link: object
    producer_id: int
    published: Meter
    epoch: int = 0
    access_mode: AccessMode = AccessMode.SHARED
    properties: tuple[tuple[str, str], ...] = ()
    address: str = ""
    client_version: str = ""
    connected_since: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A producer was added in place of `former`: its client reconnected before the broker saw the old producer close.

    `forgotten` holds the ids of the entries removed with it, as `Topic.remove_producers` returns them.
    """

    former: Producer
    forgotten: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """A consumer was added. `changes` lists the consumers that need an ACTIVE_CONSUMER_CHANGE, and its value."""

    changes: list[ActiveChange]


class Receipt(NamedTuple):
    """One receipt to write. The sequence ids come from the SEND; `entry_id` is the number of the entry in its topic."""

    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    entry_id: int


class Outcome:
    """The result of a step, to be written in this order: deliveries, then receipts. `dropped` counts messages."""

    __slots__ = ("deliveries", "dropped", "receipts")

    def __init__(self) -> None:
        """Start empty."""
        self.deliveries: list[Delivery] = []
        self.receipts: list[Receipt] = []
        self.dropped = 0
