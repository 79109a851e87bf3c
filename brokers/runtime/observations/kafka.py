"""Keep observations on Kafka topics beside the channel's, one message each, for a week."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from equipoise.brokers.runtime.observations.records import (
    Kind,
    Observation,
    ObservationsUnavailable,
)
from equipoise.channel.core.errors import InvalidKafkaSetting
from equipoise.channel.kafka.answers import KafkaFailed
from equipoise.channel.kafka.client import Clients
from equipoise.channel.kafka.kept_topic import KeptTopic

KEPT_MS: Final = 7 * 86_400_000
"""How late an audit may still read them."""

# Kafka sets the time of a message, as on the channel: brokers' clocks may differ.
_SETTINGS: Final = {
    "cleanup.policy": "delete",
    "retention.ms": str(KEPT_MS),
    "message.timestamp.type": "LogAppendTime",
}


class KafkaObservations:
    """A handle on the observations in the topic `LOG-KIND` beside the topic `log`. See
    `Observations`.

    Loads are not written here: they are on the load bus.
    """

    def __init__(self, clients: Clients, log: str) -> None:
        self._topic = f"{log}-{Kind.SERVING}"
        self._serving = KeptTopic(clients, self._topic, settings=_SETTINGS)

    def write(self, kind: Kind, observations: Sequence[Observation]) -> None:
        """See `Observations.write`. An observation whose write failed may still appear."""
        assert kind is Kind.SERVING, "what brokers carry is on the load bus"
        by_broker: dict[str, list[bytes]] = {}
        for observation in observations:
            by_broker.setdefault(observation.broker, []).append(observation.document)
        try:
            for broker, documents in by_broker.items():
                self._serving.write(documents, key=broker.encode())
        except (KafkaFailed, InvalidKafkaSetting) as error:
            raise ObservationsUnavailable(
                place=f"in the topic {self._topic}", problem=str(error)
            ) from error
