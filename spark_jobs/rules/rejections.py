"""Rejected records by reason and publisher: what nobody writes by a race, and how much of the rest is too much.

May live here: the rules `writes_what_it_may_not` and `too_many_rejections`, with their bounds as data, and what is counted for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.telling import Marks, told
from equipoise.spark_jobs.rules.verdicts import told as record_told

WINDOW_MS: Final = 10_000
"""Rejections are counted in windows of the log's time that follow one another."""

NEVER_WRITTEN: Final[Mapping[str, str]] = {
    "malformed": "nobody who has our code spells such a record",
    "not_the_actor": "the tables leave this step to another one",
    "not_adjacent": "a merge names two neighbours",
}
"""Reasons that nobody meets by a race, with what they say: one record is a finding."""

NEVER_WRITTEN_OF: Final[Mapping[tuple[str, str], str]] = {
    ("still_alive", "removed"): "only who has left, or is down, is forgotten",
}
"""The same of one status alone."""

REJECTED_MAX: Final[Mapping[str, int]] = {
    # Races lost. A death frees ten thousand bundles, and each lookup of a free one is a proposal that all others may lose.
    "stale": 5_000,
    "late": 5_000,
    # What was under way when the broker died, and what a broker that was paused sends before it reads of its death.
    "dead_publisher": 500,
    # Targets that died or began to drain, bundles and namespaces that went, while a proposal was on its way.
    "dead_target": 500,
    "draining_target": 500,
    "unknown_bundle": 500,
    "namespace_deleting": 500,
    "bundles_in_use": 500,
    # What operators ask for is proposed, also what cannot be.
    "illegal_transition": 500,
    # A process without its data directory asks to join once each renewal, for as long as its predecessor looks alive.
    "still_alive": 200,
}
"""How many rejections of one reason are in order in one window of one publisher. The simulator's worst is 103, of operators that ask
for something every 6 ms."""
REJECTED_OTHERWISE_MAX: Final = 100
"""The same, of every reason that the table does not name."""

KINDS_MAX: Final = 200
"""Pairs of publisher and reason that are counted in one window: names of admins are anybody's to invent."""
OTHERS: Final = "others"


@dataclass(slots=True, kw_only=True)
class Rejections:
    """What was rejected in the present window: how often by `PUBLISHER REASON`, and at which offset first."""

    window: int = -1
    counts: dict[str, int] = field(default_factory=dict)
    firsts: dict[str, int] = field(default_factory=dict)


def check_rejection(rejections: Rejections, marks: Marks, fact: Fact, publisher: str) -> Iterator[Finding]:
    """What is wrong with a record of `publisher` that was rejected."""
    reason = fact.verdict
    if reason is None:
        return
    why = NEVER_WRITTEN.get(reason) or NEVER_WRITTEN_OF.get((reason, str((fact.record or {}).get("status"))))
    if why is not None:
        text = f"{record_told(fact)}, about {str((fact.record or {}).get('key'))[:256]}, was rejected as {reason}: {why}"
        yield from told(marks, fact, "writes_what_it_may_not", text)
    window = fact.at_ms // WINDOW_MS
    if window != rejections.window:
        rejections.window, rejections.counts, rejections.firsts = window, {}, {}
    kind = f"{publisher} {reason}"
    if kind not in rejections.counts and len(rejections.counts) >= KINDS_MAX:
        kind = f"{OTHERS} {reason}"
    count = rejections.counts[kind] = rejections.counts.get(kind, 0) + 1
    first = rejections.firsts.setdefault(kind, fact.offset)
    limit = REJECTED_MAX.get(reason, REJECTED_OTHERWISE_MAX)
    # Once in each window: when the count passes the limit.
    if count == limit + 1:
        text = f"more than {limit} records of {kind.partition(' ')[0]} were rejected as {reason} within {WINDOW_MS // 1_000} s"
        yield from told(marks, fact, "too_many_rejections", text, offsets=(first,))
