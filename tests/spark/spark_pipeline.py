"""Run the streaming audit without Spark: the sequential operator and the keyed checks, batch by
batch and in the order of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as ManyOf
from typing import Final

from equipoise.spark_jobs.rules.checkers import SubjectAudit
from equipoise.spark_jobs.rules.facts import parse_fact
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.folding import Lost
from equipoise.spark_jobs.sequence.rows import Arrival, Emitted, Source, Table
from equipoise.spark_jobs.sequence.sequence import Sequence, nothing_lost

WATERMARK_MS: Final = 1_000
"""How late the watermark of the streaming query is behind the latest fact."""

_FACTS: Final = frozenset({Table.FACTS})


class Pipeline:
    """One audit. `facts` counts the checked facts."""

    def __init__(self, *, begin: bytes | None = None, lost: Lost = nothing_lost) -> None:
        """Begin at the log's first record, or from the snapshot `begin`."""
        self.facts = 0
        self._sequence = Sequence(_FACTS, begin, lost=lost)
        self._audits: dict[str, SubjectAudit] = {}
        self._timers: dict[str, int] = {}
        self._latest_ms = 0

    def feed(self, batch: Iterable[Arrival]) -> Iterator[Finding]:
        """The findings of one batch: first of its facts, then of the timers that are due after
        it.
        """
        entries = sorted(
            batch, key=lambda arrival: (arrival.source != Source.CHANNEL, arrival.source)
        )
        for row in self._sequence.feed(entries):
            yield from self._check(row)
        yield from self._expire(self._latest_ms - WATERMARK_MS)

    def _check(self, row: Emitted) -> Iterator[Finding]:
        assert row.body is not None
        fact = parse_fact(row.body)
        self.facts += 1
        self._latest_ms = max(self._latest_ms, fact.at_ms)
        audit = self._audits.get(fact.subject)
        if audit is None:
            audit = self._audits[fact.subject] = SubjectAudit(fact.subject)
        yield from audit.check(fact)
        self._note_timer(audit)

    def _expire(self, now_ms: int) -> Iterator[Finding]:
        for _, subject in sorted(
            (at_ms, subject) for subject, at_ms in self._timers.items() if at_ms <= now_ms
        ):
            yield from self._audits[subject].expire(now_ms)
            self._note_timer(self._audits[subject])

    def _note_timer(self, audit: SubjectAudit) -> None:
        due_ms = audit.memory.due_ms
        if due_ms is None:
            self._timers.pop(audit.subject, None)
        else:
            self._timers[audit.subject] = due_ms


def findings_of(
    arrivals: ManyOf[Arrival],
    *,
    batch: int = 500,
    begin: bytes | None = None,
    lost: Lost | None = None,
) -> list[Finding]:
    """What the audit says of these arrivals, read in batches of so many."""
    pipeline = Pipeline(begin=begin, lost=nothing_lost if lost is None else lost)
    return [
        finding
        for first in range(0, len(arrivals), batch)
        for finding in pipeline.feed(arrivals[first : first + batch])
    ]
