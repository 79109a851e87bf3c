"""Publish findings on a Kafka topic next to the channel's."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from equipoise.channel.core.errors import InvalidKafkaSetting
from equipoise.channel.kafka.answers import KafkaFailed, Trouble
from equipoise.channel.kafka.client import Clients
from equipoise.channel.kafka.kept_topic import KeptTopic
from equipoise.spark_jobs.audit.findings_out import Numbered, not_published

_logger: Final = logging.getLogger(__name__)


class FindingsTopic:
    """The topic of findings, created with the first one. Messages are keyed by subject. See
    `FindingsOut`.

    A reader of the channel may have no right to write this topic. If Kafka denies it, one warning
    is logged, and findings go only to the screen and the archive.
    """

    def __init__(self, clients: Clients, topic: str, *, kept_ms: int) -> None:
        self.place = f"to the topic {topic}"
        settings = {
            "cleanup.policy": "delete",
            "retention.ms": str(kept_ms),
            "message.timestamp.type": "LogAppendTime",
        }
        self._topic = KeptTopic(clients, topic, settings=settings)
        self._is_denied = False

    def put(self, findings: Sequence[Numbered]) -> None:
        """See `FindingsOut.put`."""
        if self._is_denied:
            return
        try:
            for subject, group in groupby(findings, key=lambda each: each.finding.subject):
                self._topic.write([each.finding.to_bytes() for each in group], key=subject.encode())
        except KafkaFailed as error:
            if error.trouble is not Trouble.DENIED:
                raise not_published(self.place, error) from error
            self._is_denied = True
            _logger.warning(
                "findings are not written %s, because Kafka denies it: %s; they are in the archive",
                self.place,
                error,
            )
        except InvalidKafkaSetting as error:
            raise not_published(self.place, error) from error
