"""Pass facts to the checker of their subject, run due timers first, and contain checkers that fail.

How the log is cut into batches must not change the findings:

* A due timer runs before the next later fact. Spark alone would run it after the whole batch.
* A timer gets the present log time, not its due time: after an outage of the log nobody is late by its length.
* A note carries the time at the end of its batch, possibly hours after its event. So notes run no timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from equipoise.spark_jobs.rules.catalogue import found
from equipoise.spark_jobs.rules.facts import Fact, SubjectKind
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.memory import Checker, Memory
from equipoise.spark_jobs.sequence.arrivals import Source

NO_OFFSET: Final = 0
"""Offset of a check that failed in a timer, which belongs to no record."""

_CHANNEL: Final = Source.CHANNEL.value
_BROKEN: Final = "broken"  # Name under which a memory counts the failures of its checker.


def judged(checkers: Mapping[SubjectKind, Checker], memory: Memory, fact: Fact) -> list[Finding]:
    """Return the findings of `fact`, after those of its subject's due timer.

    A checker that raises makes a finding and forgets its subject, since its state may be inconsistent.
    """
    checker = checkers[_kind(fact.subject)]
    findings: list[Finding] = []
    if fact.source == _CHANNEL and memory.due_ms is not None and memory.due_ms < fact.at_ms:
        findings += overdue(checkers, memory, fact.subject, fact.at_ms)
    try:
        findings += list(checker.check(memory, fact))
    except Exception as error:  # noqa: BLE001 - no error may stop the audit of other subjects
        findings += _broken(memory, fact.subject, error, offset=fact.offset, at_ms=fact.at_ms)
    return findings


def overdue(checkers: Mapping[SubjectKind, Checker], memory: Memory, subject: str, now_ms: int) -> list[Finding]:
    """Return the findings of a subject whose timer is due at `now_ms`; nothing if it is not due."""
    if memory.due_ms is None or memory.due_ms > now_ms:
        return []
    memory.wake_at(None)
    try:
        return list(checkers[_kind(subject)].expire(memory, subject, now_ms))
    except Exception as error:  # noqa: BLE001 - the same
        return list(_broken(memory, subject, error, offset=NO_OFFSET, at_ms=now_ms))


def _broken(memory: Memory, subject: str, error: Exception, *, offset: int, at_ms: int) -> Iterable[Finding]:
    """Report a checker's first, tenth, hundredth ... failure of a subject, so that it does not flood the findings."""
    times = int(memory.get(_BROKEN) or b"0") + 1
    for name in tuple(memory.names("")):
        memory.remove(name)
    memory.wake_at(None)
    memory.put(_BROKEN, str(times).encode())
    if str(times).strip("0") != "1":
        return
    problem = f"{type(error).__name__}: {error}"
    text = f"the check of {subject} failed at offset {offset}, and forgot what it knew of it (time {times}): {problem}"
    yield found("audit_broken", subject, text, offsets=(offset,), at_ms=at_ms)


def _kind(subject: str) -> SubjectKind:
    kind, _, _ = subject.partition(":")
    return kind  # type: ignore[return-value]  # The subjects are our own: each begins with its kind.
