"""The streaming audit without Spark: the sequential operator and the keyed checkers, each batch through both.

May live here: what Spark does between the two pure parts, in the smallest form that keeps its order: facts reach a subject in the
order in which they were emitted, through `spark_jobs.audit.keyed_checks`, and what is due after the last of them is looked at once the
log's time has passed it by as much as the watermark is late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as ManyOf
from typing import Final

from equipoise.spark_jobs.audit.keyed_checks import judged, overdue
from equipoise.spark_jobs.rules.checkers import CHECKERS
from equipoise.spark_jobs.rules.facts import parse_fact
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.membership.view import Membership
from equipoise.spark_jobs.rules.memory import DictMemory
from equipoise.spark_jobs.sequence.arrivals import Arrival, Source
from equipoise.spark_jobs.sequence.emitted import Emitted, Table
from equipoise.spark_jobs.sequence.parts import Lost, Plugs, nothing_lost
from equipoise.spark_jobs.sequence.sequence import Sequence

WATERMARK_MS: Final = 1_000
"""How late the watermark of the streaming query is behind the latest fact."""

_FACTS: Final = frozenset({Table.FACTS})


class Pipeline:
    """One audit. `facts` counts what the checkers have judged."""

    def __init__(self, *, begin: bytes | None = None, lost: Lost = nothing_lost) -> None:
        """Begin at the log's first record, or from the snapshot `begin`."""
        self.facts = 0
        self._sequence = Sequence(_FACTS, begin, plugs=Plugs(opinion=Membership(), lost=lost))
        self._memories: dict[str, DictMemory] = {}
        self._timers: dict[str, int] = {}
        self._latest_ms = 0

    def feed(self, batch: Iterable[Arrival]) -> Iterator[Finding]:
        """The findings of one batch: first of its facts, then of the timers that are due after it."""
        entries = sorted(batch, key=lambda arrival: (arrival.source != Source.CHANNEL, arrival.source))
        for row in self._sequence.feed(entries):
            yield from self._judge(row)
        yield from self._expire(self._latest_ms - WATERMARK_MS)

    def _judge(self, row: Emitted) -> Iterator[Finding]:
        assert row.body is not None
        fact = parse_fact(row.body)
        self.facts += 1
        self._latest_ms = max(self._latest_ms, fact.at_ms)
        memory = self._memories.get(fact.subject)
        if memory is None:
            memory = self._memories[fact.subject] = DictMemory()
        yield from judged(CHECKERS, memory, fact)
        self._note_timer(fact.subject, memory)

    def _expire(self, now_ms: int) -> Iterator[Finding]:
        due = sorted((at_ms, subject) for subject, at_ms in self._timers.items() if at_ms <= now_ms)
        for _, subject in due:
            memory = self._memories[subject]
            yield from overdue(CHECKERS, memory, subject, now_ms)
            self._note_timer(subject, memory)

    def _note_timer(self, subject: str, memory: DictMemory) -> None:
        if memory.due_ms is None:
            self._timers.pop(subject, None)
        else:
            self._timers[subject] = memory.due_ms


def findings_of(arrivals: ManyOf[Arrival], *, batch: int = 500, begin: bytes | None = None, lost: Lost | None = None) -> list[Finding]:
    """What the audit says of these arrivals, read in batches of so many."""
    pipeline = Pipeline(begin=begin, lost=nothing_lost if lost is None else lost)
    return [finding for first in range(0, len(arrivals), batch) for finding in pipeline.feed(arrivals[first : first + batch])]
