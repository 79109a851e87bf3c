"""Write JSON documents to a Kafka topic beside the channel's that keeps them for some days, such as
decisions.

Failures are `KafkaFailed` or `InvalidKafkaSetting`; the callers translate them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from equipoise.channel.kafka.answers import Trouble
from equipoise.channel.kafka.client import Clients, PartitionProducer
from equipoise.channel.kafka.topic import REPLICATION

ANSWER_MS_MAX: Final = 3_000
"""Documents come seconds apart and may be lost: Kafka has this long to take or return one."""


class KeptTopic:
    """A handle on one such topic, of one partition. One thread at a time."""

    def __init__(self, clients: Clients, topic: str, *, settings: Mapping[str, str]) -> None:
        """`settings` apply when the topic is created. An existing topic stays as it is."""
        self._clients = clients
        self._topic = topic
        self._settings = settings
        self._is_made = False
        self._producer: PartitionProducer | None = None

    def write(self, documents: Sequence[bytes], *, key: bytes) -> None:
        """Append messages in order. Messages may appear even if this fails."""
        if not self._is_made:
            self._make()
        if self._producer is None:
            self._producer = self._clients.producer(self._topic)
        sent = self._producer.send(documents, key=key, timeout_ms=ANSWER_MS_MAX)
        if sent.failure is not None:
            # AWAY passes without action. After any other failure, the next message checks the topic
            # again.
            if sent.failure.trouble is not Trouble.AWAY:
                self._producer.close()
                self._producer, self._is_made = None, False
            raise sent.failure

    def _make(self) -> None:
        with self._clients.administrator() as administrator:
            if administrator.describe(self._topic, timeout_ms=ANSWER_MS_MAX) is None:
                copies = min(REPLICATION, administrator.brokers(timeout_ms=ANSWER_MS_MAX))
                administrator.create(
                    self._topic,
                    replication=copies,
                    settings=self._settings,
                    timeout_ms=ANSWER_MS_MAX,
                )
        self._is_made = True
