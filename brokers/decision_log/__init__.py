"""Choose the adapter of `brokers.balancing.decisions.DecisionLog` that keeps decisions beside the
channel.
"""

from __future__ import annotations

from equipoise.brokers.balancing.decisions import DecisionLog
from equipoise.brokers.decision_log.memory import MemoryDecisionLog
from equipoise.brokers.decision_log.sqlite import SqliteDecisionLog
from equipoise.channel.core.errors import invalid_log_url, missing_extra
from equipoise.channel.kafka.settings import address_of
from equipoise.channel.log.open_log import is_in_memory, kafka_settings, log_path


def open_decision_log(log_url: str) -> DecisionLog:
    """Return a new handle on the decision log of the cluster whose channel is at `log_url` (see
    `channel.log.open_log`).

    * `sqlite:PATH` uses a table in that file.
    * `kafka://SERVERS/TOPIC` uses the topic `TOPIC-decisions`.
    * `memory:NAME` uses the memory of the process.

    Nothing is created before the first decision. Raises `CallerError` for any other URL and without
    the extra `kafka`, and `InvalidKafkaSetting`.
    """
    path = log_path(log_url)
    if path is not None:
        return SqliteDecisionLog(path, name=log_url)
    if is_in_memory(log_url):
        return MemoryDecisionLog(log_url)
    if log_url.startswith("kafka:"):
        return _on_kafka(log_url)
    raise invalid_log_url(url=log_url, problem="there is no decision log beside a log of this kind")


def _on_kafka(log_url: str) -> DecisionLog:
    address = address_of(log_url)
    try:
        # Its client comes with an extra.
        from equipoise.brokers.decision_log.kafka import TOPIC_SUFFIX, KafkaDecisionLog  # noqa: PLC0415
        from equipoise.channel.kafka.client import Clients  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise missing_extra(what=f"the decision log of {log_url}", extra="kafka") from error
    return KafkaDecisionLog(
        Clients(servers=address.servers, settings=kafka_settings()),
        f"{address.topic}{TOPIC_SUFFIX}",
    )
