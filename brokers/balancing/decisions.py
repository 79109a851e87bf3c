"""Decisions: what came of each round of balancing, put down so that anybody can ask later why a bundle moved, or did not.

May live here: the value of a decision, and the port of a log of them. The adapters are in `brokers.decision_log`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from equipoise.shedder.plan import Cause, Idle, Move, Plan, Result, Stay

Kind = Literal["shed", "split", "merge", "misplaced"]

STAYS_MAX: Final = 100
"""So many stays of one decision are kept, by subject: the others are counted. A round over 100,000 bundles gives as many."""

NOTHING: Final = ("Skip", "Unknown")
"""What a decision comes to that moves nothing, counts nothing, and does not say why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one broker decided in one round.

    `at_ms` is Unix time. `strategy` is whose decision it was: the name of a shedder, or of a rule. `counted` is what the round
    adds to the counters, by result and cause, in Pulsar's words. `mean`, `deviation` and `deviation_after` are those of `Plan`.
    `moves_left_out` and `stays_left_out` say how many were too many to keep.
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
        """What the round came to, in one result and one cause: why it was idle, else what it counted most of, by name of equals."""
        if self.idle is not None:
            return self.idle.result, self.idle.cause
        return min(self.counted, key=lambda each: (-self.counted[each], each), default=NOTHING)

    @property
    def reason(self) -> str | None:
        """Why it was idle, in a sentence; else the reason of its first move, or of its first stay."""
        if self.idle is not None:
            return self.idle.reason
        told: tuple[Move | Stay, ...] = (*self.moves, *self.stays)
        return next((each.reason for each in told), None)


def decision_of(plan: Plan, *, at_ms: int, broker: str, strategy: str, kind: Kind) -> Decision:
    """The decision that a round of the leader is."""
    counted: dict[tuple[Result, Cause], int] = plan.counts()
    return Decision(
        at_ms=at_ms,
        broker=broker,
        kind=kind,
        strategy=strategy,
        moves=plan.moves,
        stays=plan.stays[:STAYS_MAX],
        stays_left_out=max(len(plan.stays) - STAYS_MAX, 0),
        idle=plan.idle,
        counted={(str(result), str(cause)): number for (result, cause), number in counted.items()},
        mean=plan.mean,
        deviation=plan.deviation,
        deviation_after=plan.deviation_after,
    )


class DecisionLog(Protocol):
    """Keeps decisions for as long as its adapter says, in the order in which they came.

    Nothing about safety rides on it: a decision that could not be written is lost, and told. Calls may block: a host in an
    event loop makes them in a thread. A handle may be used by one thread at a time.
    """

    def write(self, decision: Decision) -> None:
        """Add one decision. Raises `DecisionLogUnavailable`; the next one may succeed."""
        ...

    def newest(self, at_most: int) -> Sequence[Decision]:
        """The last decisions, the oldest of them first; what cannot be read is left out. Raises `DecisionLogUnavailable`."""
        ...
