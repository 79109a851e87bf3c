"""Run the audit as Spark hosts it, without a JVM: facts as rows of bytes, a memory for each subject
that is stored after each batch, and timers that fire at the watermark.

`tests/integration/spark` has the same on a real Spark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Many

from equipoise.spark_jobs.plain.auditor import WATERMARK_MS
from equipoise.spark_jobs.rules.facts import Fact, parse_fact
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.folding import Lost
from equipoise.spark_jobs.sequence.rows import Arrival, Source, Table
from equipoise.spark_jobs.sequence.sequence import Sequence, nothing_lost
from tests.spark.spark_state import FakeSpark


def spark_findings_of(
    arrivals: Many[Arrival], *, batch: int = 500, lost: Lost | None = None
) -> list[Finding]:
    """What the audit says of these arrivals, read in batches of so many."""
    sequence = Sequence(frozenset({Table.FACTS}), lost=lost or nothing_lost)
    subjects: dict[str, FakeSpark] = {}
    latest_ms = 0
    found: list[Finding] = []
    for first in range(0, len(arrivals), batch):
        entries = sorted(
            arrivals[first : first + batch],
            key=lambda arrival: (arrival.source != Source.CHANNEL, arrival.source),
        )
        facts: defaultdict[str, list[Fact]] = defaultdict(list)
        for row in sequence.feed(entries):
            fact = parse_fact(row.body or b"")
            facts[row.subject].append(fact)
            latest_ms = max(latest_ms, fact.at_ms)
        for name in facts:
            subjects.setdefault(name, FakeSpark(name))
        for name, each in sorted(subjects.items()):
            found += each.batch(facts.get(name, ()))
            found += each.advance(latest_ms - WATERMARK_MS)
    return found
