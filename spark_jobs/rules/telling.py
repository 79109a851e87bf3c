"""How often findings of one kind about one subject are told.

May live here: the bounds by which a repeated finding is held back. One damaged record may make thousands of those that follow it
look wrong; ten of them say all that there is to say.
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
"""A while, in the log's time."""
TOLD_MAX: Final = 10
"""Findings of one rule about one subject in a while; the first of the next while tells how many came after, or its end."""
TOLD_ONCE: Final = frozenset({"digest_differs"})
"""Of these one in a while is enough: two views that have parted differ at every renewal from then on."""

ALARM: Final = "held back"
"""The name of the alarm at which `tell_held_back` is to be called."""

_NAME: Final = "told"

Marks = dict[str, list[int]]
"""By rule: when its while began, how many were told in it, how many were held back since, and the offset of the last of these."""


def told(marks: Marks, fact: Fact, rule: str, text: str, *, offsets: tuple[int, ...] = ()) -> Iterator[Finding]:
    """The finding that `fact` breaks `rule`, unless enough of its kind were told lately; `offsets` are earlier ones that it is about."""
    earlier = sorted({offset for offset in offsets if offset < fact.offset})
    yield from bounded(marks, fact, (finding(rule, fact, text, offsets=(*earlier, fact.offset)),))


def bounded(marks: Marks, fact: Fact, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Those of the findings about `fact` of whose rule not enough were told lately."""
    for each in findings:
        held_back = _mark(marks, each.rule, fact)
        if held_back:
            yield replace(each, text=f"{each.text} ({held_back} more like it came since the last one that was told)")
        elif held_back == 0:
            yield each


def _mark(marks: Marks, rule: str, fact: Fact) -> int | None:
    """How many were held back before this one, or None if this one is held back, too."""
    began_ms, count, held_back, _ = marks.get(rule, (fact.at_ms, 0, 0, 0))
    if fact.at_ms - began_ms >= TELL_EVERY_MS:
        began_ms, count = fact.at_ms, 0
    if count >= (1 if rule in TOLD_ONCE else TOLD_MAX):
        marks[rule] = [began_ms, count, held_back + 1, fact.offset]
        return None
    marks[rule] = [began_ms, count + 1, 0, 0]
    return held_back


def bounded_in(memory: Memory, fact: Fact, findings: Iterable[Finding]) -> Iterator[Finding]:
    """As `bounded`, with the marks that `memory` keeps of its subject: nothing is kept of one of which nothing was found."""
    found = tuple(findings)
    if found:
        marks: Marks = load(memory, _NAME) or {}
        yield from bounded(marks, fact, found)
        wake_for_held_back(memory, marks)
        save(memory, _NAME, marks)


def tell_held_back_in(memory: Memory, subject: str, now_ms: int) -> Iterator[Finding]:
    """As `tell_held_back`, with the marks that `memory` keeps of its subject."""
    marks: Marks = load(memory, _NAME) or {}
    yield from tell_held_back(marks, subject, now_ms)
    wake_for_held_back(memory, marks)
    save(memory, _NAME, marks)


def forget_marks(memory: Memory) -> None:
    """Forget what was told of the subject of `memory`."""
    memory.remove(_NAME)
    set_alarm(memory, ALARM, None)


def wake_for_held_back(memory: Memory, marks: Marks) -> None:
    """Set the alarm for when what was held back will have to be told, if nothing like it comes before that tells the number."""
    ends = [began_ms + 2 * TELL_EVERY_MS for began_ms, _, held_back, _ in marks.values() if held_back]
    set_alarm(memory, ALARM, min(ends, default=None))


def tell_held_back(marks: Marks, subject: str, now_ms: int) -> Iterator[Finding]:
    """How many findings were held back in a while, if none came in the next one that would have said so."""
    for rule, (began_ms, count, held_back, offset) in sorted(marks.items()):
        if held_back and now_ms - began_ms >= 2 * TELL_EVERY_MS:
            marks[rule] = [began_ms, count, 0, 0]
            text = f"{held_back} more like those that were told came after them, up to offset {offset}"
            yield found(rule, subject, text, offsets=(offset,), at_ms=now_ms)
