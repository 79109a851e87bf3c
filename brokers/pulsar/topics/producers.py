"""Keep the producers of one topic, and apply their access modes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from equipoise.brokers.pulsar.topics.clients import Producer, Refusal
from equipoise.brokers.pulsar.wire.errors import ServerError
from equipoise.brokers.pulsar.wire.requests import AccessMode


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
                and former.producer_id == producer.producer_id
                and former.epoch < producer.epoch
            ):
                self._by_name[producer.name] = producer
                return former
            message = (
                f"Producer with name {producer.name!r} is already connected to topic {self._topic}"
            )
            return Refusal(error=ServerError.PRODUCER_BUSY, message=message, holder=former)
        refusal = self._access_refused(producer)
        if refusal is not None:
            return refusal
        if len(self._by_name) >= self.count_max:
            return Refusal(
                error=ServerError.PRODUCER_BUSY,
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
                error=ServerError.NOT_ALLOWED,
                message="This access mode is not supported; use Exclusive or Shared",
            )
        owner = next(iter(self._by_name.values()), None)
        # An exclusive producer is always alone.
        if owner is not None and owner.access_mode is AccessMode.EXCLUSIVE:
            error = (
                ServerError.PRODUCER_BUSY
                if producer.access_mode is AccessMode.SHARED
                else ServerError.PRODUCER_FENCED
            )
            return Refusal(
                error=error,
                message=f"Topic has an existing exclusive producer: {owner.name}",
                holder=owner,
            )
        if producer.access_mode is AccessMode.EXCLUSIVE and owner is not None:
            return Refusal(
                error=ServerError.PRODUCER_FENCED, message="Topic has existing shared producers"
            )
        return None
