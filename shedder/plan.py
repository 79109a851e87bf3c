"""What a balancer answers: which bundles move where, and why; and why the others stay.

May live here: the plan's values, and the port behind which every policy of balancing is a plug.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from equipoise.shedder.memory import Memory
from equipoise.shedder.snapshot import Snapshot

# Pulsar's names for what came of a round, and why; its counters bear them.
Result = Literal["Success", "Skip", "Failure"]
Cause = Literal["Overloaded", "Underloaded", "HitCount", "NoBundles", "CoolDown", "OutDatedData", "NoLoadData", "NoBrokers", "Unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Take `bundle` from the broker `source` to the broker `destination`; None: to whichever placement chooses.

    `reason` goes on record with it. `cause` says of which end the load is wrong.
    """

    bundle: str
    source: str
    destination: str | None
    reason: str
    cause: Cause = "Overloaded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Nothing is taken from `subject`, a broker, or it is not moved, a bundle; and why."""

    subject: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Why a whole round moves nothing: in Pulsar's words, and in a sentence."""

    result: Result
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One round's moves, in the order in which they are to be begun, and the stays, by subject.

    `idle` is set where nothing moves, by a policy that says why. `mean` and `deviation` are those of the brokers' loads as
    they were, `deviation_after` as the moves should leave it; all fractions, None where the policy did not come to compute
    them. `memory` is to be given to the next round.
    """

    moves: tuple[Move, ...]
    stays: tuple[Stay, ...]
    idle: Idle | None = None
    mean: float | None = None
    deviation: float | None = None
    deviation_after: float | None = None
    memory: Memory = field(default_factory=Memory)

    def with_stays(self, more: Iterable[Stay]) -> Plan:
        """This plan with stays of what it does not speak of itself."""
        known = {stay.subject for stay in self.stays} | {move.bundle for move in self.moves}
        added = [stay for stay in more if stay.subject not in known]
        return replace(self, stays=tuple(sorted((*self.stays, *added), key=lambda stay: stay.subject))) if added else self

    def counts(self) -> dict[tuple[Result, Cause], int]:
        """How often each result came for each cause, as Pulsar counts decisions; a move counts as the success that it is to be."""
        if self.idle is not None:
            return {(self.idle.result, self.idle.cause): 1}
        return {("Success", cause): number for cause, number in Counter(move.cause for move in self.moves).items()}


class Shedder(Protocol):
    """A policy of balancing: a pure function of one snapshot.

    Whatever the policy: no bundle moves twice in a plan; nothing and nobody that is barred takes part; equal snapshots give
    equal plans. Every broker that gives nothing has a `Stay`.
    """

    def plan(self, snapshot: Snapshot) -> Plan:
        """The moves of this round. They may be rejected one by one: the fold decides, and the next round sees what came of it."""
        ...
