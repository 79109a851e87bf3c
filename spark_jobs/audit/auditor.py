"""Audit a channel in one process: fold it, and check the facts of each subject at once.

Spark spreads subjects over several auditors, which find the same.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from typing import Final
from zlib import crc32

import orjson

from equipoise.spark_jobs.rules.checkers import SubjectAudit
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.membership.view import IN_FLIGHT_MAX_MS
from equipoise.spark_jobs.rules.memory import StateRow
from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.folding import Lost
from equipoise.spark_jobs.sequence.rows import Arrival, Source
from equipoise.spark_jobs.sequence.sequence import FactSequence, nothing_lost

WATERMARK_MS: Final = 1_000
"""How long after its time a timer runs, if no fact of its subject comes."""

AT_ONCE: Final = 1_000
"""Entries between two searches for cycles: some megabytes."""

_SUBJECT: Final = "subject:"
_LATEST: Final = "latest_ms"


class Auditor:
    """The audit of one channel."""

    def __init__(
        self,
        *,
        begin: bytes | None = None,
        lost: Lost = nothing_lost,
        log: str | None = None,
        in_flight_max_ms: int = IN_FLIGHT_MAX_MS,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        """Begin at the log's first record, or from the snapshot `begin`. The arguments are those of
        `FactSequence`.

        With `shard`, its number and the count of shards, check only the subjects of that shard.
        """
        self._number, self._count = shard
        self.sequence = FactSequence(
            begin,
            lost=lost,
            log=log,
            in_flight_max_ms=in_flight_max_ms,
            concerns=self._concerns,
        )
        self._audits: dict[str, SubjectAudit] = {}
        self._timers: dict[str, int] = {}
        self._latest_ms = 0
        self._touched: dict[str, None] = {}

    def feed(self, batch: Iterable[Arrival]) -> list[Finding]:
        """Return the findings of one batch: first of its facts, then of the timers that are due
        after it.
        """
        entries = sorted(
            batch, key=lambda arrival: (arrival.source != Source.CHANNEL, arrival.source)
        )
        findings: list[Finding] = []
        for first in range(0, len(entries), AT_ONCE):
            # Searching for cycles costs a fifth of the time. There are few, which wait here.
            gc.disable()
            try:
                for fact in self.sequence.feed(entries[first : first + AT_ONCE]):
                    self._check(fact, findings)
            finally:
                gc.enable()
        self._latest_ms = max(self._latest_ms, self.sequence.facts_ms)
        self._expire(self._latest_ms - WATERMARK_MS, findings)
        return findings

    def _concerns(self, subject: str) -> bool:
        return self._count == 1 or crc32(subject.encode()) % self._count == self._number

    def _check(self, fact: Fact, findings: list[Finding]) -> None:
        audit = self._audits.get(fact.subject)
        if audit is None:
            audit = self._audits[fact.subject] = SubjectAudit(fact.subject)
        findings += audit.check(fact)
        self._note(audit)

    def _expire(self, now_ms: int, findings: list[Finding]) -> None:
        due = [(at_ms, name) for name, at_ms in self._timers.items() if at_ms <= now_ms]
        for _, name in sorted(due):
            findings += self._audits[name].expire(now_ms)
            self._note(self._audits[name])

    def _note(self, audit: SubjectAudit) -> None:
        """Remember that an audit changed, and when its timer is due."""
        self._touched[audit.subject] = None
        due_ms = audit.memory.due_ms
        if due_ms is None:
            self._timers.pop(audit.subject, None)
        else:
            self._timers[audit.subject] = due_ms

    @property
    def state_rows(self) -> int:
        """How many subjects are remembered."""
        return len(self._audits)

    def changed_rows(self) -> list[StateRow]:
        """Return the rows of state that changed since the last call; None for removed ones."""
        rows: list[StateRow] = [
            *self.sequence.changed_rows(),
            (_LATEST, orjson.dumps(self._latest_ms)),
        ]
        for name in self._touched:
            audit = self._audits[name]
            if audit.is_blank:  # It takes no room, and need not be known any more.
                del self._audits[name]
                rows.append((f"{_SUBJECT}{name}", None))
            else:
                rows.append((f"{_SUBJECT}{name}", orjson.dumps(audit.memory)))
        self._touched.clear()
        return rows

    def restore(self, rows: Mapping[str, bytes]) -> None:
        """Continue from the state in these rows, which may be of all shards. Raise what
        `FactSequence.restore` raises.
        """
        self.sequence.restore(rows)
        self._latest_ms = orjson.loads(rows[_LATEST])
        for key, data in rows.items():
            if key.startswith(_SUBJECT):
                name = key.removeprefix(_SUBJECT)
                if self._concerns(name):
                    audit = self._audits[name] = SubjectAudit(name, orjson.loads(data))
                    self._note(audit)
        self._touched.clear()
