"""Choose the adapter of `shedder.load_reports.LoadBus` that exchanges load samples and summaries
between brokers.
"""

from __future__ import annotations

from pathlib import Path

from equipoise.brokers.load.bus.files import FileLoadBus
from equipoise.brokers.load.bus.memory import MemoryLoadBus
from equipoise.brokers.runtime.observations.stores import open_observations
from equipoise.channel.core.errors import invalid_log_url, missing_extra
from equipoise.channel.kafka.settings import address_of
from equipoise.channel.log.open_log import kafka_settings, log_path
from equipoise.shedder.load_reports import LoadBus


def open_load_bus(log_url: str, *, keep: bool = False) -> LoadBus:
    """Return a new handle on the load bus of the cluster whose log is at `log_url` (see
    `channel.log.open_log`).

    * `sqlite:PATH` uses the folder `PATH.loads`.
    * `kafka://SERVERS/TOPIC` uses the topic `TOPIC-loads`.
    * `memory:NAME` uses the memory of the process.

    With `keep`, an embedded log also stores each summary made here in `PATH.observations`; on Kafka
    the topic keeps them for an hour. Raises `CallerError` for any other URL and without the extra
    `kafka`, and `InvalidKafkaSetting`.
    """
    path = log_path(log_url)
    if path is not None:
        return FileLoadBus(
            Path(f"{path}.loads"), observations=open_observations(log_url) if keep else None
        )
    if log_url.startswith("memory:"):
        return MemoryLoadBus(log_url)
    if log_url.startswith("kafka:"):
        return _on_kafka(log_url)
    raise invalid_log_url(url=log_url, problem="there is no load bus beside a log of this kind")


def _on_kafka(log_url: str) -> LoadBus:
    address = address_of(log_url)
    try:
        # Its client comes with an extra.
        from equipoise.brokers.load.bus.kafka import KafkaLoadBus  # noqa: PLC0415
        from equipoise.channel.kafka.client import Clients  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise missing_extra(what=f"the load bus of {log_url}", extra="kafka") from error
    clients = Clients(servers=address.servers, settings=kafka_settings())
    return KafkaLoadBus(clients, address.topic, replication=address.replication)
