"""Check rejected records by reason and publisher: those that no race explains, and too many of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.findings import Finding
from equipoise.spark_jobs.rules.telling import Marks, told
from equipoise.spark_jobs.rules.verdicts import told as record_told

WINDOW_MS: Final = 10_000
"""Length of a counting window in log time. Windows do not overlap."""

NEVER_WRITTEN: Final[Mapping[str, str]] = {
    "malformed": "nobody who has our code spells such a record",
    "not_the_actor": "the tables leave this step to another one",
    "not_adjacent": "a merge names two neighbours",
}
"""Reasons that no race explains, each with its message. One record is a finding."""

NEVER_WRITTEN_OF: Final[Mapping[tuple[str, str], str]] = {
    ("still_alive", "removed"): "only who has left, or is down, is forgotten",
}
"""The same for one status only."""

REJECTED_MAX: Final[Mapping[str, int]] = {
    # Lost races. A death frees ten thousand bundles. Each lookup of a free bundle is a proposal, and all but one may lose.
    "stale": 5_000,
    "late": 5_000,
    # Records in flight when the broker died, and records that a paused broker sends before it reads of its death.
    "dead_publisher": 500,
    # Targets that died or began to drain, and bundles and namespaces that were removed, while the proposal was in flight.
    "dead_target": 500,
    "draining_target": 500,
    "unknown_bundle": 500,
    "namespace_deleting": 500,
    "bundles_in_use": 500,
    # Operators' requests are proposed even if they are impossible.
    "illegal_transition": 500,
    # A process without its data directory tries to join once per renewal while its predecessor looks alive.
    "still_alive": 200,
}
"""Rejections of one reason per window and publisher that are normal.

The simulator's maximum is 103, with operators that send a request every 6 ms.
"""
REJECTED_OTHERWISE_MAX: Final = 100
"""The same limit for every reason that is not in the table."""

KINDS_MAX: Final = 200
"""Pairs of publisher and reason to count in one window. Anyone can invent names of admins."""
OTHERS: Final = "others"


@dataclass(slots=True, kw_only=True)
class Rejections:
    """Rejections in the current window, by `PUBLISHER REASON`: how many, and the offset of the first."""

    window: int = -1
    counts: dict[str, int] = field(default_factory=dict)
    firsts: dict[str, int] = field(default_factory=dict)


def check_rejection(rejections: Rejections, marks: Marks, fact: Fact, publisher: str) -> Iterator[Finding]:
    """Yield what is wrong with a rejected record of `publisher`."""
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
    # Report once per window, when the count passes the limit.
    if count == limit + 1:
        text = f"more than {limit} records of {kind.partition(' ')[0]} were rejected as {reason} within {WINDOW_MS // 1_000} s"
        yield from told(marks, fact, "too_many_rejections", text, offsets=(first,))
