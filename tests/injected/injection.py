"""One injected violation: the arrivals, and the findings that name it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from equipoise.spark_jobs.rules.rule import Finding
from equipoise.spark_jobs.sequence.arrivals import Arrival

Lost = Callable[[int, int], bytes | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injected:
    """A channel with one violation. A finding names it if its rule, its subject and one of its offsets are among these.

    `lost` is what stands for the storage when the audit asks whether records are gone: the snapshot to go on from, or None.
    """

    arrivals: list[Arrival]
    rules: frozenset[str]
    subjects: frozenset[str]
    offsets: frozenset[int]
    lost: Lost | None = None

    def named_by(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings that name it."""
        return [
            finding
            for finding in findings
            if finding.rule in self.rules and finding.subject in self.subjects and not self.offsets.isdisjoint(finding.offsets)
        ]


def injected(arrivals: list[Arrival], rule: str, subject: str, *offsets: int) -> Injected:
    """Return a channel with a violation of one rule about one subject."""
    return Injected(arrivals=arrivals, rules=frozenset({rule}), subjects=frozenset({subject}), offsets=frozenset(offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of violation. `inject` makes a channel with one of it, at a place that the chance decides; None where it found none."""

    name: str
    inject: Callable[[int, Random], Injected | None]
