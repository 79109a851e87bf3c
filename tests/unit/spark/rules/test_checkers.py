"""Tests of the audit of one subject: timers in their place, and checks that fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.spark_jobs.rules.checkers import MEMORIES, NO_OFFSET, SubjectAudit
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.memory import Memory
from equipoise.spark_jobs.rules.rule import Finding

SUBJECT: Final = "broker:b1"


def fact(offset: int, at_ms: int) -> Fact:
    """A fact of the one subject."""
    return Fact(subject=SUBJECT, source="channel", offset=offset, at_ms=at_ms)


def finding(text: str, *, offset: int, at_ms: int) -> Finding:
    """A finding of the one subject."""
    return Finding(
        rule="silent_too_long",
        subject=SUBJECT,
        offsets=(offset,),
        at_ms=at_ms,
        text=text,
        command="",
    )


@dataclass(slots=True, kw_only=True)
class Last(Memory):
    """The last fact, and a timer for a silence of 100 ms."""

    offset: int = 0
    at_ms: int = 0
    wake_ms: int | None = None

    def due_times(self) -> Iterator[int]:
        return iter(() if self.wake_ms is None else (self.wake_ms,))

    def check(self, fact: Fact) -> Iterator[Finding]:
        """Report every fifth fact."""
        self.offset, self.at_ms, self.wake_ms = fact.offset, fact.at_ms, fact.at_ms + 100
        if not fact.offset % 5:
            yield finding("fifth", offset=fact.offset, at_ms=fact.at_ms)

    def expire(self, subject: str, now_ms: int) -> Iterator[Finding]:
        """Report a silence, and when that was noticed if it was long after."""
        self.wake_ms = None
        noticed = f" until {now_ms}" if now_ms > self.at_ms + 10_000 else ""
        yield finding(f"silent{noticed}", offset=self.offset, at_ms=self.at_ms + 100)


class Failing(Last):
    """Fails in its timer, and at each fact with an even offset after a finding."""

    __slots__ = ()

    def check(self, fact: Fact) -> Iterator[Finding]:
        self.offset = fact.offset
        yield finding("before it failed", offset=fact.offset, at_ms=fact.at_ms)
        if not fact.offset % 2:
            raise ValueError("no even offsets, please")
        self.wake_ms = fact.at_ms + 10

    def expire(self, subject: str, now_ms: int) -> Iterator[Finding]:
        raise LookupError("overslept")


def audit_with(memory: type[Memory]) -> SubjectAudit:
    """An audit of a subject that has this memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MEMORIES, "broker", memory)
        return SubjectAudit(SUBJECT)


def test_a_due_timer_runs_before_the_next_fact() -> None:
    """It gets the present time, not its due time."""
    audit = audit_with(Last)
    assert [] == audit.check(fact(1, 1_000))
    assert [] == audit.check(fact(2, 1_100))
    assert [finding("silent", offset=2, at_ms=1_200)] == audit.check(fact(3, 1_201))
    assert 1_301 == audit.memory.due_ms
    assert [finding("silent until 600000", offset=3, at_ms=1_301)] == audit.expire(600_000)


def test_a_failed_check_is_reported_and_empties_the_memory() -> None:
    audit = audit_with(Failing)
    [broken] = audit.check(fact(4, 1_000))
    assert ("audit_broken", SUBJECT, (4,), 1_000) == (
        broken.rule,
        broken.subject,
        broken.offsets,
        broken.at_ms,
    )
    assert "ValueError: no even offsets, please" in broken.text
    assert Failing(failures=1) == audit.memory


def test_of_many_failures_few_are_reported() -> None:
    audit = audit_with(Failing)
    found = [
        found.offsets[-1]
        for offset in range(2, 2_002, 2)
        for found in audit.check(fact(offset, offset))
    ]
    assert [2, 20, 200, 2_000] == found


def test_a_failed_timer_is_reported_without_a_record() -> None:
    audit = audit_with(Failing)
    audit.check(fact(3, 1_000))
    [broken] = audit.expire(1_010)
    assert ("audit_broken", (NO_OFFSET,), 1_010) == (broken.rule, broken.offsets, broken.at_ms)
    assert audit.memory.due_ms is None


@pytest.mark.parametrize("batch_max", [1, 3])
@given(
    steps=st.lists(st.integers(0, 250), max_size=30), cuts=st.lists(st.integers(1, 10), max_size=40)
)
def test_batches_do_not_change_findings(
    batch_max: int, steps: Sequence[int], cuts: Sequence[int]
) -> None:
    """Neither do the moments at which timers run, nor that a memory is stored between two."""
    facts: list[Fact] = []
    for offset, step in enumerate(steps):
        facts.append(fact(offset, step + (facts[-1].at_ms if facts else 0)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(MEMORIES, "broker", Last)
        audit, expected = SubjectAudit(SUBJECT), list[Finding]()
        for each in facts:
            expected += audit.check(each)
        expected += audit.expire((facts[-1].at_ms if facts else 0) - 1)

        stored, found, place = SubjectAudit(SUBJECT), list[Finding](), 0
        for cut in (*cuts, len(facts)):
            batch = (
                facts[place : place + min(cut, batch_max)]
                if place + cut < len(facts)
                else facts[place:]
            )
            place += len(batch)
            stored = SubjectAudit(SUBJECT, orjson.loads(orjson.dumps(stored.memory)))
            for each in batch:
                found += stored.check(each)
            found += stored.expire(facts[place - 1].at_ms - 1 if place else 0)
        assert (expected, audit.memory) == (found, stored.memory)
