"""One fact after another through the checker of its subject: time-outs in their place, and checkers that fail.

May live here: what stands between whoever brings facts (`spark_jobs.audit.keyed_operator`, the tests) and the checkers of
`spark_jobs.rules`.

Time-outs belong to the log's time, so a timer that is due before a fact is looked at before that fact, although Spark would only tell
of it after the whole batch: that a record came too late does not depend on how the log was cut into batches. A checker is told the
log's time as it is then, not when its timer was due: after an outage of the log nobody was late by the hours that nobody could write.
What stands beside the log bears the time at the end of its batch, which may be hours after what it tells of: before it nothing is due.
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
"""What stands for the offset of a check that failed at a time-out, which is at no record."""

_CHANNEL: Final = Source.CHANNEL.value
_BROKEN: Final = "broken"  # The name under which a memory counts how often its checker failed.


def judged(checkers: Mapping[SubjectKind, Checker], memory: Memory, fact: Fact) -> list[Finding]:
    """What is wrong with `fact`, and before it with what should have happened by then to its subject.

    A checker that raises makes a finding, and forgets its subject: what it knew of it may be half of one thing and half of another.
    """
    checker = checkers[_kind(fact.subject)]
    findings: list[Finding] = []
    if fact.source == _CHANNEL and memory.due_ms is not None and memory.due_ms < fact.at_ms:
        findings += overdue(checkers, memory, fact.subject, fact.at_ms)
    try:
        findings += list(checker.check(memory, fact))
    except Exception as error:  # noqa: BLE001 - whatever it is, the audit of all other subjects goes on
        findings += _broken(memory, fact.subject, error, offset=fact.offset, at_ms=fact.at_ms)
    return findings


def overdue(checkers: Mapping[SubjectKind, Checker], memory: Memory, subject: str, now_ms: int) -> list[Finding]:
    """What is wrong with a subject whose timer was due at `now_ms` or before; nothing if it was not."""
    if memory.due_ms is None or memory.due_ms > now_ms:
        return []
    memory.wake_at(None)
    try:
        return list(checkers[_kind(subject)].expire(memory, subject, now_ms))
    except Exception as error:  # noqa: BLE001 - as above
        return list(_broken(memory, subject, error, offset=NO_OFFSET, at_ms=now_ms))


def _broken(memory: Memory, subject: str, error: Exception, *, offset: int, at_ms: int) -> Iterable[Finding]:
    """The first failure of a subject's checker is told, then the tenth, the hundredth: one that always fails must not flood."""
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
    return kind  # type: ignore[return-value]  # Facts are ours: each subject begins with its kind.
