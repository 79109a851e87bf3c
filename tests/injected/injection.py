"""One injected violation: the arrivals, and the findings that name it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.rows import Arrival

Lost = Callable[[int, int], bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A channel with one violation. A finding names it if the finding's rule, subject and one of
    its offsets are among these.

    `lost` answers when the audit asks the log whether records are gone; None if none are.
    """

    arrivals: list[Arrival]
    rules: frozenset[str]
    subjects: frozenset[str]
    offsets: frozenset[int]
    lost: Lost | None = None

    def named_by(self, findings: Iterable[Finding]) -> list[Finding]:
        """Return the findings that name the violation."""
        return [
            finding
            for finding in findings
            if finding.rule in self.rules
            and finding.subject in self.subjects
            and not self.offsets.isdisjoint(finding.offsets)
        ]


def injected(arrivals: list[Arrival], rule: str, subject: str, *offsets: int) -> Injected:
    """Return a channel with a violation of one rule about one subject."""
    return Injected(
        arrivals=arrivals,
        rules=frozenset({rule}),
        subjects=frozenset({subject}),
        offsets=frozenset(offsets),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of violation. `inject` returns a channel with one of them, at a random place, or
    None if it found no place.
    """

    name: str
    inject: Callable[[int, Random], Injected | None]
