"""Record the result of each round of balancing, so that people can see later why a bundle moved or stayed.

This module holds the value and the port of the log. The adapters are in `brokers.decision_log`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from equipoise.shedder.plan import Idle, Move, Plan, Stay

Kind = Literal["shed", "split", "merge", "misplaced"]

STAYS_MAX: Final = 100
"""How many stays of one decision are kept, by subject. The others are only counted: a round over 100,000 bundles gives as many stays."""

NOTHING: Final = ("Skip", "Unknown")
"""The outcome of a decision that moves nothing, counts nothing and gives no reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one broker decided in one round.

    * `at_ms`: Unix time.
    * `strategy`: the name of a shedder, or of a rule.
    * `counted`: what the round adds to the counters, by Pulsar's names of result and cause.
    * `mean`, `deviation`, `deviation_after`: as in `Plan`.
    * `moves_left_out`, `stays_left_out`: how many were not kept.
    """

    at_ms: int
    broker: str
    kind: Kind
    strategy: str
    moves: tuple[Move, ...] = ()
    moves_left_out: int = 0
    stays: tuple[Stay, ...] = ()
    stays_left_out: int = 0
    idle: Idle | None = None
    counted: Mapping[tuple[str, str], int] = field(default_factory=dict)
    mean: float | None = None
    deviation: float | None = None
    deviation_after: float | None = None

    @property
    def outcome(self) -> tuple[str, str]:
        """One result and one cause for the round: why it was idle, else the pair counted most. Ties break by name."""
        if self.idle is not None:
            return self.idle.result, self.idle.cause
        return min(self.counted, key=lambda each: (-self.counted[each], each), default=NOTHING)

    @property
    def reason(self) -> str | None:
        """Why the round was idle, in a sentence; else the reason of its first move, or of its first stay."""
        if self.idle is not None:
            return self.idle.reason
        explained: tuple[Move | Stay, ...] = (*self.moves, *self.stays)
        return next((each.reason for each in explained), None)


def decision_of(plan: Plan, *, at_ms: int, broker: str, strategy: str, kind: Kind) -> Decision:
    """Return the decision for a round of the leader."""
    return Decision(
        at_ms=at_ms,
        broker=broker,
        kind=kind,
        strategy=strategy,
        moves=plan.moves,
        stays=plan.stays[:STAYS_MAX],
        stays_left_out=max(len(plan.stays) - STAYS_MAX, 0),
        idle=plan.idle,
        counted=plan.counts(),
        mean=plan.mean,
        deviation=plan.deviation,
        deviation_after=plan.deviation_after,
    )


class DecisionLog(Protocol):
    """Keeps decisions in order, for as long as its adapter defines.

    Safety does not depend on it: a decision that cannot be written is lost, and the loss is reported. Calls may block, so an event loop
    makes them in a thread. Only one thread may use a handle at a time.
    """

    def write(self, decision: Decision) -> None:
        """Add one decision. Raises `PeerError`; the next call may succeed."""
        ...

    def newest(self, at_most: int) -> Sequence[Decision]:
        """Return the last decisions, oldest first, without unreadable ones. Raises `PeerError`."""
        ...
