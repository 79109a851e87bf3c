"""A topic of Kafka beside the channel's to which JSON documents are added, kept for some days: decisions, observations.

May live here: the making of such a topic with its first message, and the writing to it. Each failure is `KafkaFailed` or
`InvalidKafkaSetting`; what they mean is said above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from equipoise.channel.kafka.answers import Trouble
from equipoise.channel.kafka.client import Clients, PartitionProducer
from equipoise.channel.kafka.topic import REPLICATION

ANSWER_MS_MAX: Final = 3_000
"""What is kept so comes seconds apart: what Kafka does not take or give by then is lost, as it may be."""


class KeptTopic:
    """A handle on one such topic, of one partition. One thread at a time."""

    def __init__(self, clients: Clients, topic: str, *, settings: Mapping[str, str]) -> None:
        """`settings` are those with which it is made; one that is there stays as it is."""
        self._clients = clients
        self._topic = topic
        self._settings = settings
        self._is_made = False
        self._producer: PartitionProducer | None = None

    def write(self, documents: Sequence[bytes], *, key: bytes) -> None:
        """Add messages, in their order. Those whose writing failed may appear all the same."""
        if not self._is_made:
            self._make()
        if self._producer is None:
            self._producer = self._clients.producer(self._topic)
        sent = self._producer.send(documents, key=key, timeout_ms=ANSWER_MS_MAX)
        if sent.failure is not None:
            if sent.failure.trouble is not Trouble.AWAY:  # It passes by itself; what else it was, the next message looks at anew.
                self._producer.close()
                self._producer, self._is_made = None, False
            raise sent.failure

    def _make(self) -> None:
        with self._clients.administrator() as administrator:
            if administrator.describe(self._topic, timeout_ms=ANSWER_MS_MAX) is None:
                copies = min(REPLICATION, administrator.brokers(timeout_ms=ANSWER_MS_MAX))
                administrator.create(self._topic, replication=copies, settings=self._settings, timeout_ms=ANSWER_MS_MAX)
        self._is_made = True
