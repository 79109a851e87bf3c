"""One topic of a Kafka in memory, with a node that was cut off from the others and still answers.
It stands in for the client library.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import pytest

from equipoise.channel.kafka import log as kafka_log
from equipoise.channel.kafka.answers import (
    Bounds,
    Complaints,
    KafkaFailed,
    Sent,
    TopicFacts,
    Trouble,
)
from equipoise.channel.kafka.client import Message, Taken
from equipoise.channel.kafka.log import KafkaLog
from equipoise.channel.kafka.settings import HEADER_KEY, address_of
from equipoise.channel.kafka.topic import needed_of_log

URL: Final = "kafka://nowhere:1/topic"
_LOOK_S: Final = 0.001

SILENCE: Final = KafkaFailed(trouble=Trouble.AWAY, problem="no acknowledgement in time")


@dataclass(slots=True)
class FakeKafka:
    """The messages (key and value) that the leader has, from `low` on, and what a node that was cut
    off takes for the end.
    """

    messages: list[tuple[bytes | None, bytes]] = field(default_factory=list)
    old_end: int | None = None
    """The end that is reported: that of a node which is cut off. None: the leader is asked."""
    low: int = 0
    refusal: KafkaFailed | None = None
    """Why appends get no acknowledgement."""
    identity: str = "id"
    has_lost: bool = False

    def lose(self, count: int) -> None:
        """Lose messages at the end, but never the topic's header."""
        del self.messages[max(1, len(self.messages) - count) :]
        self.has_lost = True

    @property
    def headers(self) -> int:
        """How many messages are no entries."""
        return sum(key == HEADER_KEY for key, _ in self.messages)

    def opened(self, patch: pytest.MonkeyPatch, *, create: bool = True) -> KafkaLog:
        """A handle on the log."""
        patch.setattr(kafka_log, "Clients", lambda **_: _FakeClients(self))
        return KafkaLog(address_of(URL), name=URL, settings={}, create=create)


class _FakeClients:
    """In place of `Clients`."""

    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self.complaints = Complaints()

    def administrator(self) -> _FakeAdministrator:
        return _FakeAdministrator(self._kafka)

    def consumer(self, topic: str, *, committed: bool = False) -> _FakeConsumer:
        return _FakeConsumer(self._kafka)

    def producer(self, topic: str) -> _FakeProducer:
        return _FakeProducer(self._kafka)


class _FakeAdministrator:
    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is held."""

    def describe(self, topic: str, *, timeout_ms: int) -> TopicFacts:
        made = {each.name: each.made for each in needed_of_log(1)}
        return TopicFacts(id=self._kafka.identity, partitions=1, replication=1, settings=made)

    def identity(self, topic: str, *, timeout_ms: int) -> str:
        return self._kafka.identity

    def delete_below(self, topic: str, below: int, *, timeout_ms: int) -> None:
        self._kafka.low = below


class _FakeConsumer:
    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka
        self._position = 0

    def bounds(self, *, timeout_ms: int) -> Bounds:
        end = len(self._kafka.messages) - 1 if self._kafka.old_end is None else self._kafka.old_end
        return Bounds(low=self._kafka.low, high=end + 1)

    def start_at(self, offset: int) -> None:
        self._position = offset

    def take(self, limit: int, *, timeout_ms: int) -> Taken | None:
        first, found = self._position, self._kafka.messages[self._position : self._position + limit]
        if not found:
            time.sleep(_LOOK_S)
            return None
        self._position += len(found)
        messages = [
            (offset, Message(key=key, value=value))
            for offset, (key, value) in enumerate(found, start=first)
        ]
        return Taken(messages=messages, reached=self._position)

    def close(self) -> None:
        """Nothing is held."""


class _FakeProducer:
    def __init__(self, kafka: FakeKafka) -> None:
        self._kafka = kafka

    def send(self, values: Sequence[bytes], *, timeout_ms: int, key: bytes | None = None) -> Sent:
        if self._kafka.refusal is not None:
            return Sent(failure=self._kafka.refusal, is_in_doubt=True)
        first = len(self._kafka.messages)
        self._kafka.messages += [(key, value) for value in values]
        return Sent(offsets=range(first, first + len(values)))

    def drain(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing is held."""
