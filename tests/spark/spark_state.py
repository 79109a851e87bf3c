"""Spark's state and timers for one subject, without a JVM. Each call of Spark's state costs a round
trip, so calls are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from equipoise.spark_jobs.audit.keyed_operator import StoredAudit
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.rule import Finding


class FakeSpark:
    """A `ValueState` and the timers of one subject. `calls` counts the calls."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.value: tuple[bytes] | None = None
        self.timers: set[int] = set()
        self.calls: Counter[str] = Counter()

    def get(self) -> tuple[bytes] | None:
        self.calls["get"] += 1
        return self.value

    def update(self, newValue: tuple[bytes]) -> None:  # noqa: N803 - Spark's name, as those below
        self.calls["update"] += 1
        self.value = newValue

    def clear(self) -> None:
        self.calls["clear"] += 1
        self.value = None

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self.calls["register"] += 1
        self.timers.add(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self.calls["delete"] += 1
        self.timers.remove(expiryTimestampMs)

    def audit(self, *, fired: bool = False) -> StoredAudit:
        """Return the audit in the state."""
        return StoredAudit(self.subject, self, self, fired=fired)

    def batch(self, facts: Sequence[Fact]) -> list[Finding]:
        """Check the facts of one batch. Spark does not call a subject without facts."""
        if not facts:
            return []
        stored = self.audit()
        found = [finding for fact in facts for finding in stored.audit.check(fact)]
        stored.save()
        return found

    def advance(self, watermark_ms: int) -> list[Finding]:
        """Fire the due timers, as at the end of a batch."""
        found = []
        for due_ms in sorted(timer for timer in self.timers if timer <= watermark_ms):
            self.timers.remove(due_ms)
            stored = self.audit(fired=True)
            found += stored.audit.expire(watermark_ms)
            stored.save()
        return found
