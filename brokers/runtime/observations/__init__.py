"""Where observations are kept: adapters of `brokers.runtime.observations.observed.Observations`, which keep them beside the channel.

Here live the adapters and the choice between them. What an observation says is pure and lives elsewhere.
"""

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
    """Whether there is a place for observations beside this log: not in memory, which nobody else could read."""
    return not is_in_memory(log_url)


def open_observations(log_url: str) -> Observations:
    """A new handle on the observations of the cluster whose channel is at `log_url`, a URL as `channel.log.open_log` takes it.

    The brokers of `sqlite:PATH` use the file `PATH.observations`, those of `kafka://SERVERS/TOPIC` the topic `TOPIC-serving`
    (what they carry is on the load bus). Nothing is made before the first is written. Raises `InvalidLogUrl` for any other, and
    for a topic `MissingExtra` and `InvalidKafkaSetting`.
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
