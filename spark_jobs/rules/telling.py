"""Limit how often findings of one rule about one subject are reported.

One damaged record can make thousands of later ones look wrong. Ten of them are enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from equipoise.spark_jobs.rules.catalogue import finding, found
from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.memory import Memory, load, save, set_alarm

TELL_EVERY_MS: Final = 60_000
"""Length of a reporting period in log time."""
TOLD_MAX: Final = 10
"""Findings of one rule about one subject in a period. The next finding, or the end of the next period, reports how many were held back."""
TOLD_ONCE: Final = frozenset({"digest_differs"})
"""One per period is enough for these: two views that differ once differ at every later renewal."""

ALARM: Final = "held back"
"""Name of the alarm that calls `tell_held_back`."""

_NAME: Final = "told"

Marks = dict[str, list[int]]
"""By rule: start of the period, findings reported in it, findings held back since, and the offset of the last one held back."""


def told(marks: Marks, fact: Fact, rule: str, text: str, *, offsets: tuple[int, ...] = ()) -> Iterator[Finding]:
    """Yield the finding that `fact` breaks `rule`, unless the limit is reached. `offsets` are the earlier offsets that it concerns."""
    earlier = sorted({offset for offset in offsets if offset < fact.offset})
    yield from bounded(marks, fact, (finding(rule, fact, text, offsets=(*earlier, fact.offset)),))


def bounded(marks: Marks, fact: Fact, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings about `fact` that are within the limit of their rule."""
    for each in findings:
        held_back = _mark(marks, each.rule, fact)
        if held_back:
            yield replace(each, text=f"{each.text} ({held_back} more like it came since the last one that was told)")
        elif held_back == 0:
            yield each


def _mark(marks: Marks, rule: str, fact: Fact) -> int | None:
    """Return how many findings were held back before this one; None if it is held back too."""
    began_ms, count, held_back, _ = marks.get(rule, (fact.at_ms, 0, 0, 0))
    if fact.at_ms - began_ms >= TELL_EVERY_MS:
        began_ms, count = fact.at_ms, 0
    if count >= (1 if rule in TOLD_ONCE else TOLD_MAX):
        marks[rule] = [began_ms, count, held_back + 1, fact.offset]
        return None
    marks[rule] = [began_ms, count + 1, 0, 0]
    return held_back


def bounded_in(memory: Memory, fact: Fact, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Do the same as `bounded`, with the marks kept in `memory`."""
    found = tuple(findings)
    if found:
        marks: Marks = load(memory, _NAME) or {}
        yield from bounded(marks, fact, found)
        wake_for_held_back(memory, marks)
        save(memory, _NAME, marks)


def tell_held_back_in(memory: Memory, subject: str, now_ms: int) -> Iterator[Finding]:
    """Do the same as `tell_held_back`, with the marks kept in `memory`."""
    marks: Marks = load(memory, _NAME) or {}
    yield from tell_held_back(marks, subject, now_ms)
    wake_for_held_back(memory, marks)
    save(memory, _NAME, marks)


def forget_marks(memory: Memory) -> None:
    """Forget what was reported about the subject of `memory`."""
    memory.remove(_NAME)
    set_alarm(memory, ALARM, None)


def wake_for_held_back(memory: Memory, marks: Marks) -> None:
    """Set the alarm that reports the number held back if no later finding does so first."""
    ends = [began_ms + 2 * TELL_EVERY_MS for began_ms, _, held_back, _ in marks.values() if held_back]
    set_alarm(memory, ALARM, min(ends, default=None))


def tell_held_back(marks: Marks, subject: str, now_ms: int) -> Iterator[Finding]:
    """Report how many findings were held back in a period, if none in the next period did."""
    for rule, (began_ms, count, held_back, offset) in sorted(marks.items()):
        if held_back and now_ms - began_ms >= 2 * TELL_EVERY_MS:
            marks[rule] = [began_ms, count, 0, 0]
            text = f"{held_back} more like those that were told came after them, up to offset {offset}"
            yield found(rule, subject, text, offsets=(offset,), at_ms=now_ms)
