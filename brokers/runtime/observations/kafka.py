"""Observations on Kafka topics beside the channel's: one message for each, kept for a week.

May live here: `KafkaObservations`, and how its topics are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from equipoise.brokers.runtime.observations.observed import Kind, Observation, ObservationsUnavailable
from equipoise.channel.core.errors import InvalidKafkaSetting
from equipoise.channel.kafka.answers import KafkaFailed
from equipoise.channel.kafka.client import Clients
from equipoise.channel.kafka.kept_topic import KeptTopic

KEPT_MS: Final = 7 * 86_400_000
"""How long an audit that was away may still join what was served with the channel."""

# The time of a message is the one at which Kafka got it, as on the channel: broker's clocks may differ.
_SETTINGS: Final = {"cleanup.policy": "delete", "retention.ms": str(KEPT_MS), "message.timestamp.type": "LogAppendTime"}


class KafkaObservations:
    """A handle on the observations beside the log of the topic `log`, of each kind in the topic `LOG-KIND`. See `Observations`.

    Of loads nothing is to be written here: they are on the load bus, where load workers keep the topic of that name.
    """

    def __init__(self, clients: Clients, log: str) -> None:
        self._topic = f"{log}-{Kind.SERVING}"
        self._serving = KeptTopic(clients, self._topic, settings=_SETTINGS)

    def write(self, kind: Kind, observations: Sequence[Observation]) -> None:
        """See `Observations.write`. One whose writing failed may appear all the same."""
        assert kind is Kind.SERVING, "what brokers carry is on the load bus"
        by_broker: dict[str, list[bytes]] = {}
        for observation in observations:
            by_broker.setdefault(observation.broker, []).append(observation.document)
        try:
            for broker, documents in by_broker.items():
                self._serving.write(documents, key=broker.encode())
        except (KafkaFailed, InvalidKafkaSetting) as error:
            raise ObservationsUnavailable(place=f"in the topic {self._topic}", problem=str(error)) from error
