"""Define what a balancing policy is: a pure function with settings, a memory of its own, and the
measure by which it compares brokers.

A package brings its own policy as an entry point: see `shedder.registry`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Final, Literal, TypeVar

from equipoise.channel.core.records import INTEGER_MAX
from equipoise.shedder.loads import FIGURE_MAX
from equipoise.shedder.plan import Budget, Plan
from equipoise.shedder.snapshot import Snapshot

REPORT_TTL_MS: Final = 1_800_000
"""How long a load report counts, unless a policy has another limit. Pulsar's classic strategies use
a report for ever."""

Value = TypeVar("Value")

MEANING: Final = "meaning"
"""The key of a field's metadata that holds its `Meaning`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The allowed numbers of a setting, from `least` to `most`. If `open`, both bounds are
    excluded.
    """

    least: float = 0
    most: float = FIGURE_MAX
    open: bool = False

    def holds(self, number: float) -> bool:
        """Return whether a number is allowed. NaN never is."""
        return self.least < number < self.most if self.open else self.least <= number <= self.most

    def __str__(self) -> str:
        least = f"above {self.least:g}" if self.open else f"at least {self.least:g}"
        if self.most in (FIGURE_MAX, INTEGER_MAX):
            return least
        return (
            f"{least} and below {self.most:g}"
            if self.open
            else f"from {self.least:g} to {self.most:g}"
        )


ANY: Final = Range()
SHARE: Final = Range(most=1)
COUNT: Final = Range(most=INTEGER_MAX)
SOME: Final = Range(least=1, most=INTEGER_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """The description of a setting, and the range of its numbers. Only numbers use the range."""

    text: str
    range: Range = ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRange:
    """The numbers that a search tries, from `least` to `most`. If `log`, it tries 1 to 2 as often
    as 10 to 20.
    """

    least: float
    most: float
    log: bool = False


EXACT: Final = "Decides exactly as Pulsar's code does, including its faults."
SEARCHED_HISTORY: Final = SearchRange(least=0, most=0.99)


def setting(text: str, numbers: Range = COUNT, *, default: Value) -> Value:
    """Return the field of a policy that is a setting: what it means, and its allowed numbers."""
    return field(default=default, metadata={MEANING: Meaning(text=text, range=numbers)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """What a policy compares brokers by: `use`, the average of the busiest resource, or `cost`, the
    cost of their bundles per capacity. `ttl_ms`: how long a report counts.
    """

    kind: Literal["use", "cost"]
    ttl_ms: int = REPORT_TTL_MS


class Policy(ABC):
    """A balancing policy: a dataclass whose fields are its settings.

    Every policy keeps these rules:

    * No bundle moves twice in a plan.
    * Nothing that is barred takes part.
    * Equal snapshots and memories give equal plans.
    * Every broker that gives nothing has a `Stay`.

    `searched`: the settings that a search may change, and between which numbers: those that can
    help on some load. `waits_rounds`: it acts only after some uneven rounds in a row.
    """

    __slots__ = ()

    searched: ClassVar[Mapping[str, SearchRange]] = MappingProxyType({})
    waits_rounds: ClassVar[bool] = False

    @property
    def measure(self) -> Measure:
        """What the policy compares brokers by."""
        return Measure(kind="use")

    @abstractmethod
    def plan(self, snapshot: Snapshot, memory: object = None) -> tuple[Plan, object]:
        """Return the plan of this round, and what the policy remembers until the next one.

        `memory` is what it returned in its last round at this leader, or None. The fold may reject
        single moves; the next round sees the result.
        """

    def as_if_due(self, snapshot: Snapshot, budget: Budget | None = None, at_ms: int = 0) -> object:
        """Return a memory with which the policy acts in its next round, although it may wait at the
        leader. `budget`: the leader's after its last round, at `at_ms` (Unix time), if known.
        """
        del snapshot, budget, at_ms
        return None
