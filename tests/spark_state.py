"""Spark's state and timers for one key, in a dict: what `spark_jobs.audit.keyed_operator.KeyedMemory` stands on, without a JVM.

May live here: the fake, and the counting of what it is asked, since each such call costs a round trip.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from equipoise.spark_jobs.audit.keyed_checks import judged, overdue
from equipoise.spark_jobs.audit.keyed_operator import KeyedMemory
from equipoise.spark_jobs.rules.facts import Fact, SubjectKind
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.memory import Checker


class FakeSpark:
    """A `MapState` and the timers of one key; `calls` counts what is asked of them."""

    def __init__(self) -> None:
        self.rows: dict[str, bytes] = {}
        self.timers: set[int] = set()
        self.calls: Counter[str] = Counter()

    def getValue(self, key: tuple[str]) -> tuple[bytes] | None:  # noqa: N802 - Spark's name, as those below
        self.calls["get"] += 1
        return (self.rows[key[0]],) if key[0] in self.rows else None

    def updateValue(self, key: tuple[str], value: tuple[bytes]) -> None:  # noqa: N802
        self.calls["put"] += 1
        self.rows[key[0]] = value[0]

    def removeKey(self, key: tuple[str]) -> None:  # noqa: N802
        self.calls["remove"] += 1
        self.rows.pop(key[0], None)

    def keys(self) -> Iterator[tuple[str]]:
        self.calls["keys"] += 1
        return iter([(name,) for name in self.rows])

    def registerTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self.calls["register"] += 1
        self.timers.add(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:  # noqa: N802, N803
        self.calls["delete"] += 1
        self.timers.remove(expiryTimestampMs)

    def batch(self, checkers: Mapping[SubjectKind, Checker], subject: str, facts: Sequence[Fact]) -> list[Finding]:
        """One batch with these facts; without facts the key is not called."""
        if not facts:
            return []
        memory = KeyedMemory(self, self)
        found = [finding for fact in facts for finding in judged(checkers, memory, fact)]
        memory.flush()
        return found

    def advance(self, checkers: Mapping[SubjectKind, Checker], subject: str, watermark_ms: int) -> list[Finding]:
        """The timers that are due go off, each by itself, as at the end of a batch."""
        found = []
        for due_ms in sorted(timer for timer in self.timers if timer <= watermark_ms):
            self.timers.remove(due_ms)
            memory = KeyedMemory(self, self, fired=True)
            found += overdue(checkers, memory, subject, watermark_ms)
            memory.flush()
        return found

    def values(self) -> dict[str, bytes]:
        """All that is remembered under names."""
        memory = KeyedMemory(self, self)
        return {name: memory.get(name) or b"" for name in memory.names("")}

    def due_ms(self) -> int | None:
        """When the checker wants to be woken."""
        return KeyedMemory(self, self).due_ms
