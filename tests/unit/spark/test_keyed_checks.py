"""Facts through checkers: time-outs in their place, checkers that fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.spark_jobs.audit.keyed_checks import NO_OFFSET, judged, overdue
from equipoise.spark_jobs.rules.facts import Fact, SubjectKind
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.memory import Checker, DictMemory, Memory
from tests.spark_state import FakeSpark

SUBJECT = "broker:b1"


def fact(offset: int, at_ms: int) -> Fact:
    """A fact of the one subject."""
    return Fact(subject=SUBJECT, source="channel", offset=offset, at_ms=at_ms)


def finding(text: str, *, offset: int, at_ms: int) -> Finding:
    """A finding of the one subject."""
    return Finding(rule="silent_too_long", subject=SUBJECT, offsets=(offset,), at_ms=at_ms, text=text, command="")


class Silence:
    """Finds a subject silent that had no fact for 100 ms; keeps where the last one was, and which thirds of offsets it has seen."""

    def check(self, memory: Memory, fact: Fact) -> Iterable[Finding]:
        memory.put("last", f"{fact.offset} {fact.at_ms}".encode())
        memory.put(f"third:{fact.offset % 3}", b"seen")
        memory.wake_at(fact.at_ms + 100)
        if not fact.offset % 5:
            memory.remove("third:0")
            yield finding(f"{len(tuple(memory.names('third:')))} of three", offset=fact.offset, at_ms=fact.at_ms)

    def expire(self, memory: Memory, subject: str, now_ms: int) -> Iterable[Finding]:
        offset, at_ms = map(int, (memory.get("last") or b"").split())
        yield finding("silent", offset=offset, at_ms=at_ms + 100)


class Failing:
    """Fails at each fact with an even offset, and whenever it is woken."""

    def check(self, memory: Memory, fact: Fact) -> Iterable[Finding]:
        memory.put("half", b"done")
        yield finding("before it failed", offset=fact.offset, at_ms=fact.at_ms)
        if not fact.offset % 2:
            raise ValueError("no even offsets, please")
        memory.wake_at(fact.at_ms + 10)

    def expire(self, memory: Memory, subject: str, now_ms: int) -> Iterable[Finding]:
        raise LookupError("overslept")


SILENCE: Final[Mapping[SubjectKind, Checker]] = {"broker": Silence()}
FAILING: Final[Mapping[SubjectKind, Checker]] = {"broker": Failing()}


def test_a_time_out_is_looked_at_before_the_fact_that_comes_after_it() -> None:
    """A fact that comes too late does not hide that it came too late."""
    memory = DictMemory()
    checkers = SILENCE
    assert [] == judged(checkers, memory, fact(1, 1_000))
    assert [] == judged(checkers, memory, fact(2, 1_100))
    assert [finding("silent", offset=2, at_ms=1_200)] == judged(checkers, memory, fact(3, 1_201))
    assert 1_301 == memory.due_ms


def test_a_checker_is_told_the_time_at_which_it_is_woken() -> None:
    """After an outage of the log a checker learns how late it is, so that it can give everybody time to come back."""
    told: list[int] = []

    class Noting(Silence):
        def expire(self, memory: Memory, subject: str, now_ms: int) -> Iterable[Finding]:
            told.append(now_ms)
            return ()

    memory = DictMemory()
    for at_ms in (1_000, 500_000):
        judged({"broker": Noting()}, memory, fact(1, at_ms))
    overdue({"broker": Noting()}, memory, SUBJECT, 600_000)
    assert [500_000, 600_000] == told


def test_a_checker_that_fails_is_told_and_forgets() -> None:
    """A check that raises makes one finding that names the record; half of a memory is worse than none, so it is emptied."""
    memory = DictMemory()
    [broken] = judged(FAILING, memory, fact(4, 1_000))
    assert ("audit_broken", SUBJECT, (4,), 1_000) == (broken.rule, broken.subject, broken.offsets, broken.at_ms)
    assert "ValueError: no even offsets, please" in broken.text
    assert {"broken": b"1"} == memory.values


def test_a_checker_that_always_fails_does_not_flood() -> None:
    """Of a thousand failures of one subject the first is told, the tenth, the hundredth and the thousandth."""
    memory = DictMemory()
    found = [found.offsets[-1] for offset in range(2, 2_002, 2) for found in judged(FAILING, memory, fact(offset, offset))]
    assert [2, 20, 200, 2_000] == found


def test_a_time_out_that_fails_is_told_at_no_record() -> None:
    """A checker that fails when it is woken makes the same finding, of no record."""
    memory = DictMemory()
    checkers = FAILING
    judged(checkers, memory, fact(3, 1_000))
    [broken] = overdue(checkers, memory, SUBJECT, 1_010)
    assert ("audit_broken", (NO_OFFSET,), 1_010) == (broken.rule, broken.offsets, broken.at_ms)
    assert memory.due_ms is None


@pytest.mark.parametrize("batches_max", [1, 3])
@given(steps=st.lists(st.integers(0, 250), max_size=30), cuts=st.lists(st.integers(1, 10), max_size=40))
def test_batches_change_nothing(batches_max: int, steps: Sequence[int], cuts: Sequence[int]) -> None:
    """However facts are cut into batches, and whenever the timers of Spark go off, the same is found, and the same remembered."""
    facts: list[Fact] = []
    for offset, step in enumerate(steps):
        facts.append(fact(offset, step + (facts[-1].at_ms if facts else 0)))
    checkers = SILENCE
    memory, expected = DictMemory(), list[Finding]()
    for each in facts:
        expected += judged(checkers, memory, each)
    end_ms = facts[-1].at_ms if facts else 0
    expected += overdue(checkers, memory, SUBJECT, end_ms - 1)

    spark, found, place = FakeSpark(), list[Finding](), 0
    for cut in (*cuts, len(facts)):
        batch = facts[place : place + min(cut, batches_max)] if place + cut < len(facts) else facts[place:]
        place += len(batch)
        found += spark.batch(checkers, SUBJECT, batch)
        found += spark.advance(checkers, SUBJECT, facts[place - 1].at_ms - 1 if place else 0)
    assert expected == found
    assert memory.values == spark.values()
    assert memory.due_ms == spark.due_ms()
