"""Keep decisions on a Kafka topic beside the channel's: one message per decision, for a week."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.decision_log.documents import DOCUMENT_BYTES_MAX, decode, encode
from equipoise.brokers.errors import decision_log_unavailable
from equipoise.channel.core.errors import InvalidKafkaSetting, PeerError
from equipoise.channel.kafka.answers import KafkaFailed, Trouble
from equipoise.channel.kafka.client import Clients, PartitionConsumer
from equipoise.channel.kafka.kept_topic import ANSWER_MS_MAX, KeptTopic

TOPIC_SUFFIX: Final = "-decisions"

KEPT_MS: Final = 7 * 86_400_000
"""How long decisions are kept: over a weekend and the following days."""

_TAKEN_MAX: Final = 1_000

_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": str(KEPT_MS),
    "max.message.bytes": str(2 * DOCUMENT_BYTES_MAX),
}


class KafkaDecisionLog:
    """A handle on the decisions in one topic, which the first decision creates. See
    `DecisionLog`.
    """

    def __init__(self, clients: Clients, topic: str) -> None:
        self._clients = clients
        self._topic = topic
        self._kept = KeptTopic(clients, topic, settings=_SETTINGS)

    def write(self, decision: Decision) -> None:
        """See `DecisionLog.write`. A decision may appear even if this fails."""
        try:
            self._kept.write([encode(decision)], key=decision.broker.encode())
        except KafkaFailed as failed:
            raise self._unavailable(failed.problem) from failed
        except InvalidKafkaSetting as error:
            raise self._unavailable(str(error)) from error

    def newest(self, at_most: int) -> Sequence[Decision]:
        """See `DecisionLog.newest`."""
        try:
            with closing(self._clients.consumer(self._topic)) as consumer:
                found = [decode(document) for document in _last(consumer, at_most)]
        except KafkaFailed as failed:
            if failed.trouble is Trouble.NO_TOPIC:  # No decision has been written yet.
                return []
            raise self._unavailable(failed.problem) from failed
        except InvalidKafkaSetting as error:
            raise self._unavailable(str(error)) from error
        return [decision for decision in found if decision is not None]

    def _unavailable(self, problem: str) -> PeerError:
        return decision_log_unavailable(log=f"on the topic {self._topic}", problem=problem)


def _last(consumer: PartitionConsumer, at_most: int) -> Iterator[bytes]:
    """Yield the last messages up to the topic's current end. Raises `KafkaFailed`, also if they do
    not come in time.
    """
    bounds = consumer.bounds(timeout_ms=ANSWER_MS_MAX)
    end = bounds.high
    position = max(bounds.low, end - at_most)
    consumer.start_at(position)
    give_up_s = time.monotonic() + ANSWER_MS_MAX / 1_000
    while position < end:
        remaining_s = give_up_s - time.monotonic()
        if remaining_s <= 0:
            raise KafkaFailed(
                trouble=Trouble.AWAY,
                problem=f"{end - position} of the last decisions did not come in time",
            )
        for message in consumer.take(_TAKEN_MAX, timeout_ms=int(remaining_s * 1_000)):
            error, offset = message.error(), message.offset()
            if error is not None and (failed := consumer.failed(error)) is not None:
                raise failed
            if offset is not None and error is None and position <= offset < end:
                position = offset + 1
                yield message.value() or b""
            elif offset is not None:  # The end, or a message appended after the request.
                position = max(position, offset)
