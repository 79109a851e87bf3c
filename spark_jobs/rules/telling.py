"""How often findings of one kind about one subject are told.

May live here: the bounds by which a repeated finding is held back. One damaged record may make thousands of those that follow it
look wrong; ten of them say all that there is to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spark_jobs.facts import Fact
from spark_jobs.findings import Finding
from spark_jobs.rules.catalogue import finding

TELL_EVERY_MS: Final = 60_000
"""A while, in the log's time."""
TOLD_MAX: Final = 10
"""Findings of one rule about one subject in a while; of those that come after, the next while's first tells the number."""
TOLD_ONCE: Final = frozenset({"digest_differs"})
"""Of these one in a while is enough: two views that have parted differ at every renewal from then on."""

Marks = dict[str, list[int]]
"""By rule: when its while began, how many were told in it, and how many were held back since."""


def told(marks: Marks, fact: Fact, rule: str, text: str, *, offsets: tuple[int, ...] = ()) -> Iterator[Finding]:
    """The finding that `fact` breaks `rule`, unless enough of its kind were told lately; `offsets` are earlier ones that it is about."""
    held_back = _mark(marks, rule, fact.at_ms)
    if held_back is None:
        return
    more = f" ({held_back} more like it came since the last one that was told)" if held_back else ""
    earlier = sorted({offset for offset in offsets if offset < fact.offset})
    yield finding(rule, fact, text + more, offsets=(*earlier, fact.offset))


def _mark(marks: Marks, rule: str, at_ms: int) -> int | None:
    """How many were held back before this one, or None if this one is held back, too."""
    began_ms, count, held_back = marks.get(rule, (at_ms, 0, 0))
    if at_ms - began_ms >= TELL_EVERY_MS:
        began_ms, count = at_ms, 0
    if count >= (1 if rule in TOLD_ONCE else TOLD_MAX):
        marks[rule] = [began_ms, count, held_back + 1]
        return None
    marks[rule] = [began_ms, count + 1, 0]
    return held_back
