"""Record the result of each round of balancing, so that people can see later why a bundle moved or
stayed.

`brokers.decision_log` keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from equipoise.shedder.plan import Move, Plan, Stay
from equipoise.shedder.reported import format_percent

Kind = Literal["shed", "split", "merge", "misplaced", "outcome"]
"""`outcome` is no round: it compares the prediction of an earlier round with load reports."""

STAYS_MAX: Final = 100
"""How many stays of one decision are kept, by subject. The others are only counted: a round over
100,000 bundles gives as many stays."""

NOTHING: Final = ("Skip", "Unknown")
"""The outcome of a decision that moves nothing, counts nothing and gives no reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOutcome:
    """The load of one broker before a round, as predicted after it, and as measured, as fractions
    of the mean load.

    `measured`: None if it could not be measured, for the `reason`.
    """

    broker: str
    before: float
    predicted: float
    measured: float | None
    reason: str | None = None

    @property
    def sentence(self) -> str:
        """The outcome in a line."""
        load = (
            f"{self.broker} had {format_percent(self.before)} of the mean load,"
            f" {format_percent(self.predicted)} was predicted"
        )
        return (
            f"{load}, not measured: {self.reason}"
            if self.measured is None
            else f"{load}, {format_percent(self.measured)} was measured"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one broker decided in one round, or the outcome of a round.

    * `at_ms`: Unix time.
    * `strategy`: the name of a shedder, or of a rule.
    * `plan`: an outcome has the moves that were done, and as stays those that were not, and why.
    * `moves_left_out`, `stays_left_out`: how many of the plan were not kept.
    * `counted`: what the round adds to the counters, by Pulsar's names of result and cause.
    * `brokers`, `durations_ms`: only of an outcome: the loads of brokers, and how long each move
      took, by bundle.
    """

    at_ms: int
    broker: str
    kind: Kind
    strategy: str
    plan: Plan = field(default_factory=Plan)
    moves_left_out: int = 0
    stays_left_out: int = 0
    counted: Mapping[tuple[str, str], int] = field(default_factory=dict)
    brokers: tuple[BrokerOutcome, ...] = ()
    durations_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def outcome(self) -> tuple[str, str]:
        """One result and one cause for the round: why it was idle, else the pair counted most. Ties
        break by name.

        An outcome is a success if a move was done.
        """
        if self.plan.idle is not None:
            return self.plan.idle.result, self.plan.idle.cause
        if self.kind == "outcome":
            return "Success" if self.plan.moves else "Failure", "Unknown"
        return min(self.counted, key=lambda each: (-self.counted[each], each), default=NOTHING)

    @property
    def reason(self) -> str | None:
        """Why the round was idle, in a sentence; else the outcome of its first broker, or the
        reason of its first move or stay.
        """
        if self.plan.idle is not None:
            return self.plan.idle.reason
        if self.brokers:
            return self.brokers[0].sentence
        explained: tuple[Move | Stay, ...] = (*self.plan.moves, *self.plan.stays)
        return next((each.reason for each in explained), None)

    def move_line(self, move: Move) -> str:
        """Return one of the moves in a line: why it was planned or, in an outcome, how long it
        took.
        """
        expected_ms = None if move.predicted is None else move.predicted.duration_ms
        if self.kind == "outcome":
            expected = "" if expected_ms is None else f", {expected_ms:.0f} ms was predicted"
            why = f"took {self.durations_ms.get(move.bundle, 0)} ms{expected}"
        else:
            why = (
                move.reason
                if expected_ms is None
                else f"{move.reason}; moves take {expected_ms:.0f} ms"
            )
        return (
            f"{move.bundle}: {move.source} -> {move.destination or 'wherever placement puts it'};"
            f" {why}"
        )

    def outcome_line(self, bundle: str) -> str | None:
        """Return what came of the move of a bundle, in a line; None if this is not the outcome of a
        round that moved it.
        """
        move = next((move for move in self.plan.moves if move.bundle == bundle), None)
        if self.kind != "outcome" or move is None:
            return None
        return "; ".join(
            (
                self.move_line(move),
                *(
                    each.sentence
                    for each in self.brokers
                    if each.broker in (move.source, move.destination)
                ),
            )
        )


def decision_of(
    plan: Plan,
    *,
    at_ms: int,
    broker: str,
    strategy: str,
    kind: Kind,
    counted: Mapping[tuple[str, str], int] | None = None,
) -> Decision:
    """Return the decision for a round, with its first stays. `counted`: None: what the plan
    counts.
    """
    return Decision(
        at_ms=at_ms,
        broker=broker,
        kind=kind,
        strategy=strategy,
        plan=replace(plan, stays=plan.stays[:STAYS_MAX]),
        stays_left_out=max(len(plan.stays) - STAYS_MAX, 0),
        counted=plan.counts() if counted is None else counted,
    )
