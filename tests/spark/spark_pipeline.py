"""Run the audit on arrivals that a test made."""

from __future__ import annotations

from collections.abc import Sequence as ManyOf

from equipoise.spark_jobs.audit.auditor import Auditor
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.folding import Lost
from equipoise.spark_jobs.sequence.rows import Arrival
from equipoise.spark_jobs.sequence.sequence import nothing_lost


def findings_of(
    arrivals: ManyOf[Arrival],
    *,
    batch: int = 500,
    begin: bytes | None = None,
    lost: Lost | None = None,
) -> list[Finding]:
    """What the audit says of these arrivals, read in batches of so many."""
    auditor = Auditor(begin=begin, lost=nothing_lost if lost is None else lost)
    return [
        finding
        for first in range(0, len(arrivals), batch)
        for finding in auditor.feed(arrivals[first : first + batch])
    ]
