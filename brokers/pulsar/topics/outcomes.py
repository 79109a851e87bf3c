"""Who publishes to a topic, and what the steps of a topic come to.

May live here: values that go between a topic and the service, without a step of their own.
"""

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
    """One producer, as its topic sees it; compared by identity. The service makes it, and may set nothing in it afterwards."""

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
    """A producer was let in, in the place of `former`, which is gone: the same client came again, and was quicker than the news.

    `forgotten` are the entries that went with it, as `Topic.remove_producers` tells them.
    """

    former: Producer
    forgotten: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """A consumer was let in; `changes` says to whom ACTIVE_CONSUMER_CHANGE must be sent, and with what."""

    changes: list[ActiveChange]


class Receipt(NamedTuple):
    """One receipt to be written; the sequence ids are those of the SEND, `entry_id` the number of the entry in its topic."""

    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    entry_id: int


class Outcome:
    """What a step comes to: all to be written in the order in which it stands here; `dropped` counts messages."""

    __slots__ = ("deliveries", "dropped", "receipts")

    def __init__(self) -> None:
        """Nothing, to begin with."""
        self.deliveries: list[Delivery] = []
        self.receipts: list[Receipt] = []
        self.dropped = 0
