"""Implement `SideLog` on Kafka topics beside that of the log, and create such topics."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final, TypeVar

from equipoise.channel.core.errors import CallerError
from equipoise.channel.core.side_log import Document, Kept, SideLogUnavailable, SideTopic
from equipoise.channel.kafka.answers import Bounds, KafkaFailed, TopicFacts, Trouble
from equipoise.channel.kafka.client import (
    Administrator,
    Clients,
    PartitionConsumer,
    PartitionProducer,
    Taken,
)
from equipoise.channel.kafka.settings import KafkaAddress
from equipoise.channel.kafka.topic import REPLICATION, described_when_made
from equipoise.channel.system.clocks import Deadline

logger = logging.getLogger(__name__)

ANSWER_MS_MAX: Final = 3_000
"""Documents come seconds apart and may be lost: Kafka has this long to take or return one."""

# Kafka neither deletes nor compacts the segment that is being written, so segments are a fraction
# of the retention.
_SEGMENTS: Final = 4

# A key of at most 512 characters, and Kafka's framing.
_FRAMING_BYTES: Final = 4_096

_Answer = TypeVar("_Answer")


class KafkaSideLog:
    """A handle on one topic beside that of the log at `address`. See `SideLog`.

    The time of a document is Kafka's: brokers' clocks may differ. Only a topic of one partition can
    be read.
    """

    def __init__(self, clients: Clients, address: KafkaAddress, topic: SideTopic) -> None:
        self._clients = clients
        self._name = topic.beside(address.topic)
        self.place = f"in the topic {self._name}"
        self._topic = topic
        self._replication = address.replication
        self._producer: PartitionProducer | None = None
        self._consumer: PartitionConsumer | None = None
        self._position = -1  # Where `_consumer` reads on.

    def append(self, documents: Sequence[Document]) -> None:
        """See `SideLog.append`."""
        try:
            for key, of_key in groupby(documents, key=lambda each: each.key):
                self._send([each.value for each in of_key], key=key.encode())
        except (KafkaFailed, CallerError) as error:
            raise self._unavailable(error) from error

    def _send(self, values: Sequence[bytes | None], *, key: bytes) -> None:
        if self._producer is None:
            with self._clients.administrator() as administrator:
                _made(
                    administrator,
                    self._name,
                    self._topic,
                    replication=self._replication,
                    deadline=Deadline.after(timeout_ms=ANSWER_MS_MAX),
                )
            self._producer = self._clients.producer(self._name)
        sent = self._producer.send(values, key=key, timeout_ms=ANSWER_MS_MAX)
        if sent.failure is not None:
            # AWAY passes without action. After any other failure, the next document checks the
            # topic again.
            if sent.failure.trouble is not Trouble.AWAY:
                self._producer.close()
                self._producer = None
            raise sent.failure

    def read(self, position: int, *, limit: int) -> Sequence[Kept]:
        """See `SideLog.read`."""
        return self._unless_missing(partial(self._read, position, limit), ())

    def _read(self, position: int, limit: int, consumer: PartitionConsumer) -> Sequence[Kept]:
        bounds = consumer.bounds(timeout_ms=ANSWER_MS_MAX)
        if not bounds.low <= position <= bounds.high:
            position = bounds.low
        if position != self._position:
            consumer.start_at(position)
        give_up_s = time.monotonic() + ANSWER_MS_MAX / 1_000
        found: list[Kept] = []
        while position < bounds.high and not found:
            remaining_ms = int((give_up_s - time.monotonic()) * 1_000)
            if remaining_ms <= 0:
                problem = f"{bounds.high - position} of its documents did not come in time"
                raise KafkaFailed(trouble=Trouble.AWAY, problem=problem)
            taken = consumer.take(limit, timeout_ms=remaining_ms) or Taken()
            if taken.failure is not None:
                raise taken.failure
            for offset, message in taken.messages:
                key = (message.key() or b"").decode(errors="replace")
                found.append(Kept(offset, message.timestamp()[1], key, message.value()))
            position = max(position, taken.reached)
        self._position = position
        return found

    def bounds(self) -> tuple[int, int]:
        """See `SideLog.bounds`."""
        found = self._unless_missing(
            lambda consumer: consumer.bounds(timeout_ms=ANSWER_MS_MAX), Bounds(low=0, high=0)
        )
        return found.low, found.high

    def position_at(self, time_ms: int) -> int:
        """See `SideLog.position_at`."""
        found = self._unless_missing(
            lambda consumer: consumer.offset_at(time_ms, timeout_ms=ANSWER_MS_MAX), None
        )
        return self.bounds()[1] if found is None else found

    def close(self) -> None:
        """See `SideLog.close`."""
        self._close_consumer()
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    def _unless_missing(
        self, ask: Callable[[PartitionConsumer], _Answer], default: _Answer
    ) -> _Answer:
        """Return what `ask` returns, or `default` if there is no topic yet."""
        try:
            if self._consumer is None:
                self._consumer = self._clients.consumer(self._name)
            return ask(self._consumer)
        except (KafkaFailed, CallerError) as error:
            self._close_consumer()
            if isinstance(error, KafkaFailed) and error.trouble is Trouble.NO_TOPIC:
                return default
            raise self._unavailable(error) from error

    def _close_consumer(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._position = None, -1

    def _unavailable(self, error: Exception) -> SideLogUnavailable:
        return SideLogUnavailable(
            self._topic,
            place=self.place,
            problem=error,
            is_denied=isinstance(error, KafkaFailed) and error.trouble is Trouble.DENIED,
        )


def settings_of(topic: SideTopic) -> Mapping[str, str]:
    """Return the settings with which a topic is created."""
    return {
        "cleanup.policy": topic.cleanup,
        "retention.ms": str(topic.kept_ms),
        "segment.ms": str(topic.kept_ms // _SEGMENTS),
        "max.message.bytes": str(topic.document_bytes_max + _FRAMING_BYTES),
        "message.timestamp.type": "LogAppendTime",
    }


def _made(
    administrator: Administrator,
    name: str,
    topic: SideTopic,
    *,
    replication: int | None,
    deadline: Deadline,
) -> None:
    """Create the topic `name` if it is missing, with `replication` copies if given. An existing one
    stays as it is, and what differs is logged. Raises `KafkaFailed`.
    """
    facts = administrator.describe(name, timeout_ms=deadline.remaining_ms())
    if facts is None:
        administrator.create(
            name,
            replication=replication
            or min(REPLICATION, administrator.brokers(timeout_ms=deadline.remaining_ms())),
            settings=settings_of(topic),
            timeout_ms=deadline.remaining_ms(),
        )
        facts = described_when_made(administrator, name, deadline)
    for difference in differences(topic, facts):
        logger.warning(
            "topic not as it would be made", extra={"topic": name, "difference": difference}
        )


def differences(topic: SideTopic, facts: TopicFacts) -> Sequence[str]:
    """Return how a topic differs from a newly created one, for people. The differences are
    harmless.
    """
    different = [
        f"{name} is {facts.settings.get(name, 'unknown')}, not {wanted}"
        for name, wanted in settings_of(topic).items()
        if facts.settings.get(name) != wanted
    ]
    if facts.partitions != 1:
        different.insert(0, f"it has {facts.partitions} partitions, not 1")
    return different
