"""Run the leader's rounds of balancing, and set the placement of every broker.

The loop carries load reports to the shedder and the placement, and moves to the channel. The
shedder decides what moves; the fold keeps it safe.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from equipoise.brokers.balancing.controls import Controls, controls_in
from equipoise.brokers.balancing.decisions import (
    Decision,
    Kind,
    RoundOutcomes,
    decision_of,
    plausible,
)
from equipoise.brokers.balancing.moves import has_left, joined_in, moved_in
from equipoise.brokers.balancing.placement import Placement
from equipoise.brokers.balancing.planning import (
    BalancingRound,
    cluster_snapshot_of,
    fresh,
    moving_in,
    plan_round,
    planned_elsewhere,
    stale_moves,
)
from equipoise.brokers.balancing.policies import Control
from equipoise.brokers.balancing.settings.balancing_settings import (
    BalancingSettings,
    placement_of,
)
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.runtime.loops.moving import Moving
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Record
from equipoise.channel.core.table import Resync
from equipoise.channel.system.failures import LoggedFailures, error_text
from equipoise.shedder.loads import Load, fault_of
from equipoise.shedder.plan import Idle, Plan
from equipoise.shedder.scheduler import Scheduler
from equipoise.shedder.snapshot import EndedMove, Since

_logger: Final = logging.getLogger(__name__)

# How often to check for a due round and for free slots for moves. Settings change at run time.
_LOOK_MS: Final = 250

# The same while the first report of a broker that joined is awaited.
_LOOK_FOR_NEWCOMER_MS: Final = 100


class Balancing:
    """The balancer of one worker. `run` continues until it is cancelled; it logs a failed round and
    retries.
    """

    def __init__(
        self,
        worker: Worker,
        bus: LoadBus,
        *,
        settings: Callable[[], BalancingSettings],
        decided: Callable[[Decision], None],
    ) -> None:
        """`settings` returns the current settings. `decided` is called with every round."""
        self._worker = worker
        self._bus = bus
        self._settings = settings
        self._decided = decided
        self._metrics = worker.metrics.balancing
        self._scheduler = Scheduler()
        self._outcomes = RoundOutcomes()
        self._moves = Moving(worker, made=self._note_made, ended=self._move_ended)
        self._logged: Mapping[str, str] = {}
        self._refused: Mapping[str, str] = {}
        self._memories: dict[str, object] = {}  # What each shedder remembers, by its name.
        # What has happened since each shedder was asked last, by its name. "": for the others.
        self._since = {"": Since()}
        self._placement: Placement | None = None
        # One decision for each pause, however many rounds it lasts.
        self._decided_pause: Control | None = None
        self._looked_ms = self._measured_ms = worker.clock.now().boot_ms
        self._failures = LoggedFailures(
            _logger,
            broker=worker.broker_id,
            failed="balancing round failed",
            over="balancing succeeds again",
        )

    async def run(self) -> None:
        """Place by the load reports, and shed while this broker leads. At the end, cancel the moves
        in progress.
        """
        end = self._worker.listen(self._note_folded, resynced=self._note_resync)
        try:
            while True:
                look_ms = (
                    _LOOK_FOR_NEWCOMER_MS
                    if self._scheduler.awaited(self._worker.clock.now().boot_ms)
                    else _LOOK_MS
                )
                await asyncio.sleep(
                    min(look_ms, self._settings().balancing.shed_interval_ms / 2) / 1_000
                )
                await self._turn()
        finally:
            end()
            self._scheduler.dropped()
            await self._moves.cancel()

    async def _turn(self) -> None:
        settings, now = self._settings(), self._worker.clock.now()
        interval_ms = settings.balancing.shed_interval_ms
        self._begin_or_drop()
        await self._look_for_newcomers(now.boot_ms)
        self._scheduler.returning(now.boot_ms)  # A round is due at its end.
        await self._measure_outcomes(now.boot_ms, settings.reports.interval_min_ms)
        is_due = self._scheduler.due(now.boot_ms, interval_ms=interval_ms)
        # Moves in progress can delay rounds for minutes. Placement must use the present load
        # meanwhile.
        if not is_due and now.boot_ms - self._looked_ms < interval_ms:
            return
        self._looked_ms = now.boot_ms
        self._scheduler.forget(now.boot_ms, rest_ms=settings.balancing.rest_ms)
        try:
            await self._look(settings, plans=is_due)
        # An error of a shedder must not end balancing silently.
        except Exception as error:  # noqa: BLE001
            self._failures.failed(error, self._worker.clock.now().boot_ms)
            if is_due and self._sheds(settings):
                self._decide(Plan(idle=_failure(error)), settings.balancing.shedder)
        else:
            self._failures.succeeded()

    async def _look_for_newcomers(self, now_ms: int) -> None:
        """Inform the schedule which brokers have reported since they joined. Their reports and
        records have the same clock.
        """
        awaited = self._scheduler.awaited(now_ms)
        if not awaited or not self._worker.agent.leads:
            return
        loads, brokers = await self._between_rounds(), self._worker.view.brokers
        newcomers = [load for load in loads if load.broker in awaited and load.broker in brokers]
        self._scheduler.reported(
            [
                each.broker
                for each in newcomers
                if each.at_ms >= brokers[each.broker].joined.timestamp_ms
            ]
        )

    async def _measure_outcomes(self, now_ms: int, interval_ms: int) -> None:
        """Compare the load after earlier rounds with what they predicted. Read the reports as often
        as a broker may send one.
        """
        if not self._worker.agent.leads:
            self._outcomes.forget()
        if not self._outcomes or now_ms - self._measured_ms < interval_ms:
            return
        self._measured_ms = now_ms
        loads = await asyncio.to_thread(plausible, await self._between_rounds())
        for outcome in self._outcomes.measured(
            loads, broker=self._worker.broker_id, now_ms=self._worker.clock.now().wall_ms
        ):
            self._decided(outcome)
            await asyncio.sleep(0)

    async def _between_rounds(self) -> Sequence[Load]:
        """Return the load reports; none if they cannot be read. The next round reads them, too, and
        logs why.
        """
        try:
            return await asyncio.to_thread(self._bus.latest)
        except Exception:  # noqa: BLE001 - as in `_turn`.
            return ()

    def _drop(self) -> None:
        """Drop the moves that have not started, and reset the hits: balancing is off or paused, or
        another broker leads.
        """
        self._since = self._all_stopped()
        self._worker.metrics.set("balancing_budget_blocks", 0)
        for move in self._scheduler.dropped():
            self._outcomes.ended(
                move.bundle,
                at_ms=self._worker.clock.now().wall_ms,
                problem="it was not started: balancing was stopped",
            )
            _logger.info(
                "move not started, because it is no longer needed",
                extra={"bundle": move.bundle, "destination": move.destination},
            )

    def _sheds(self, settings: BalancingSettings) -> bool:
        return (
            self._worker.agent.leads and settings.balancing.enabled and settings.balancing.shedding
        )

    def _controls(self) -> Controls:
        return controls_in(self._worker.view, self._worker.clock.now().wall_ms)

    async def _look(self, settings: BalancingSettings, *, plans: bool) -> None:
        loads = await asyncio.to_thread(self._bus.latest)
        own = next(
            (load for load in loads if load.broker == self._worker.broker_id),
            None,
        )
        if own is not None:
            self._metrics.load(own.resources, averaged=own.average_use)
        placement = await self._place(settings, loads)
        if plans and self._sheds(settings):
            with self._worker.span("balancing round"):
                await self._round(settings, loads, placement)

    # --- placing ---

    async def _place(self, settings: BalancingSettings, loads: Sequence[Load]) -> Placement:
        """Give the agent the configured placement, with the loads as reported now."""
        known = fresh(loads, settings, now_ms=self._worker.clock.now().wall_ms)

        def chosen() -> Placement | None:
            placement = placement_of(settings, known, before=self._placement)
            return None if placement == self._placement else placement

        # In a thread: combining and comparing the reports of 1,000 brokers takes tens of
        # milliseconds.
        changed = await asyncio.to_thread(chosen)
        if changed is not None:
            self._placement = changed
            self._worker.place_by(changed)
        assert self._placement is not None, "the first one differs from None"
        return self._placement

    # --- rounds ---

    async def _round(
        self, settings: BalancingSettings, loads: Sequence[Load], placement: Placement
    ) -> None:
        """Plan in a thread, because weighing 100,000 bundles takes half a second, on a copy of the
        view, because the fold goes on.

        `_begin_moves` checks each move again by the view of then.
        """
        controls = self._controls()
        if controls.pause is not None:
            if controls.pause != self._decided_pause:
                idle = Idle(result="Skip", cause="Unknown", reason=controls.why_paused or "")
                self._decide(Plan(idle=idle), settings.balancing.shedder)
            self._decided_pause = controls.pause
            return
        now, shedder = self._worker.clock.now(), settings.balancing.shedder
        memory, since = self._memories.get(shedder), self._since_asked(shedder)
        resting = self._scheduler.resting(now.boot_ms, rest_ms=settings.balancing.rest_ms)
        returning = self._scheduler.returning(now.boot_ms)

        def plan() -> tuple[BalancingRound, Mapping[str, str]]:
            cluster = cluster_snapshot_of(
                copies.pop(),
                loads,
                settings,
                now_ms=now.wall_ms,
                resting=resting,
                returning=returning,
                since=since,
            )
            planned = plan_round(cluster, settings, placement, memory=memory, resting=resting)
            cluster.clear()
            return planned, {
                each.broker: fault for each in loads if (fault := fault_of(each)) is not None
            }

        with _collector_paused():
            # The thread takes it out, so that it is freed there, before the collector runs.
            copies = [self._worker.view.copy()]
            planned, faults = await asyncio.to_thread(plan)
        self._note_refused(faults)
        self._memories[shedder] = planned.memory
        # Whoever stopped the rounds meanwhile has replaced it. A round of one shedder ends the
        # rounds in a row of the others.
        if planned.strategy == shedder and self._since_asked(shedder) is since:
            self._since = {**self._all_stopped(), shedder: Since()}
        budget = planned.plan.budget
        self._worker.metrics.set("balancing_budget_blocks", budget is not None and budget.blocks)
        self._log(planned.plan)
        self._decide(planned.plan, planned.strategy, kind=planned.kind)
        self._scheduler.planned(planned.plan.moves, fills=planned.plan.fills)
        for capacities in planned.capacities:
            self._outcomes.planned(
                [move for move in planned.plan.moves if move.source in capacities],
                strategy=planned.strategy,
                capacities=capacities,
            )
        self._begin_or_drop()

    def _since_asked(self, shedder: str) -> Since:
        return self._since.get(shedder, self._since[""])

    def _all_stopped(self) -> dict[str, Since]:
        return {name: replace(since, stopped=True) for name, since in self._since.items()}

    def _decide(self, plan: Plan, strategy: str, *, kind: Kind = "shed") -> None:
        at_ms = self._worker.clock.now().wall_ms
        self._decided(
            decision_of(
                plan, at_ms=at_ms, broker=self._worker.broker_id, kind=kind, strategy=strategy
            )
        )

    def _note_refused(self, faults: Mapping[str, str]) -> None:
        """Count and log each implausible report of a live broker when it first occurs."""
        live = {broker.broker for broker in self._worker.view.live_brokers()}
        refused = {broker: fault for broker, fault in faults.items() if broker in live}
        for broker, problem in refused.items():
            if self._refused.get(broker) != problem:
                _logger.warning(
                    "load report left out, because it cannot be true: %s",
                    problem,
                    extra={"broker": broker},
                )
                self._metrics.refused(broker)
        self._refused = refused

    def _log(self, plan: Plan) -> None:
        """Log why nothing moves, for each stay and for the round, if the reason has changed."""
        stays = {stay.subject: stay.reason for stay in plan.stays}
        if plan.idle is not None:
            stays["the round"] = plan.idle.reason
        for subject, reason in stays.items():
            if self._logged.get(subject) != reason:
                _logger.debug("stays", extra={"subject": subject, "reason": reason})
        self._logged = stays

    # --- moves ---

    def _note_folded(self, folded: Folded) -> None:
        """Note brokers that join or leave, and all moves, by any broker: a new leader must not
        move at once what has just moved.
        """
        self._outcomes.changed(folded.verdict.changes, self._worker.view)
        moved = moved_in(folded.verdict.changes)
        joined = joined_in(folded.verdict.changes)
        leaves = has_left(folded.verdict.changes)
        if moved or joined or leaves:
            assert isinstance(folded.record, Record), "what changes something can be read"
            now = self._worker.clock.now()
            # Use the record's time, because a starting broker reads old records, but no time in the
            # future.
            at_ms = now.boot_ms - max(0, now.wall_ms - folded.record.timestamp_ms)
            self._note_moved(moved, at_ms)
            for broker in joined:
                self._scheduler.joined(broker, at_ms)
            if leaves:
                self._scheduler.left(at_ms)

    def _note_resync(self, resync: Resync) -> None:
        """Note the moves in skipped records as of now, the latest possible time."""
        if has_left(resync.changes):
            self._scheduler.left(self._worker.clock.now().boot_ms)
        self._outcomes.changed(resync.changes, self._worker.view)
        self._note_moved(moved_in(resync.changes), self._worker.clock.now().boot_ms)

    def _note_moved(self, bundles: Sequence[str], at_ms: int) -> None:
        for bundle in bundles:
            self._scheduler.moved(bundle, at_ms)

    def _begin_or_drop(self) -> None:
        if not self._sheds(self._settings()) or self._controls().pause is not None:
            self._drop()
        self._begin_moves()

    def _begin_moves(self) -> None:
        """Start the planned moves that have a free slot and are still right."""
        settings, view = self._settings(), self._worker.view
        rounds = settings.balancing
        started = self._scheduler.begin(
            moving_in(view), moves_max=rounds.moves_max, broker_moves_max=rounds.broker_moves_max
        )
        stale = (
            stale_moves(view, started, settings.placement, now_ms=self._worker.clock.now().wall_ms)
            if started
            else {}
        )
        planned = planned_elsewhere(
            view, [move for move in started if move.bundle not in stale], self._worker.placement
        )
        for move in started:
            if move.bundle in stale:
                fields = {
                    "bundle": move.bundle,
                    "source": move.source,
                    "destination": move.destination,
                }
                _logger.info("move failed: %s", stale[move.bundle], extra=fields)
                self._ended(move.bundle, 0, stale[move.bundle])
                continue
            self._moves.begin(move, planned.get(move.bundle), timeout_ms=rounds.move_timeout_ms)

    def _note_made(self, ended: EndedMove) -> None:
        self._since = {name: since.and_ended(ended) for name, since in self._since.items()}

    def _move_ended(self, bundle: str, duration_ms: int, problem: str | None) -> None:
        self._ended(bundle, duration_ms, problem)
        self._begin_moves()

    def _ended(self, bundle: str, duration_ms: int, problem: str | None) -> None:
        """Note the end of a move. `problem`: why it was not done."""
        now = self._worker.clock.now()
        self._scheduler.ended(bundle, now.boot_ms)
        self._outcomes.ended(bundle, at_ms=now.wall_ms, duration_ms=duration_ms, problem=problem)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the garbage collector of this process. Counting references frees what a plan makes.

    A full collection holds all threads, for 100 ms with 100,000 bundles, and weighing them would
    start one in each round.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _failure(error: Exception) -> Idle:
    return Idle(result="Failure", cause="Unknown", reason=f"the round failed: {error_text(error)}")
