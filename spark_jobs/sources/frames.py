"""Return a channel as a streaming Spark frame, from Kafka or SQLite. All jobs read logs through
this module.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from equipoise.channel.core.errors import invalid_log_url
from equipoise.channel.kafka.settings import address_of
from equipoise.channel.log.open_log import is_in_memory, kafka_settings, log_path
from equipoise.spark_jobs.sequence.rows import ALL_SOURCES, Positions, Source
from equipoise.spark_jobs.sources.kafka_source import kafka_frame
from equipoise.spark_jobs.sources.sqlite_source import NAME, SqliteChannel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def is_on_kafka(url: str) -> bool:
    """Return whether the log at `url` is a Kafka topic, which needs Spark's Kafka connector."""
    return url.startswith("kafka:")


def channel_frame(
    spark: SparkSession,
    url: str,
    *,
    start: Positions,
    per_trigger: int,
    sources: frozenset[Source] = ALL_SOURCES,
) -> DataFrame:
    """Return the entries of the log at `url` and its companion sources as they arrive, with the
    columns of `FRAME_DDL`.

    * `start`: the first offset to read, by source (`spark_jobs.sequence.rows.Source`). A
      missing source is read from its beginning.
    * `per_trigger`: most entries in a batch. On SQLite this applies to each source, and each has a
      bound in bytes too. Load reports have a lower bound of their own.
    * `sources`: the sources to read; the channel must be one of them.

    The entries of one source are in order once they are sorted by offset. A SQLite file need not
    exist yet.

    Raises `CallerError` and `LogUnavailable`.
    """
    if is_in_memory(url):
        raise invalid_log_url(
            url=url,
            problem=(
                "a log in memory is known only to the process that made it, and Spark works in"
                " others"
            ),
        )
    if is_on_kafka(url):
        return kafka_frame(
            spark,
            address_of(url),
            url=url,
            settings=kafka_settings(),
            sources=sources,
            start=start,
            per_trigger=per_trigger,
        )
    path = log_path(url)
    if not path:
        raise invalid_log_url(url=url, problem="it names no file and no topic")
    if not (spark.sparkContext.master or "").startswith("local"):
        raise invalid_log_url(
            url=url,
            problem=(
                "the file is on this machine, so only Spark on this machine can read it: omit"
                " --master"
            ),
        )
    options = {
        # Links are followed when it is opened.
        "url": f"sqlite:{os.path.abspath(path)}",  # noqa: PTH100
        "sources": json.dumps(sorted(sources)),
        "start": json.dumps(dict(start)),
        "per_trigger": str(per_trigger),
    }
    spark.dataSource.register(SqliteChannel)
    return spark.readStream.format(NAME).options(**options).load()
