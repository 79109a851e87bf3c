"""Decide, step by step, how a saved plan is carried out on a Pulsar cluster.
`pulsar_cluster.applying` does what this module decides.

* At most `at_once` moves are under way. A move is complete when the channel has the record of its
  new owner.
* The next move waits for a look at the cluster that followed the last arrival.
* Anything that the plan did not foresee stops it: a changed bundle, another mover, a broker that
  leaves or joins, another leader, a move that fails or takes too long, and a cluster that gets
  worse. Then no further move is requested, and those under way are awaited.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from equipoise.pulsar_cluster.records import ASSIGNING, OWNED, RELEASING, Message, StateRecord
from equipoise.pulsar_cluster.saved_plans import SavedPlan, changes, why_changed
from equipoise.pulsar_cluster.table import StateChange, is_of_system
from equipoise.shedder.plan import Move
from equipoise.shedder.reported import format_duration, format_percent

_USE_HIGH: Final = 0.85
_USE_RISE: Final = 0.15
_PUBLISHED_LEFT: Final = 0.5
_PUBLISHED_MIN: Final = 10.0
_BACKLOG_S: Final = 30
_BACKLOG_RISE: Final = 500
_BAD_LOOKS: Final = 2
"""A cluster is worse if so many looks in a row find it: clients need a moment to connect again."""


class Status(StrEnum):
    """Where a move is. The value is the text for people."""

    WAITING = "waiting"
    REQUESTED = "requested"
    MOVED = "moved"
    FAILED = "failed"
    LEFT_OUT = "left out"


class MoveOutcome(NamedTuple):
    """What became of a move: `status`, a sentence, and how long it took from its request, 0 without
    one.
    """

    move: Move
    status: Status
    text: str
    took_ms: int = 0


class Health(NamedTuple):
    """How a cluster does. None: not known.

    * `uses`: the busiest resource of each broker, a fraction, from its load report.
    * `published`: messages per second on the watched topics. `backlog`: their messages that no
      subscription has acknowledged.
    """

    uses: Mapping[str, float]
    published: float | None = None
    backlog: int | None = None


class Reading(NamedTuple):
    """The figures of a topic at `at_ns` (any clock): the messages published since it was opened,
    and those not acknowledged.
    """

    at_ns: int
    published: int
    backlog: int


class Look(NamedTuple):
    """The cluster as seen at one moment: its live brokers, its leader, and how it does."""

    members: tuple[str, ...]
    leader: str | None
    health: Health


def why_worse(before: Health, now: Health) -> tuple[str, str] | None:
    """Return what got worse, as its kind and a sentence; None if nothing did.

    * A broker uses 85 % of a resource, and 15 points more than before.
    * Less than half is published, of at least 10 messages/s.
    * The backlog is more than double, by more than 500 messages and more than is published in 30 s.
    """
    for broker, use in sorted(now.uses.items()):
        was = before.uses.get(broker)
        if was is not None and use >= _USE_HIGH and use > was + _USE_RISE:
            return (
                "use",
                (
                    f"{broker} uses {format_percent(use)} of its busiest resource (before:"
                    f" {format_percent(was)})"
                ),
            )
    published = before.published or 0.0
    if (
        published >= _PUBLISHED_MIN
        and now.published is not None
        and now.published < _PUBLISHED_LEFT * published
    ):
        return (
            "published",
            (
                f"clients publish {now.published:.0f} messages/s on the bundles of the plan"
                f" (before: {published:.0f})"
            ),
        )
    if before.backlog is not None and now.backlog is not None:
        allowed = max(
            2 * before.backlog, before.backlog + max(_BACKLOG_RISE, _BACKLOG_S * published)
        )
        if now.backlog > allowed:
            return (
                "backlog",
                (
                    f"the backlog of the bundles of the plan is {now.backlog} messages (before:"
                    f" {before.backlog})"
                ),
            )
    return None


@dataclass(slots=True)
class _Step:
    move: Move
    version: int
    status: Status = Status.WAITING
    requested_ms: int = 0


class Moving:
    """One plan on its way. `stopped` is why no further move is requested, or None.

    `decided` collects the outcomes in their order; the driver takes them away. Times are Unix times
    in milliseconds.
    """

    def __init__(self, plan: SavedPlan, *, at_once: int, timeout_ms: int) -> None:
        """Request at most `at_once` moves at a time. Each has `timeout_ms`."""
        self.plan = plan
        self.stopped: str | None = None
        self.decided: list[MoveOutcome] = []
        self._at_once = at_once
        self._timeout_ms = timeout_ms
        self._steps = {move.bundle: _Step(move, plan.versions[move.bundle]) for move in plan.moves}
        self._before: Health | None = None
        self._must_look = True
        self._worse: tuple[str, int] = "", 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is under way, and nothing more will be requested."""
        left = [
            step
            for step in self._steps.values()
            if step.status in {Status.WAITING, Status.REQUESTED}
        ]
        return not left or (
            self.stopped is not None and all(step.status is Status.WAITING for step in left)
        )

    def begin(self, bundles: Mapping[str, Message], look: Look) -> None:
        """Compare the cluster with the plan, and remember how it does. A difference stops the plan
        before its first move.
        """
        changed = changes(self.plan, bundles, look.members, look.leader)
        if changed is not None:
            self.stop(f"the cluster has changed since the plan: {changed}")
        for message in bundles.values():
            if (
                message.record is not None
                and message.record.state == RELEASING
                and not is_of_system(message.bundle)
            ):
                self.stop(_other_mover(message.bundle, message.record))
        self._before = look.health
        self._must_look = False

    def stop(self, reason: str) -> None:
        """Request nothing more. The first reason stays."""
        self.stopped = self.stopped or reason

    def due(self, bundles: Mapping[str, Message], now_ms: int) -> list[Move]:
        """Return the moves to request now. They count as requested."""
        found: list[Move] = []
        under_way = sum(step.status is Status.REQUESTED for step in self._steps.values())
        for step in self._steps.values():
            if (
                self.stopped is not None
                or self._must_look
                or under_way + len(found) >= self._at_once
            ):
                break
            if step.status is not Status.WAITING:
                continue
            changed = why_changed(step.move, step.version, bundles.get(step.move.bundle))
            if changed is not None:
                self.stop(changed)
                break
            step.status, step.requested_ms = Status.REQUESTED, now_ms
            found.append(step.move)
        return found

    def see(self, change: StateChange, now_ms: int) -> None:
        """Take a message of the channel into account. Those that Pulsar's brokers reject change
        nothing.
        """
        if change.rejection is not None:
            return
        bundle, record = change.message.bundle, change.message.record
        step = self._steps.get(bundle)
        if step is None:
            if record is not None and record.state == RELEASING and not is_of_system(bundle):
                self.stop(_other_mover(bundle, record))
        elif step.status is Status.REQUESTED:
            self._follow(step, record, now_ms)
        elif step.status is Status.WAITING:
            self.stop(
                why_changed(step.move, step.version, change.message)
                or f"{bundle} was written again"
            )
        elif step.status is Status.MOVED:
            self.stop(
                f"somebody else moves bundles: {bundle}, which this plan had moved,"
                f" {_where(record)}"
            )

    def answered(self, bundle: str, problem: str | None, *, in_doubt: bool, now_ms: int) -> None:
        """Take the answer to a request into account. A request `in_doubt` may still be carried out,
        so its move is awaited.
        """
        step = self._steps[bundle]
        if problem is None:
            return
        self.stop(f"the move of {bundle} was refused: {problem}")
        if step.status is Status.REQUESTED and not in_doubt:
            self._decide(
                step, Status.FAILED, f"{bundle} stays at {step.move.source}: {problem}", now_ms
            )

    def look(self, look: Look) -> None:
        """Take a look at the cluster into account."""
        live = frozenset(look.members)
        for broker in self.plan.members:
            if broker not in live:
                self.stop(f"the broker {broker} is gone")
        for broker in look.members:
            if broker not in self.plan.members:
                self.stop(f"the broker {broker} has joined: a new plan would use it")
        if self.plan.leader is not None and look.leader != self.plan.leader:
            self.stop(
                f"the leader is {look.leader or 'nobody'} now (in the plan: {self.plan.leader})"
            )
        if self._before is not None:
            # A broker's first report since the start may come later.
            self._before = self._before._replace(uses={**look.health.uses, **self._before.uses})
        worse = None if self._before is None else why_worse(self._before, look.health)
        kind, count = self._worse
        self._worse = ("", 0) if worse is None else (worse[0], count + 1 if worse[0] == kind else 1)
        if worse is not None and self._worse[1] >= _BAD_LOOKS:
            self.stop(f"the cluster gets worse: {worse[1]}")
        # A bad look calls for another one before the next move.
        self._must_look = worse is not None

    def expire(self, now_ms: int, bundles: Mapping[str, Message]) -> None:
        """Give up on moves that have taken too long."""
        for bundle, step in self._steps.items():
            if step.status is Status.REQUESTED and now_ms - step.requested_ms >= self._timeout_ms:
                message = bundles.get(bundle)
                where = _where(None if message is None else message.record)
                limit = format_duration(self._timeout_ms)
                self._decide(
                    step,
                    Status.FAILED,
                    f"{bundle} did not arrive at {step.move.destination} within {limit}: it"
                    f" {where}",
                    now_ms,
                )
                self.stop(f"the move of {bundle} took more than {limit}")

    def leave_out(self) -> None:
        """Decide that what was not requested stays."""
        for step in self._steps.values():
            if step.status is Status.WAITING:
                self._decide(
                    step,
                    Status.LEFT_OUT,
                    f"{step.move.bundle} stays at {step.move.source}: it was not requested",
                    0,
                )

    def _follow(self, step: _Step, record: StateRecord | None, now_ms: int) -> None:
        move = step.move
        if record is not None and record.destination == move.destination:
            if record.state == OWNED:
                self._decide(
                    step,
                    Status.MOVED,
                    f"{move.bundle} moved from {move.source} to {move.destination}",
                    now_ms,
                )
                self._must_look = True
                return
            if record.state in {RELEASING, ASSIGNING}:
                return
        where = _where(record)
        self._decide(
            step,
            Status.FAILED,
            f"{move.bundle} did not go to {move.destination}: it {where}",
            now_ms,
        )
        self.stop(f"{move.bundle} {where}, although it was to go to {move.destination}")

    def _decide(self, step: _Step, status: Status, text: str, now_ms: int) -> None:
        took_ms = now_ms - step.requested_ms if step.status is Status.REQUESTED else 0
        step.status = status
        self.decided.append(MoveOutcome(step.move, status, text, took_ms))


def published_between(before: Mapping[str, Reading], now: Mapping[str, Reading]) -> float | None:
    """Return the messages per second between two readings of topics; None if no topic was read
    twice.

    The counter of a topic that moved begins again at 0.
    """
    rates = [
        1e9
        * (
            reading.published - was.published
            if reading.published >= was.published
            else reading.published
        )
        / (reading.at_ns - was.at_ns)
        for topic, reading in now.items()
        if (was := before.get(topic)) is not None and reading.at_ns > was.at_ns
    ]
    return sum(rates) if rates else None


def _other_mover(bundle: str, record: StateRecord) -> str:
    return (
        f"somebody else moves bundles: {bundle} leaves {record.source} for"
        f" {record.destination or 'no broker yet'}"
    )


def _where(record: StateRecord | None) -> str:
    if record is None:
        return "has no record any more"
    return f"is {record.state} at {record.destination or record.source}"
