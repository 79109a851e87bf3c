"""Run the streaming audit: check a channel and its serving evidence against `spark_jobs.rules`
while it grows.

One operator folds the log in order and makes facts (`spark_jobs.streams.sequential_operator`).
Operators keyed by bundle, broker and namespace check them on all cores
(`spark_jobs.audit.keyed_operator`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa

from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.log.open_log import open_log
from equipoise.spark_jobs.archive.tables.reading import FINDING, Archive
from equipoise.spark_jobs.archive.tables.sink import Sink, open_sink
from equipoise.spark_jobs.archive.tables.small_files import compact_beside
from equipoise.spark_jobs.audit.findings_out import FINDINGS, FindingsOut
from equipoise.spark_jobs.audit.keyed_operator import findings_of
from equipoise.spark_jobs.rules.checkers import RULES
from equipoise.spark_jobs.rules.rule import Finding, command_on, parse_finding
from equipoise.spark_jobs.sequence.rows import Source, Table
from equipoise.spark_jobs.sources.beginnings import Beginning, beginning_at, kept_beginning
from equipoise.spark_jobs.sources.frames import channel_frame, is_on_kafka
from equipoise.spark_jobs.streams.errors import WITHOUT_CHECKPOINT, ArchiveDamaged
from equipoise.spark_jobs.streams.interrupts import delayed_interrupts
from equipoise.spark_jobs.streams.options import AuditOptions, Screen
from equipoise.spark_jobs.streams.progress import LookedAt, Watch, watching
from equipoise.spark_jobs.streams.sequential_operator import SequentialProcessor, sequence_operator
from equipoise.spark_jobs.streams.session import spark_session
from equipoise.spark_jobs.streams.streams import Stream, check_version, run_stream

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

JOB: Final = "audit"

STATE_VERSION: Final = 4
"""Raise it with every change that makes the state of existing checkpoints unusable."""

PRINTED_MAX: Final = 50
"""Findings of one batch to print for people, so that a log full of garbage does not hide the first
ones. JSON output has all."""

_WANTS: Final = frozenset({Table.FACTS})


def run_audit(options: AuditOptions, screen: Screen) -> int:
    """Audit a log until its end (`to_end`) or an interrupt. Return how many findings this run made.

    Raise the errors of `channel.log.open_log`, `channel.snapshots.restore.earliest` and
    `open_sink`, and those of `check_version`, `watching` and `run_stream`.
    """
    with closing(open_log(options.log_url, create=False)) as log:
        name, identity = log.name, log.identity
    out = FindingsOut(options.log_url)
    spark = spark_session(
        "equipoise audit",
        master=options.master,
        kafka=is_on_kafka(options.log_url),
        note=screen.note,
    )
    with (
        open_sink(options.archive, writer=JOB, log=identity, url=options.log_url) as sink,
        watching(
            JOB,
            screen,
            log=LookedAt.at(name, options.log_url),
            metrics_port=options.metrics_port,
            rules=RULES,
        ) as watch,
    ):
        check_version(JOB, sink.checkpoint, STATE_VERSION)
        beginning = kept_beginning(sink.checkpoint, lambda: beginning_at(options.log_url))
        # py4j frees Java objects at any time, and loses a Ctrl-C during that.
        with delayed_interrupts():
            watch.note(_start_note(name, sink, beginning))
            watch.note(
                f"findings are printed here, and written to {options.archive / Table.FINDINGS}, and"
                f" {FINDINGS.name} {out.place}"
            )
            older = kept_findings(options.archive, watch.note)
            stream = Stream(
                job=JOB,
                checkpoint=sink.checkpoint,
                to_end=options.to_end,
                frame=lambda: _frame(spark, options, beginning, identity),
                take=taker(sink, out, watch, log=name, as_json=options.as_json),
            )
        try:
            run_stream(spark, stream, watch)
        finally:
            watch.show()
            # A run that failed before its first entry has found out nothing.
            if watch.rows or watch.findings or not isinstance(sys.exception(), EquipoiseError):
                watch.note(summary(watch, older))
    return watch.findings.total()


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
    sink: Sink, out: FindingsOut, watch: Watch, *, log: str, as_json: bool
) -> Callable[[int, pa.Table], None]:
    """Return the function that handles each batch: store, print and publish its findings, and
    sometimes compact small files.

    It prints before it publishes, because publishing may fail. It prints a repeated batch once per
    process.
    """
    printed_last = -1

    def take(number: int, rows: pa.Table) -> None:
        nonlocal printed_last
        rows = rows.sort_by([("offset", "ascending"), ("ordinal", "ascending")])
        found = [parse_finding(body) for body in rows["body"].to_pylist()]
        sink.write(number, rows)
        if number > printed_last:
            printed_last = number
            _print(found, sink, watch, log=log, as_json=as_json)
        out.put(found)
        compact_beside(Archive(sink.archive), JOB, number)

    return take


def _print(found: Sequence[Finding], sink: Sink, watch: Watch, *, log: str, as_json: bool) -> None:
    for each in found:
        watch.found(each.rule, 1)
    if as_json:
        for each in found:
            watch.say(_document(each, log=log))
        return
    for each in found[:PRINTED_MAX]:
        for line in lines(each, log=log):
            watch.say(line)
    if len(found) > PRINTED_MAX:
        watch.say(
            f"{len(found) - PRINTED_MAX:,} more findings in this batch: see"
            f" {sink.archive / Table.FINDINGS}"
        )


def lines(finding: Finding, *, log: str) -> Iterator[str]:
    """Yield the lines of a finding for people."""
    kind, _, name = finding.subject.partition(":")
    of = f"{kind} {name}" if name else f"the {kind}"
    yield (
        f"{RULES[finding.rule].severity} {finding.rule} at {finding.offsets[-1]}, {of}:"
        f" {finding.text}"
    )
    yield f"  {command_on(log, finding.command)}"


def _document(finding: Finding, *, log: str) -> str:
    return replace(finding, command=command_on(log, finding.command)).to_bytes().decode()


def _start_note(log: str, sink: Sink, beginning: Beginning) -> str:
    if not sink.is_new:
        return f"auditing {log}, continued from the last run"
    position = beginning.positions[Source.CHANNEL]
    where = (
        "from its first record"
        if beginning.snapshot is None
        else f"from offset {position}, the first after its snapshot"
    )
    lost = (
        f"; the checkpoint is gone: {WITHOUT_CHECKPOINT[JOB]}"
        if sink.manifest.generation > 1
        else ""
    )
    return f"auditing {log} {where}{lost}"


def kept_findings(archive: Path, note: Callable[[str], None]) -> int:
    """Return how many findings the archive has. Return 0 if a file is damaged: the audit must still
    run.
    """
    try:
        kept: int = Archive(archive).table(Table.FINDINGS, columns=FINDING).num_rows
    except ArchiveDamaged as error:
        note(f"older findings cannot be counted: {error}")
        return 0
    return kept


def summary(watch: Watch, older: int) -> str:
    """Return the last line of a run."""
    findings: Mapping[str, int] = watch.findings
    rules = ", ".join(f"{rule} {count:,}" for rule, count in sorted(findings.items()))
    total = watch.findings.total()
    found = f"{total:,} finding{'' if total == 1 else 's'} ({rules})" if findings else "no findings"
    before = f"; the archive holds {older:,} older" if older else ""
    return f"audited {watch.rows:,} entries: {found}{before}"
