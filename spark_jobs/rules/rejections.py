"""Check rejected records by reason and publisher: those that no race explains, and too many of the
others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from equipoise.spark_jobs.rules.facts import Fact
from equipoise.spark_jobs.rules.rule import (
    ACCEPTED,
    CHECK_THE_BROKER,
    NOT_FOLDED,
    Case,
    Violation,
    Violations,
    rule,
)

WINDOW_MS: Final = 10_000
"""Length of a counting window in log time. Windows do not overlap."""

NEVER_WRITTEN: Final[Mapping[str, str]] = {
    "malformed": "no program with this project's code writes this",
    "not_the_actor": "the transition table reserves this step for another broker",
    "not_adjacent": "a merge names two neighbours",
}
"""Reasons that no race explains, each with its message. One record is a finding."""

REJECTED_MAX: Final[Mapping[str, int]] = {
    # Lost races. A death frees ten thousand bundles. Each lookup of a free bundle is a proposal,
    # and all but one may lose.
    "stale": 5_000,
    "late": 5_000,
    # Records in flight when the broker died, and records that a paused broker sends before it reads
    # of its death.
    "dead_publisher": 500,
    # Targets that died or began to drain, and bundles and namespaces that were removed, while the
    # proposal was in flight.
    "dead_target": 500,
    "draining_target": 500,
    "not_served": 500,
    "unknown_bundle": 500,
    "namespace_deleting": 500,
    "bundles_in_use": 500,
    # Operators' requests are proposed even if they are impossible.
    "illegal_transition": 500,
    # A process without its data directory tries to join once per renewal while its predecessor
    # looks alive.
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
    """Rejections in the current window, by `PUBLISHER REASON`: how many, and the offset of the
    first.
    """

    window: int = -1
    counts: dict[str, int] = field(default_factory=dict)
    firsts: dict[str, int] = field(default_factory=dict)

    def count(self, fact: Fact, publisher: str) -> Rejected:
        """Count the rejected record of `publisher` in `fact`."""
        window = fact.at_ms // WINDOW_MS
        if window != self.window:
            self.window, self.counts, self.firsts = window, {}, {}
        kind = f"{publisher} {fact.verdict}"
        if kind not in self.counts and len(self.counts) >= KINDS_MAX:
            kind = f"{OTHERS} {fact.verdict}"
        count = self.counts[kind] = self.counts.get(kind, 0) + 1
        return Rejected(
            publisher=kind.partition(" ")[0],
            count=count,
            first=self.firsts.setdefault(kind, fact.offset),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A rejected record, as the `count`-th of its publisher and reason in the window that began
    with the record at `first`.
    """

    publisher: str
    count: int
    first: int


class RejectionCase(Case):
    """The record of a broker or an admin. `rejected` is None unless it was rejected and this
    subject counts it.
    """

    rejected: Rejected | None = None

    def count(self, rejections: Rejections, publisher: str) -> None:
        """Count the record of `publisher` if it was rejected."""
        if self.fact.verdict in (None, ACCEPTED, NOT_FOLDED):
            return
        if "follows" not in self.fact.context:
            self.rejected = rejections.count(self.fact, publisher)


@rule(
    "broker",
    "warning",
    on=("broker", "log"),
    means="The broker has a defect, or somebody writes in its name.",
    remedy=CHECK_THE_BROKER,
)
def writes_what_it_may_not(case: RejectionCase) -> Violations:
    """A broker does not propose what the transition table reserves for others."""
    if case.rejected is None:
        return
    reason, why = str(case.fact.verdict), NEVER_WRITTEN.get(str(case.fact.verdict))
    if reason == "still_alive" and case.record.get("status") == "removed":
        why = "only a broker that has left or is down may be removed"
    if why is not None:
        yield Violation(
            f"{case.what}, about {str(case.record.get('key'))[:256]}, was rejected as {reason}:"
            f" {why}"
        )


@rule(
    "broker",
    "warning",
    on=("broker", "log"),
    means="A publisher repeats proposals that cannot succeed, and fills the log with them.",
    remedy=CHECK_THE_BROKER,
)
def too_many_rejections(case: RejectionCase) -> Violations:
    """Of each publisher, few records are rejected for the same reason."""
    rejected, reason = case.rejected, str(case.fact.verdict)
    limit = REJECTED_MAX.get(reason, REJECTED_OTHERWISE_MAX)
    if rejected is not None and rejected.count == limit + 1:
        text = (
            f"more than {limit} records of {rejected.publisher} were rejected as {reason} within"
            f" {WINDOW_MS // 1_000} s"
        )
        yield Violation(text, offsets=(rejected.first,))
