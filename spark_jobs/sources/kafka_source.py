"""Read a channel on Kafka with Spark: one connector reads the log's topic and its companion topics.

A topic created later is found by its name and read from its beginning.

Users write settings once, in librdkafka's names (`channel.kafka.settings`). They become options
`kafka.NAME` of Spark's connector, which uses the Java client. `connector_options` is pure: the
caller reads the files whose text Java needs.

Settings that only tune librdkafka are dropped. Settings about access are translated or refused: a
connection with other security than requested is worse than none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions

from equipoise.brokers.load.bus import LOADS
from equipoise.brokers.side_topics import DECISIONS, SERVING
from equipoise.channel.core.errors import LogUnavailable, invalid_kafka_setting, missing_extra
from equipoise.channel.kafka.answers import KafkaFailed
from equipoise.channel.kafka.settings import HEADER_KEY, KafkaAddress, without_secrets
from equipoise.spark_jobs.sequence.rows import Positions, Source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SAME: Final = frozenset(
    {
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "sasl.kerberos.service.name",
        "security.protocol",
        "ssl.cipher.suites",
        "ssl.key.password",
        "ssl.keystore.location",
        "ssl.keystore.password",
    }
)
"""Settings with the same name and meaning in both clients."""

_RENAMED: Final = {"sasl.mechanism": "sasl.mechanism", "sasl.mechanisms": "sasl.mechanism"}

_HANDLED: Final = frozenset(
    {
        "sasl.kerberos.keytab",
        "sasl.kerberos.principal",
        "sasl.password",
        "sasl.username",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.pem",
    }
)

_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_KERBEROS: Final = "com.sun.security.auth.module.Krb5LoginModule"
_PEM: Final = "PEM"


def connector_options(settings: Mapping[str, str], *, read: Callable[[str], str]) -> dict[str, str]:
    """Return connector options for settings in librdkafka's names. `read` returns the text of a
    certificate or key file.

    Raises `CallerError` for an access setting that Java's client lacks, or whose file
    cannot be read.
    """
    for setting in sorted(settings):
        is_about_access = setting.startswith(
            ("sasl.", "ssl.", "enable.ssl", "enable.sasl", "oauthbearer", "https.")
        )
        if is_about_access and setting not in _SAME | _HANDLED | _RENAMED.keys():
            raise invalid_kafka_setting(
                setting=setting,
                problem="Spark's connector, which uses Java's client, has nothing like it",
            )
    java = {name: value for name, value in settings.items() if name in _SAME}
    java |= {_RENAMED[name]: value for name, value in settings.items() if name in _RENAMED}
    if "ssl.keystore.location" in java:
        java["ssl.keystore.type"] = "PKCS12"
    java |= (
        _trust(settings, read)
        | _keys(settings, read)
        | _login(java.get("sasl.mechanism"), settings)
    )
    if "ssl.endpoint.identification.algorithm" in settings:
        algorithm = settings["ssl.endpoint.identification.algorithm"]
        java["ssl.endpoint.identification.algorithm"] = "" if algorithm == "none" else algorithm
    return {f"kafka.{name}": value for name, value in sorted(java.items())}


def _trust(settings: Mapping[str, str], read: Callable[[str], str]) -> dict[str, str]:
    """Return the trusted certificates as text. A path would have to exist on every worker."""
    text = _text(settings, "ssl.ca", read)
    return (
        {} if text is None else {"ssl.truststore.type": _PEM, "ssl.truststore.certificates": text}
    )


def _keys(settings: Mapping[str, str], read: Callable[[str], str]) -> dict[str, str]:
    """Return the client's certificate and key."""
    certificate, key = _text(settings, "ssl.certificate", read), _text(settings, "ssl.key", read)
    if certificate is None and key is None:
        return {}
    if certificate is None or key is None:
        raise invalid_kafka_setting(
            setting="ssl.key.location",
            problem="it and ssl.certificate.location are given together, or not at all",
        )
    return {
        "ssl.keystore.type": _PEM,
        "ssl.keystore.certificate.chain": certificate,
        "ssl.keystore.key": key,
    }


def _text(settings: Mapping[str, str], stem: str, read: Callable[[str], str]) -> str | None:
    if f"{stem}.pem" in settings:
        return settings[f"{stem}.pem"]
    path = settings.get(f"{stem}.location")
    # librdkafka's name for the system's certificates, which are Java's default.
    if path is None or path == "probe":
        return None
    try:
        return read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise invalid_kafka_setting(
            setting=f"{stem}.location", problem=f"the file cannot be read: {error}"
        ) from error


def _login(mechanism: str | None, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the login options: Java takes several librdkafka settings in one line."""
    if mechanism in _MODULES:
        words = {
            "username": settings.get("sasl.username", ""),
            "password": settings.get("sasl.password", ""),
        }
        return {"sasl.jaas.config": _line(_MODULES[mechanism], words)}
    if mechanism == "GSSAPI" and "sasl.kerberos.keytab" in settings:
        words = {
            "useKeyTab": "true",
            "storeKey": "true",
            "keyTab": settings["sasl.kerberos.keytab"],
            "principal": settings.get("sasl.kerberos.principal", ""),
        }
        return {"sasl.jaas.config": _line(_KERBEROS, words)}
    if mechanism is not None:
        known = ", ".join((*_MODULES, "GSSAPI with sasl.kerberos.keytab"))
        raise invalid_kafka_setting(
            setting="sasl.mechanism",
            problem=f"the Spark jobs log in by {known}, not by {mechanism}",
        )
    return {}


def _line(module: str, words: Mapping[str, str]) -> str:
    quoted = {
        name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in words.items()
    }
    return (
        f"{module} required "
        + " ".join(f'{name}="{value}"' for name, value in quoted.items())
        + ";"
    )


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
    # A tombstone in the log becomes an empty entry, which is no valid record, as for brokers.
    is_tombstone = (column("topic") == topics[Source.CHANNEL]) & column("value").isNull()
    value = functions.when(is_tombstone, functions.lit(b"")).otherwise(column("value"))
    return rows.where(~is_header).select(
        _source_of(topics).alias("source"), "offset", at_ms.alias("at_ms"), value.alias("value")
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
