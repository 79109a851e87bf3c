"""Run the Pulsar job: audit the recording of a Pulsar cluster, and write its tables into an
archive, which `equipoise report` reads.

The bundles of a namespace go to one task, because splits and their children belong together;
namespaces spread over all cores. What concerns brokers then passes through one task. Each run reads
the whole recording, and replaces the rows of the run before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson
import pandas as pd
from pyspark.sql import functions as F  # noqa: N812 - the usual name
from pyspark.storagelevel import StorageLevel

from equipoise.pulsar_cluster.archive import open_archive
from equipoise.spark_jobs.audit.reporting import PRINTED_MAX, Reach, lines
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.rules.pulsar import GoneBrokers, parse_sighting
from equipoise.spark_jobs.rules.rule import Finding, command_on, parse_finding
from equipoise.spark_jobs.sequence.pulsar import PulsarRows, load_rows
from equipoise.spark_jobs.sequence.rows import Table, finding_row
from equipoise.spark_jobs.streams.options import PulsarOptions, Screen
from equipoise.spark_jobs.streams.sequential_operator import ROWS_DDL, frames, with_time
from equipoise.spark_jobs.streams.session import spark_session, spark_work
from equipoise.spark_jobs.tables.delta import Place
from equipoise.spark_jobs.tables.schema import WRITTEN_BY
from equipoise.spark_jobs.tables.writing import Writer, open_writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK: Final = 20_000
"""Rows that a task reads at once: 6 MB of messages."""

PART: Final = 200_000
"""Offsets whose rows are written at once: some 200 MB with all tables."""

_MESSAGES_DDL: Final = (
    "offset BIGINT, message_id STRING, bundle STRING, published_ms BIGINT, value BINARY, producer"
    " STRING"
)
_MESSAGES: Final = (
    "SELECT offset, message_id, bundle, published_ms, value, producer FROM messages WHERE offset"
    " BETWEEN ? AND ?"
)
_REPORTS: Final = (
    "SELECT id, at_ms, topic, broker, value FROM reports WHERE id BETWEEN ? AND ? ORDER BY id"
)
_NEWEST: Final = (
    "SELECT max(coalesce((SELECT published_ms FROM messages WHERE offset = ?), 0), coalesce((SELECT"
    " at_ms FROM reports WHERE id = ?), 0))"
)
_COLUMNS: Final = tuple(column.split()[0] for column in _MESSAGES_DDL.split(", "))


def run_pulsar(options: PulsarOptions, screen: Screen) -> int:
    """Audit a recording, write its tables and print the findings. Return how many there are.

    Raises what `open_archive`, `open_writer` and `spark_session` raise, and `PeerError` if Spark
    fails.
    """
    with open_archive(options.recording) as recording:
        cluster, messages, reports = (
            recording.service_url,
            recording.end + 1,
            recording.reports_end(),
        )
        beginnings = [offset for offset, _ in recording.beginnings()]
    spark = spark_session("equipoise pulsar", options, note=screen.note)
    screen.note(f"auditing {options.recording}: {messages:,} messages of {cluster}")
    opened = partial(
        open_writer, Place(options.archive), log=f"pulsar:{cluster}", url=str(options.recording)
    )
    with opened(writer="archive") as tables, opened(writer="audit") as audited:
        found = spark_work(
            spark.sparkContext,
            "pulsar",
            lambda: _write(
                audited_rows(
                    spark,
                    options.recording,
                    messages=messages,
                    reports=reports,
                    beginnings=beginnings,
                ),
                tables,
                audited,
            ),
        )
        reach = Reach(audited=messages - 1, end=messages - 1)
        reach.keep(options.archive, log=audited.log, url=audited.url)
    _print(found, options, screen)
    screen.note(
        f"{len(found):,} findings in {messages:,} messages; wrote {tables.rows_written:,} rows to"
        f" {options.archive}"
    )
    screen.note(f"draw its page with: equipoise report --archive {options.archive}")
    return len(found)


def _write(rows: DataFrame, tables: Writer, audited: Writer) -> list[Finding]:
    """Write the rows (`EMITTED_DDL`) in place of those of an earlier run. Return the findings in
    order.
    """
    rows = rows.persist(StorageLevel.DISK_ONLY)
    of_archive = rows.where(F.col("table").isin([table.value for table in WRITTEN_BY["archive"]]))
    findings = rows.where(F.col("table") == Table.FINDINGS.value).toArrow()
    last = of_archive.agg(F.max("offset")).first()
    end = 0 if last is None or last[0] is None else last[0] + 1
    tables.replace(
        of_archive.where(F.col("offset").between(first, first + PART - 1)).toArrow()
        for first in range(0, end, PART)
    )
    audited.replace([findings])
    tables.save_state({})
    return [
        parse_finding(body)
        for body in findings.sort_by([("offset", "ascending"), ("ordinal", "ascending")])[
            "body"
        ].to_pylist()
    ]


def audited_rows(
    spark: SparkSession,
    recording: Path,
    *,
    messages: int,
    reports: int,
    beginnings: Sequence[int] = (),
) -> DataFrame:
    """Return the rows (`EMITTED_DDL`) of the first `messages` and of the load reports with ids up
    to `reports`.

    `beginnings` are the offsets before which messages are lost.
    """
    path = str(recording.absolute())
    read = _ranges(spark, messages).mapInPandas(partial(read_messages, path), _MESSAGES_DDL)
    audit = partial(
        audit_bundles, newest_ms(path, messages=messages, reports=reports), beginnings=beginnings
    )
    namespace = F.regexp_extract("bundle", "^(.*)/", 1)
    bundles = (
        read.repartition(namespace)
        .sortWithinPartitions("offset")
        .mapInPandas(audit, ROWS_DDL)
        .persist(StorageLevel.DISK_ONLY)
    )
    sightings = (
        bundles.where(F.col("table") == Table.FACTS.value)
        .repartition(1)
        .sortWithinPartitions("offset")
    )
    loads = _ranges(spark, reports + 1).mapInPandas(partial(_read_loads, path), ROWS_DDL)
    return with_time(bundles.union(sightings.mapInPandas(_audit_brokers, ROWS_DDL)).union(loads))


def _ranges(spark: SparkSession, end: int) -> DataFrame:
    """Return the first number of each chunk below `end`."""
    return spark.range(0, end, CHUNK).withColumnRenamed("id", "first")


def newest_ms(path: str, *, messages: int, reports: int) -> int:
    """Return the Unix time of the last message or load report, whichever is later, 0 without
    any.
    """
    with _opened(path) as connection:
        (newest,) = connection.execute(_NEWEST, (messages - 1, reports)).fetchone()
    return int(newest)


def read_messages(path: str, firsts: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield the messages of the chunks that begin at these offsets."""
    for rows in _chunks(path, _MESSAGES, firsts):
        yield pd.DataFrame(rows, columns=list(_COLUMNS))


def _read_loads(path: str, firsts: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for rows in _chunks(path, _REPORTS, firsts):
        yield from frames(found for row in rows for found in load_rows(*row))


def _chunks(
    path: str, query: str, firsts: Iterable[pd.DataFrame]
) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of each chunk. The file is opened here, because Spark sends this function to
    other processes.
    """
    with _opened(path) as connection:
        for frame in firsts:
            for first in frame["first"]:
                yield connection.execute(query, (int(first), int(first) + CHUNK - 1)).fetchall()


def _opened(path: str) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True))


def audit_bundles(
    newest: int, batches: Iterable[pd.DataFrame], *, beginnings: Sequence[int] = ()
) -> Iterator[pd.DataFrame]:
    """Yield the rows of messages, which come in order. `newest` is the newest time of the recording
    (Unix time in ms).
    """
    rows = PulsarRows(beginnings)
    for batch in batches:
        columns = (batch[name].tolist() for name in _COLUMNS)
        yield from frames(found for row in zip(*columns, strict=True) for found in rows.feed(row))
    yield from frames(rows.end(newest))


def _audit_brokers(batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    brokers = GoneBrokers()
    for batch in batches:
        yield from frames(
            finding_row(found)
            for body in batch["body"]
            for found in brokers.check(parse_sighting(body))
        )


def _print(found: list[Finding], options: PulsarOptions, screen: Screen) -> None:
    url = str(options.recording)
    if options.as_json:
        for each in found:
            rule = RULES[each.rule]
            about = {
                "severity": rule.severity,
                "source": rule.source,
                "advice": rule.remedy,
                "command": command_on(url, each.command),
            }
            screen.result(orjson.dumps({**orjson.loads(each.to_bytes()), **about}).decode())
        return
    for each in found[:PRINTED_MAX]:
        first, command = lines(each, log=url)
        for line in (first, f"  {RULES[each.rule].remedy}", command):
            screen.result(line)
    if len(found) > PRINTED_MAX:
        screen.result(
            f"{len(found) - PRINTED_MAX:,} more findings: see {options.archive / Table.FINDINGS}"
        )
    if not found:
        screen.result("no findings")
