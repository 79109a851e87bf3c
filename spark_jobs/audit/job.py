"""Run the streaming audit: check a channel and its serving evidence against `spark_jobs.rules`
while it grows.

One operator folds the log in order and makes facts (`spark_jobs.streams.sequential_operator`).
Operators keyed by bundle, broker and namespace check them on all cores
(`spark_jobs.audit.keyed_operator`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.audit.findings_out import FindingsOut
from equipoise.spark_jobs.audit.findings_table import (
    SPARK_STATE,
    FindingsTable,
    kept_findings,
    open_findings,
)
from equipoise.spark_jobs.audit.keyed_operator import findings_of
from equipoise.spark_jobs.audit.reporting import (
    Reach,
    note_beginning,
    note_end,
    print_findings,
    reach_in,
)
from equipoise.spark_jobs.rules.checkers import CHANNEL_RULES
from equipoise.spark_jobs.rules.rule import parse_finding
from equipoise.spark_jobs.sequence.rows import Source, Table
from equipoise.spark_jobs.sources.beginnings import FILE, Beginning, beginning_at, kept_beginning
from equipoise.spark_jobs.sources.frames import channel_frame, is_on_kafka
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import AuditOptions, Screen
from equipoise.spark_jobs.streams.progress import LookedAt, Watch, watching
from equipoise.spark_jobs.streams.sequential_operator import SequentialProcessor, sequence_operator
from equipoise.spark_jobs.streams.session import check_shared, spark_session
from equipoise.spark_jobs.streams.streams import Stream, check_version, run_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JOB: Final = "audit"

STATE_VERSION: Final = 4
"""Raise it with every change that makes the state of existing checkpoints unusable."""

_SIGNS: Final = ("metadata", FILE)
"""Files, by Spark and by Equipoise. One of them exists before the first batch of a checkpoint
begins."""

_WANTS: Final = frozenset({Table.FACTS})


def run_audit(options: AuditOptions, screen: Screen) -> int:
    """Audit a log until its end (`to_end`) or an interrupt. Return how many findings this run made;
    at the end of a log that it could not audit to its end, at least 1.

    Raise the errors of `channel.log.open_log`, `beginning_at`,
    `check_shared` and `open_findings`, and those of `check_version`, `watching` and `run_stream`.
    """
    folder = Path(options.archive)
    with closing(open_log(options.log_url, create=False)) as log:
        name, identity, end = log.name, log.identity, log.end()
    out = FindingsOut(options.log_url)
    # Before Spark's slow start: another process may use the archive.
    with open_findings(
        options.archive, state=SPARK_STATE, log=identity, url=options.log_url
    ) as table:
        checkpoint = folder / SPARK_STATE
        is_new = not any((checkpoint / name).exists() for name in _SIGNS)
        check_version(JOB, checkpoint, STATE_VERSION)
        spark = spark_session(
            "equipoise audit", options, kafka=is_on_kafka(options.log_url), note=screen.note
        )
        check_shared(spark, folder)
        with watching(
            JOB,
            screen,
            log=LookedAt.at(name, options.log_url),
            metrics_port=options.metrics_port,
            rules=CHANNEL_RULES,
        ) as watch:
            beginning = kept_beginning(checkpoint, lambda: beginning_at(options.log_url))
            # py4j frees Java objects at any time, and loses a Ctrl-C during that.
            with delayed_interrupts():
                note_beginning(
                    watch,
                    name,
                    beginning.positions[Source.CHANNEL] if is_new else None,
                    is_first=beginning.snapshot is None,
                    out=out,
                    archive=options.archive,
                )
                older = kept_findings(options.archive, watch.note)
                stream = Stream(
                    job=JOB,
                    checkpoint=checkpoint,
                    to_end=options.to_end,
                    frame=lambda: _frame(spark, options, beginning, identity),
                    take=taker(options, table, out, watch, log=name),
                )
            try:
                run_stream(spark, stream, watch)
            finally:
                watch.show()
                reach = last_reach(options, end)
                table.keep(reach)
                note_end(watch, reach, older, as_json=options.as_json)
            return watch.findings.total() or int(not reach.is_whole)


def last_reach(options: AuditOptions, end: int) -> Reach:
    """Return how far the audit has come, and where the log ends now: if it does not answer, at
    `end` at least.
    """
    kept = reach_in(options.archive) or Reach(audited=0, end=0)
    with suppress(EquipoiseError), closing(open_log(options.log_url, create=False)) as log:
        end = log.end()
    return replace(kept, end=max(kept.audited, end + kept.base))


def _frame(
    spark: SparkSession, options: AuditOptions, beginning: Beginning, identity: str
) -> DataFrame:
    """Return the frame of findings (`EMITTED_DDL`), from the log's entries."""
    entries = channel_frame(
        spark, options.log_url, start=beginning.positions, per_trigger=options.per_trigger
    )
    facts = sequence_operator(
        entries,
        SequentialProcessor(
            wants=_WANTS,
            begin=beginning.snapshot,
            run_id=str(uuid4()),
            log_url=options.log_url,
            in_flight_max_ms=1_000 * options.in_flight_max_s,
            log=identity,
        ),
    )
    return findings_of(facts)


def taker(
    options: AuditOptions, table: FindingsTable, out: FindingsOut, watch: Watch, *, log: str
) -> Callable[[int, pa.Table], None]:
    """Return the function that handles each batch: store, print and publish its findings.

    It prints before it publishes, because publishing may fail. It prints a repeated batch once per
    process.
    """
    printed_last = -1

    def take(number: int, rows: pa.Table) -> None:
        nonlocal printed_last
        is_reach = pc.equal(rows["table"], str(Table.REACH))
        reached, rows = rows.filter(is_reach), rows.filter(pc.invert(is_reach))
        rows = rows.sort_by([("offset", "ascending"), ("ordinal", "ascending")])
        found = [parse_finding(body) for body in rows["body"].to_pylist()]
        table.append(rows)
        if number > printed_last:
            printed_last = number
            print_findings(found, watch, archive=options.archive, log=log, as_json=options.as_json)
        out.put(found)
        for body in reached["body"].to_pylist():
            reach = Reach(**orjson.loads(body))
            table.keep(reach)
            watch.reached(audited=reach.audited, end=reach.end)

    return take
