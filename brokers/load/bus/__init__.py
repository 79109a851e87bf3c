"""The load plane: adapters of `shedder.load_reports.LoadBus`, which carry samples and summaries of load between brokers.

Here live the adapters and the choice between them. What a report says, and what is made of it, is pure and lives elsewhere.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.brokers.load.bus.files import FileLoadBus
from equipoise.brokers.load.bus.memory import MemoryLoadBus
from equipoise.brokers.runtime.observations import open_observations
from equipoise.channel.core.errors import InvalidLogUrl, MissingExtra
from equipoise.channel.kafka.settings import address_of
from equipoise.channel.log.open_log import kafka_settings, log_path
from equipoise.shedder.load_reports import LoadBus


def open_load_bus(log_url: str, *, keep: bool = False) -> LoadBus:
    """A new handle on the load bus of the cluster whose log is at `log_url`, a URL as `channel.log.open_log` takes it.

    The brokers of `sqlite:PATH` use the folder `PATH.loads`, those of `kafka://SERVERS/TOPIC` the topic `TOPIC-loads`, those of
    `memory:NAME` the memory of their process. With `keep`, each summary that is made of a sample here is also put down for those
    who look back, on an embedded log in `PATH.observations`; on Kafka the topic keeps them for an hour. Raises `InvalidLogUrl` for
    any other, and for a topic `MissingExtra` and `InvalidKafkaSetting`.
    """
    path = log_path(log_url)
    if path is not None:
        return FileLoadBus(Path(f"{path}.loads"), observations=open_observations(log_url) if keep else None)
    if log_url.startswith("memory:"):
        return MemoryLoadBus(log_url)
    if log_url.startswith("kafka:"):
        return _on_kafka(log_url)
    raise InvalidLogUrl(url=log_url, problem="there is no load bus beside a log of this kind")


def _on_kafka(log_url: str) -> LoadBus:
    address = address_of(log_url)
    try:
        from equipoise.brokers.load.bus.kafka import KafkaLoadBus  # noqa: PLC0415 - its client comes with an extra
        from equipoise.channel.kafka.client import Clients  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise MissingExtra(what=f"the load bus of {log_url}", extra="kafka") from error
    clients = Clients(servers=address.servers, settings=kafka_settings())
    return KafkaLoadBus(clients, address.topic, replication=address.replication)
