"""Return a channel as a Spark frame, on Kafka or SQLite. All jobs read logs through this module."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from equipoise.channel.core.errors import invalid_log_url
from equipoise.channel.kafka.settings import address_of, checked
from equipoise.channel.log.open_log import is_in_memory, kafka_settings, log_path
from equipoise.spark_jobs.sequence.arrivals import ALL_SOURCES, Source
from equipoise.spark_jobs.streams.options import PER_TRIGGER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def is_on_kafka(url: str) -> bool:
    """Return whether the log at `url` is a Kafka topic, which needs Spark's Kafka connector."""
    return url.startswith("kafka:")


def channel_frame(
    spark: SparkSession,
    url: str,
    *,
    streaming: bool,
    sources: frozenset[Source] = ALL_SOURCES,
    start: Mapping[str, int] | None = None,
    end: Mapping[str, int] | None = None,
    per_trigger: int = PER_TRIGGER,
    kafka: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the entries of the log at `url` and its companion sources, with the columns of `spark_jobs.sequence.arrivals.FRAME_DDL`.

    * `sources`: the sources to read; the channel must be one of them.
    * `start`, `end`: positions by source (`spark_jobs.sequence.arrivals.Source`): the first offset to read, and for a batch the first
      offset not to read. A missing source is read from its beginning to its end.
    * `per_trigger`: most entries in a batch of a stream. On SQLite this applies to each source, and each has a bound in bytes too. Load
      reports have a lower bound of their own.
    * `kafka`: settings of Kafka's client; by default those of this process.

    The entries of one source are in order once they are sorted by offset. A batch reads the entries that exist when it is planned. A SQLite
    file need not exist yet.

    Raises `CallerError` and `InvalidKafkaSetting`; for positions on Kafka also `LogUnavailable`.
    """
    if is_in_memory(url):
        raise invalid_log_url(url=url, problem="a log in memory is known only to the process that made it, and Spark works in others")
    if is_on_kafka(url):
        from equipoise.spark_jobs.sources.kafka_source import kafka_frame  # noqa: PLC0415 - imports pyspark, which a check of the URL does not need

        settings = kafka_settings() if kafka is None else checked(kafka)
        return kafka_frame(
            spark,
            address_of(url),
            url=url,
            settings=settings,
            streaming=streaming,
            sources=sources,
            start=start or {},
            end=end or {},
            per_trigger=per_trigger,
        )
    path = log_path(url)
    if not path:
        raise invalid_log_url(url=url, problem="it names no file and no topic")
    options = {
        "url": f"sqlite:{os.path.abspath(path)}",  # noqa: PTH100 - links are followed when it is opened
        "sources": json.dumps(sorted(sources)),
        "start": json.dumps(dict(start or {})),
        "end": json.dumps(dict(end or {})),
        "per_trigger": str(per_trigger),
    }
    return _sqlite_frame(spark, options, streaming=streaming)


def _sqlite_frame(spark: SparkSession, options: dict[str, str], *, streaming: bool) -> DataFrame:
    if not (spark.sparkContext.master or "").startswith("local"):
        raise invalid_log_url(
            url=options["url"], problem="the file is on this machine, so only Spark on this machine can read it: omit --master"
        )
    from equipoise.spark_jobs.sources.sqlite_source import NAME, SqliteChannel  # noqa: PLC0415 - as above

    spark.dataSource.register(SqliteChannel)
    if streaming:
        return spark.readStream.format(NAME).options(**options).load()
    return spark.read.format(NAME).options(**options).load()
