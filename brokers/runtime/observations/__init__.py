"""Choose where observations are kept beside the channel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from equipoise.brokers.runtime.observations.observed import Observations
from equipoise.brokers.runtime.observations.sqlite import SqliteObservations
from equipoise.channel.core.errors import InvalidLogUrl, MissingExtra
from equipoise.channel.kafka.settings import address_of
from equipoise.channel.log.open_log import is_in_memory, kafka_settings, log_path

FILE_SUFFIX: Final = ".observations"


def are_kept(log_url: str) -> bool:
    """Return whether observations can be kept: not beside a log in memory, which others cannot read."""
    return not is_in_memory(log_url)


def open_observations(log_url: str) -> Observations:
    """Return a new handle on the observations beside the channel at `log_url`.

    * `sqlite:PATH`: the file `PATH.observations`.
    * `kafka://SERVERS/TOPIC`: the topic `TOPIC-serving`. Loads are on the load bus.

    The first write creates them. Raise `InvalidLogUrl` for any other URL; for a topic also `MissingExtra` and `InvalidKafkaSetting`.
    """
    path = log_path(log_url)
    if path is not None:
        return SqliteObservations(Path(f"{path}{FILE_SUFFIX}"))
    if log_url.startswith("kafka:"):
        return _on_kafka(log_url)
    raise InvalidLogUrl(url=log_url, problem="no observations are kept beside a log of this kind")


def _on_kafka(log_url: str) -> Observations:
    address = address_of(log_url)
    try:
        from equipoise.brokers.runtime.observations.kafka import KafkaObservations  # noqa: PLC0415 - its client comes with an extra
        from equipoise.channel.kafka.client import Clients  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise MissingExtra(what=f"the observations beside {log_url}", extra="kafka") from error
    return KafkaObservations(Clients(servers=address.servers, settings=kafka_settings()), address.topic)
