"""Define a balancer's answer: which bundles move where and why, and why the others stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

# Pulsar's names for the result and the cause of a round, as in its counters.
Result = Literal["Success", "Skip", "Failure"]
_LONG_MS: Final = 120_000  # From here on minutes are exact enough.
_REASONS_MAX: Final = 4  # Of groups of brokers; they fit into one record.

Cause = Literal[
    "Overloaded",
    "Underloaded",
    "HitCount",
    "NoBundles",
    "CoolDown",
    "OutDatedData",
    "NoLoadData",
    "NoBrokers",
    "Unknown",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What a policy expects of a move.

    * `source`, `destination`: the load of that broker before and after the move, as fractions of
      the mean load of all brokers. Moves earlier in the plan count as done.
    * `duration_ms`: from the request until the destination owns the bundle; None: unknown.
    """

    source: tuple[float, float]
    destination: tuple[float, float]
    duration_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Move `bundle` from the broker `source` to the broker `destination`; None: placement chooses.

    `reason` is recorded with it. `cause` names the end whose load is wrong. `predicted`: None if
    the policy predicts nothing.
    """

    bundle: str
    source: str
    destination: str | None
    reason: str
    cause: Cause = "Overloaded"
    predicted: Predicted | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Why a broker gives nothing, or a bundle does not move."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Why a whole round moves nothing: by Pulsar's names, and in a sentence."""

    result: Result
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The load that may move in an hour, as a share of all load: how much of it is used, and what
    that keeps from moving.

    `blocks`: whether it keeps a bundle from a move that would help. `free_in_ms`: until the first
    such bundle may move; None: never.
    """

    most: float
    used: float
    blocks: bool = False
    free_in_ms: int | None = None

    @property
    def reason(self) -> str:
        """What a budget that `blocks` keeps from moving, and until when, in a sentence."""
        when = (
            "no bundle is light enough for it"
            if self.free_in_ms is None
            else f"the next bundle may move in {_minutes(self.free_in_ms)}"
        )
        return (
            f"the budget of moved load, {100 * self.most:.0f} % of all load per hour"
            f" (balanced.churn_max), is used up; {when}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The moves of one round, in the order in which they start, and the stays by subject.

    * `idle`: set by a policy that moves nothing.
    * `mean`, `deviation`: of the brokers' loads before. `deviation_after`: as the moves should
      leave it. All are fractions, or None if not computed.
    * `budget`: None for a policy without one.
    * `fills`: whether moves fill a broker that has too little: the next round follows at once.
    """

    moves: tuple[Move, ...] = ()
    stays: tuple[Stay, ...] = ()
    idle: Idle | None = None
    mean: float | None = None
    deviation: float | None = None
    deviation_after: float | None = None
    budget: Budget | None = None
    fills: bool = False

    def with_stays(self, more: Iterable[Stay]) -> Plan:
        """Return this plan with stays for subjects that it does not have yet."""
        known = {stay.subject for stay in self.stays} | {move.bundle for move in self.moves}
        added = [stay for stay in more if stay.subject not in known]
        return (
            replace(self, stays=tuple(sorted((*self.stays, *added), key=lambda stay: stay.subject)))
            if added
            else self
        )

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how often each result and cause occurred, as Pulsar counts decisions. A planned
        move counts as a success.
        """
        if self.idle is not None:
            return {(self.idle.result, self.idle.cause): 1}
        return {
            ("Success", cause): number
            for cause, number in Counter(move.cause for move in self.moves).items()
        }


def together(plans: Sequence[Plan]) -> Plan:
    """Return the plans for groups of brokers as one, with the figures of the most uneven group."""
    worst = max(plans, key=lambda plan: plan.deviation or 0.0)
    moves = tuple(move for plan in plans for move in plan.moves)
    idle = worst.idle or next((plan.idle for plan in plans if plan.idle is not None), None)
    reasons = dict.fromkeys(plan.idle.reason for plan in plans if plan.idle is not None)
    budgets = [plan.budget for plan in plans if plan.budget is not None]
    return replace(
        worst,
        moves=moves,
        stays=tuple(
            sorted((stay for plan in plans for stay in plan.stays), key=lambda stay: stay.subject)
        ),
        idle=(
            None
            if moves or idle is None
            else replace(idle, reason="; ".join(list(reasons)[:_REASONS_MAX]))
        ),
        budget=max(budgets, key=lambda budget: (budget.blocks, budget.used), default=None),
        fills=any(plan.fills for plan in plans),
    )


def _minutes(duration_ms: int) -> str:
    return (
        f"{duration_ms / 1_000:.0f} s"
        if duration_ms < _LONG_MS
        else f"{duration_ms / 60_000:.0f} min"
    )
