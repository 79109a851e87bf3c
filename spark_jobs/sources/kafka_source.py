"""Read a channel on Kafka with Spark: one connector reads the log's topic and its companion topics.

A topic created later is found by its name and read from its beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from equipoise.brokers.decision_log import DECISIONS
from equipoise.brokers.load.topics import LOADS
from equipoise.brokers.runtime.observations.writer import SERVING
from equipoise.channel.core.errors import LogUnavailable, missing_extra
from equipoise.channel.kafka.answers import KafkaFailed
from equipoise.channel.kafka.settings import HEADER_KEY, KafkaAddress, without_secrets
from equipoise.spark_jobs.sequence.arrivals import Positions, Source
from equipoise.spark_jobs.sources.kafka_options import connector_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_EARLIEST: Final = -2
_PARTITION: Final = 0
"""The partition whose positions are kept: every topic is created with one partition, because it is
read in order. Other partitions are read from the beginning by each generation of a checkpoint.
"""

# How long Spark retries while Kafka does not answer, before a batch fails: 600 * 1 s = 10 minutes,
# as for a missing file.
_OFFSET_RETRIES: Final = 600
_OFFSET_RETRY_MS: Final = 1_000
_POLL_MS: Final = 60_000
_ASK_MS: Final = 10_000

_TASK_RECORDS_MAX: Final = 50_000
"""Records per task. Otherwise one core would read all of a topic with one partition. Small batches
stay whole."""

LOADS_PER_TRIGGER: Final = 4_000
"""Load reports in a batch. Each becomes a row per bundle it names, twenty by default: 4,000 * 21 =
84,000 rows, all at once in the JVM, which has 1 GiB (`spark_jobs.streams.session.DRIVER_MEMORY`).
"""


def topics_of(address: KafkaAddress) -> dict[str, str]:
    """Return the topic of each source."""
    return {
        Source.CHANNEL.value: address.topic,
        **{topic.name: topic.beside(address.topic) for topic in (DECISIONS, SERVING, LOADS)},
    }


def kafka_frame(
    spark: SparkSession,
    address: KafkaAddress,
    *,
    url: str,
    settings: Mapping[str, str],
    sources: frozenset[Source],
    start: Positions,
    per_trigger: int,
) -> DataFrame:
    """Return the frame of `spark_jobs.sources.frames.channel_frame` for these sources of the log at
    `address`.

    Raises `CallerError` and `LogUnavailable`.
    """
    topics = {source: topic for source, topic in topics_of(address).items() if source in sources}
    options = {
        "kafka.bootstrap.servers": address.servers,
        # The fold detects lost entries as a gap. The connector must not end the query because of
        # them.
        "failOnDataLoss": "false",
        "fetchOffset.numRetries": str(_OFFSET_RETRIES),
        "fetchOffset.retryIntervalMs": str(_OFFSET_RETRY_MS),
        "kafkaConsumer.pollTimeoutMs": str(_POLL_MS),
        "maxRecordsPerPartition": str(_TASK_RECORDS_MAX),
        **connector_options(settings, read=lambda path: Path(path).read_text(encoding="utf-8")),
    }
    existing = _existing(address, topics, url=url, settings=settings)

    def reader_of(read: Mapping[str, str], bound: int) -> DataFrame:
        chosen = {
            "subscribePattern": pattern_of(read.values()),
            "startingOffsets": starting_offsets(read, start, existing),
        }
        return as_frame(
            spark.readStream.format("kafka")
            .options(**options, **chosen, maxOffsetsPerTrigger=str(bound))
            .load(),
            topics,
        )

    # The connector has one bound for all topics of a reader. Load reports need a lower one, so they
    # get their own reader.
    loads = {source: topic for source, topic in topics.items() if source == Source.LOADS}
    frame = reader_of(
        {source: topic for source, topic in topics.items() if source != Source.LOADS}, per_trigger
    )
    return frame.unionAll(reader_of(loads, min(per_trigger, LOADS_PER_TRIGGER))) if loads else frame


def pattern_of(topics: Iterable[str]) -> str:
    """Return a pattern that matches exactly these topics. The connector searches *within* names,
    and all names contain the log's.
    """
    return f"^(?:{'|'.join(re.escape(topic) for topic in topics)})$"


def as_frame(rows: DataFrame, topics: Mapping[str, str]) -> DataFrame:
    """Return the connector's rows with the columns of `FRAME_DDL`, without the headers of the log's
    topic, which are no records.
    """
    column = functions.col
    is_header = (column("topic") == topics[Source.CHANNEL]) & column("key").eqNullSafe(
        functions.lit(HEADER_KEY)
    )
    at_ms = functions.coalesce(functions.unix_millis("timestamp"), functions.lit(0))
    return rows.where(~is_header).select(
        _source_of(topics).alias("source"), "offset", at_ms.alias("at_ms"), "value"
    )


def _source_of(topics: Mapping[str, str]) -> Column:
    named = functions.lit(None).cast("string")
    for source, topic in topics.items():
        named = functions.when(functions.col("topic") == topic, functions.lit(source)).otherwise(
            named
        )
    return named


def starting_offsets(
    topics: Mapping[str, str], start: Positions, existing: Mapping[str, int]
) -> str:
    """Return the positions to begin at for the connector, with all partitions of each topic in
    `existing` (topic: partitions).
    """
    return json.dumps(
        {
            topic: {
                str(each): start.get(source, _EARLIEST) if each == _PARTITION else _EARLIEST
                for each in range(existing[topic])
            }
            for source, topic in sorted(topics.items())
            if topic in existing
        }
    )


def _existing(
    address: KafkaAddress, topics: Mapping[str, str], *, url: str, settings: Mapping[str, str]
) -> dict[str, int]:
    """Return the partition counts of the topics that exist. The connector requires positions for
    exactly these.
    """
    try:
        # Its client comes with an extra.
        from equipoise.channel.kafka.client import Clients  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise missing_extra(what=f"to read {url} from given positions", extra="kafka") from error
    try:
        with Clients(servers=address.servers, settings=settings).administrator() as administrator:
            found = {
                topic: administrator.describe(topic, timeout_ms=_ASK_MS)
                for topic in topics.values()
            }
            return {topic: facts.partitions for topic, facts in found.items() if facts is not None}
    except KafkaFailed as error:
        raise LogUnavailable(
            log=url, problem=without_secrets(error.problem, settings), in_doubt=False
        ) from error
