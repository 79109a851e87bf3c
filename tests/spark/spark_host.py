"""Run the audit as Spark hosts it, without a JVM: in shards, each of which goes to another worker
with each batch.

`tests/integration/spark` has the same on a real Spark.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from pathlib import Path
from tempfile import TemporaryDirectory

from equipoise.spark_jobs.audit.auditor import Auditor
from equipoise.spark_jobs.audit.job import audit_records
from equipoise.spark_jobs.rules.memory import put_rows
from equipoise.spark_jobs.rules.rule import Finding, parse_finding
from equipoise.spark_jobs.sequence.folding import Lost
from equipoise.spark_jobs.sequence.rows import Arrival, Source, Table
from equipoise.spark_jobs.sequence.sequence import nothing_lost
from equipoise.spark_jobs.streams.options import AuditOptions
from equipoise.spark_jobs.tables.delta import Place
from tests.spark.archived import archived

SHARDS = 2


def archive_findings_of(
    arrivals: Many[Arrival], *, batch: int = 500, lost: Lost | None = None
) -> list[Finding]:
    """What the audit says of these arrivals, of which all records were archived before it."""
    records = [each for each in arrivals if each.source == Source.CHANNEL]
    notes = [each for each in arrivals if each.source != Source.CHANNEL]
    batches = (records[first : first + batch] for first in range(0, len(records), batch))
    with TemporaryDirectory() as folder:
        archived(Path(folder), batches, lost=lost or nothing_lost)
        options = AuditOptions(log_url="", archive=folder)
        rows = [
            row
            for number in range(SHARDS)
            for row in audit_records(
                (number, SHARDS), place=Place(folder), options=options, log=None
            )
        ]
    found = [parse_finding(row.body or b"") for row in rows if row.table == Table.FINDINGS]
    state: dict[str, bytes] = {}
    put_rows(state, ((row.subject, row.body) for row in rows if row.table == Table.STATE))
    for number in range(SHARDS):
        auditor = Auditor(shard=(number, SHARDS))
        auditor.restore(state)
        found += auditor.feed(notes)
    return found


def spark_findings_of(
    arrivals: Many[Arrival], *, batch: int = 500, lost: Lost | None = None
) -> list[Finding]:
    """What the audit says of these arrivals, read in batches of so many."""
    states: list[dict[str, bytes]] = [{} for _ in range(SHARDS)]
    found: list[Finding] = []
    for first in range(0, len(arrivals), batch):
        for number, state in enumerate(states):
            auditor = Auditor(lost=lost or nothing_lost, shard=(number, SHARDS))
            if state:
                auditor.restore(state)
            found += auditor.feed(arrivals[first : first + batch])
            put_rows(state, auditor.changed_rows())
    return found
