"""Record the result of each round of balancing, so that people can see later why a bundle moved or
stayed. Then compare what its policy predicted for the moves with what load reports show afterwards.

`brokers.decision_log` keeps them. The comparison:

* A round predicts the load of each broker that its moves touch: the load before the first of these
  moves, and what the moves change. Only moves that were done count.
* The load of a broker is measured by its second report after its last move. The first one covers
  time before the end of the move.
* Loads are fractions of the mean of those brokers that the plan compared.
* A broker that something else changed meanwhile is not measured: the difference would not show how
  good the prediction was.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from equipoise.brokers.errors import counted
from equipoise.channel.core.entries import BrokerChanged, BundleChanged, Change
from equipoise.channel.core.view import View
from equipoise.shedder.loads import Load, fault_of
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

    @property
    def title(self) -> str:
        """What was decided, by whom, and with which result, in a line."""
        if self.kind == "outcome":
            return f"outcome of a round by {self.broker} ({self.strategy})"
        result, cause = self.outcome
        return f"{self.kind} by {self.broker} ({self.strategy}): {result}, {cause}"

    @property
    def lines(self) -> Iterator[str]:
        """The details: the spread of the load, why the round was idle, and each move and stay."""
        spread = ", ".join(self._spread())
        if spread:
            yield spread
        if self.plan.idle is not None:
            yield self.plan.idle.reason
        yield from (each.sentence for each in self.brokers)
        yield from map(self.move_line, self.plan.moves)
        if self.moves_left_out:
            yield f"and {counted(self.moves_left_out, 'move')} more"
        for stay in self.plan.stays:
            if self.plan.idle is None or stay.reason != self.plan.idle.reason:
                yield f"{stay.subject} stays: {stay.reason}"
        if self.stays_left_out:
            yield f"and {counted(self.stays_left_out, 'other')} that stay"

    def _spread(self) -> Iterator[str]:
        plan = self.plan
        if plan.mean is not None:
            yield f"mean {format_percent(plan.mean)}"
        if plan.deviation is not None:
            after = (
                f" -> {format_percent(plan.deviation_after)}"
                if plan.moves and plan.deviation_after is not None
                else ""
            )
            yield f"deviation {format_percent(plan.deviation)}{after}"

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


WAIT_MS: Final = 60_000
"""How long reports are awaited after the last move of a round."""

ROUNDS_MAX: Final = 32
"""How many rounds are awaited at a time. The oldest one is not measured if there are more."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Touched:
    """One broker of a round. `ended_ms`: when its last move ended; None: none has been done.
    `reported_ms`: the first report after that.

    `disturbed`: what else changed its load.
    """

    ended_ms: int | None = None
    reported_ms: int | None = None
    has_settled: bool = False
    disturbed: str | None = None

    def reported(self, taken_ms: int) -> None:
        """Note the time of the newest report."""
        if self.ended_ms is not None and taken_ms > self.ended_ms:
            if self.reported_ms is None:
                self.reported_ms = taken_ms
            self.has_settled = self.has_settled or taken_ms > self.reported_ms


@dataclass(slots=True, kw_only=True, eq=False)
class _Round:
    """The moves of a round, by bundle; those that have not ended, how long those took that were
    done, and why others were not done.
    """

    strategy: str
    capacities: Mapping[str, int]
    moves: Mapping[str, Move]
    open: set[str]
    touched: Mapping[str, _Touched]
    ended_ms: int = 0
    durations_ms: dict[str, int] = field(default_factory=dict)
    stays: list[Stay] = field(default_factory=list)

    def ended(self, bundle: str, *, at_ms: int, duration_ms: int, problem: str | None) -> None:
        """Note the end of an open move."""
        self.open.remove(bundle)
        self.ended_ms = at_ms
        if problem is not None:
            self.stays.append(Stay(subject=bundle, reason=problem))
            return
        self.durations_ms[bundle] = duration_ms
        for broker in ends_of(self.moves[bundle]):
            touched = self.touched[broker]
            touched.ended_ms, touched.reported_ms, touched.has_settled = at_ms, None, False

    def is_over(self, now_ms: int) -> bool:
        """Return whether nothing more is awaited. A clock that was set back for longer than the
        wait ends it.
        """
        is_measured = all(
            each.ended_ms is None or each.has_settled or each.disturbed
            for each in self.touched.values()
        )
        return not self.open and (is_measured or abs(now_ms - self.ended_ms) >= WAIT_MS)

    def decision(self, loads: Mapping[str, Load], *, broker: str, now_ms: int) -> Decision:
        """Return the outcome as a decision of the leader `broker`."""
        return Decision(
            at_ms=now_ms,
            broker=broker,
            kind="outcome",
            strategy=self.strategy,
            plan=Plan(
                moves=tuple(
                    move for move in self.moves.values() if move.bundle in self.durations_ms
                ),
                stays=tuple(self.stays),
            ),
            brokers=tuple(self._outcomes(loads)),
            durations_ms=self.durations_ms,
        )

    def _outcomes(self, loads: Mapping[str, Load]) -> Iterator[BrokerOutcome]:
        """Yield what was predicted and what is measured, by broker."""
        known = {broker: loads[broker].cost for broker in self.capacities if broker in loads}
        capacity = sum(self.capacities[broker] for broker in known)
        mean = sum(known.values()) / capacity if capacity else 0.0
        for broker, (before, predicted) in sorted(
            predicted_loads(self.moves.values(), done=self.durations_ms).items()
        ):
            touched = self.touched[broker]
            reason = touched.disturbed
            if reason is None and not (touched.has_settled and broker in known and mean > 0):
                reason = "it has not reported its load twice since"
            measured = (
                None if reason is not None else known[broker] / self.capacities[broker] / mean
            )
            yield BrokerOutcome(
                broker=broker, before=before, predicted=predicted, measured=measured, reason=reason
            )


class RoundOutcomes:
    """The rounds of one leader whose outcome is not known yet. A new leader knows none.

    Times are Unix time in milliseconds, as in load reports.
    """

    def __init__(self) -> None:
        self._rounds: list[_Round] = []

    def __bool__(self) -> bool:
        return bool(self._rounds)

    def forget(self) -> None:
        """Forget all rounds: another broker leads."""
        self._rounds = []

    def planned(
        self, moves: Iterable[Move], *, strategy: str, capacities: Mapping[str, int]
    ) -> None:
        """Await the moves of a round that carry a prediction. `capacities`: of the brokers that the
        plan compared.
        """
        predicted = {move.bundle: move for move in moves if move.predicted is not None}
        if predicted:
            touched = {
                broker: _Touched() for move in predicted.values() for broker in ends_of(move)
            }
            self._rounds.append(
                _Round(
                    strategy=strategy,
                    capacities=capacities,
                    moves=predicted,
                    open=set(predicted),
                    touched=touched,
                )
            )

    def ended(
        self, bundle: str, *, at_ms: int, duration_ms: int = 0, problem: str | None = None
    ) -> None:
        """Note the end of a move, `duration_ms` after its request. `problem`: why it was not
        done.
        """
        for each in self._rounds:
            if bundle in each.open:
                each.ended(bundle, at_ms=at_ms, duration_ms=duration_ms, problem=problem)

    def changed(self, changes: Iterable[Change], view: View) -> None:
        """Note what else changes loads: other moves of the brokers of a round, and brokers that
        join or leave.
        """
        for change in changes if self._rounds else ():
            if isinstance(change, BrokerChanged):
                is_live = change.after is not None and change.after.live
                if change.dead is not None or is_live != (change.before in ("up", "draining")):
                    self._disturb(
                        None, f"{change.name} {'joined' if is_live else 'left'} meanwhile"
                    )
            elif (
                isinstance(change, BundleChanged)
                and change.before is not None
                and change.after is not None
            ):
                before, after = change.before.server, change.after.server
                for end in () if before == after else (before, after):
                    if end in view.live:
                        self._disturb(
                            view.live[end].broker, f"{change.name} moved, too", mover=change.name
                        )

    def _disturb(self, broker: str | None, reason: str, *, mover: str = "") -> None:
        """Note what else changed the load of a broker (None: of all brokers), for all rounds that
        do not move `mover` themselves.
        """
        for each in self._rounds:
            if mover not in each.open:
                for name, touched in each.touched.items():
                    if broker in (None, name):
                        touched.disturbed = touched.disturbed or reason

    def measured(
        self, loads: Mapping[str, Load], *, broker: str, now_ms: int
    ) -> Iterator[Decision]:
        """Return the outcomes that are known now, as decisions of the leader `broker`, and forget
        their rounds.

        `loads` are those of `plausible`. With 1,000 brokers, each outcome takes some
        milliseconds when it is taken.
        """
        for each in self._rounds:
            for name, touched in each.touched.items():
                if name in loads:
                    touched.reported(loads[name].at_ms)
        surplus = len(self._rounds) - ROUNDS_MAX
        over = [
            each
            for number, each in enumerate(self._rounds)
            if number < surplus or each.is_over(now_ms)
        ]
        self._rounds = [each for each in self._rounds if each not in over]
        return (each.decision(loads, broker=broker, now_ms=now_ms) for each in over)


def plausible(loads: Iterable[Load]) -> Mapping[str, Load]:
    """Return the loads that can be true, by broker. Call it in a thread: those of 1,000 brokers
    take tens of milliseconds.
    """
    return {each.broker: each for each in loads if fault_of(each) is None}


def ends_of(move: Move) -> tuple[str, ...]:
    """Return the brokers whose load a move changes, as far as the plan names them."""
    return (move.source,) if move.destination is None else (move.source, move.destination)


def predicted_loads(
    moves: Iterable[Move], *, done: Container[str]
) -> Mapping[str, tuple[float, float]]:
    """Return the load of each broker before the moves of a plan, and after those of the bundles
    `done`, by their predictions.

    A broker without one is left out.
    """
    before, after = dict[str, float](), dict[str, float]()
    for move in moves:
        if move.predicted is not None:
            for broker, (first, then) in zip(
                ends_of(move), (move.predicted.source, move.predicted.destination), strict=False
            ):
                before.setdefault(broker, first)
                if move.bundle in done:
                    after[broker] = after.get(broker, before[broker]) + then - first
    return {broker: (before[broker], after[broker]) for broker in after}
