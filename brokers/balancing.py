"""Balancing: a broker's load reports, and the leader's rounds.

May live here: the loop that carries loads from services to the bus, and moves from the shedder to the channel. What is
moved is the shedder's decision; that it is safe, the fold's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from brokers.agent.events import Instant
from brokers.agent.intents import MoveAway, Transfer
from brokers.load import Averages, BundleLoad, LoadBus, Report
from brokers.repeated_failures import RepeatedFailures
from brokers.worker import Worker
from channel.errors import EquipoiseError
from channel.view import View
from shedder.level import Leveller
from shedder.memory import Memory
from shedder.plan import Move, Plan, Shedder
from shedder.scheduler import Scheduler
from shedder.snapshot import Snapshot, take

_logger: Final = logging.getLogger(__name__)

# A report that is older than three intervals is of a broker that is stuck, or gone.
_INTERVALS_FRESH: Final = 3

# How long a bundle rests after a move, in intervals: the averages have forgotten by then how it was called before.
_INTERVALS_AT_REST: Final = 12

# The bus is away when the log is, which is told already; what is wrong with the bus alone, or with a shedder, waits for somebody.
_TOLD_AGAIN_MS: Final = 60_000


class Balancing:
    """The balancer of one worker. `run` goes on until it is cancelled; whatever fails in a round is told, and tried anew."""

    def __init__(self, worker: Worker, bus: LoadBus, *, shedder: Shedder | None = None) -> None:
        self._worker = worker
        self._bus = bus
        self._shedder = shedder or Leveller()
        self._interval_ms = worker.config.balance_interval_ms
        self._averages = Averages()
        self._scheduler = Scheduler(interval_ms=self._interval_ms, cool_down_ms=self._interval_ms * _INTERVALS_AT_REST)
        self._sampled_ms = worker.clock.now().boot_ms
        self._moves: set[asyncio.Task[None]] = set()
        self._told: Mapping[str, str] = {}
        self._memory = Memory()
        self._failures = RepeatedFailures(told_again_ms=_TOLD_AGAIN_MS)

    async def run(self) -> None:
        """Publish this broker's load every half interval; when it leads, shed. Its end is that of all that it waits for, too."""
        try:
            while True:
                await asyncio.sleep(self._interval_ms / 2_000)
                await self._turn()
        finally:
            moves = list(self._moves)
            for move in moves:
                move.cancel()
            await asyncio.gather(*moves, return_exceptions=True)

    async def _turn(self) -> None:
        try:
            await asyncio.to_thread(self._bus.publish, self._report())
            if self._worker.agent.leads and self._scheduler.due(self._worker.clock.now().boot_ms):
                await self._round()
        except Exception as error:  # noqa: BLE001 - what a shedder gets wrong must not end balancing unheard.
            self._failed(error)
        else:
            untold = self._failures.succeeded()
            if untold is not None:
                _logger.info("balancing succeeds again", extra={"broker": self._worker.broker_id, "failures": untold})

    def _failed(self, error: Exception) -> None:
        failures = self._failures.failed(self._worker.clock.now().boot_ms)
        if failures is None:
            return
        fields = {"broker": self._worker.broker_id, "failures": failures}
        if isinstance(error, EquipoiseError):
            _logger.warning("a round of balancing failed: %s", error, extra=fields)
        else:
            _logger.error("a round of balancing failed", extra=fields, exc_info=error)

    def _report(self) -> Report:
        sample = self._worker.loads.latest()
        weighed = {name: sample.loads.get(name, BundleLoad()) for name in self._worker.open_bundles}
        averages = self._averages.update(weighed, elapsed_ms=sample.at_ms - self._sampled_ms)
        self._sampled_ms = sample.at_ms
        at_ms = self._worker.clock.now().wall_ms
        return Report(broker=self._worker.broker_id, at_ms=at_ms, capacity=self._worker.config.capacity, bundles=dict(averages))

    async def _round(self) -> None:
        now = self._worker.clock.now()
        plan = self._shedder.plan(await self._snapshot(now))
        self._memory = plan.memory
        self._tell(plan)
        for move in plan.moves:
            self._scheduler.began(move.bundle, now.boot_ms)
            task = asyncio.get_running_loop().create_task(self._move(move), name=f"move of {move.bundle}")
            self._moves.add(task)
            task.add_done_callback(self._moves.discard)

    async def _snapshot(self, now: Instant) -> Snapshot:
        reports = await asyncio.to_thread(self._bus.latest)
        return take(
            self._worker.view,
            reports,
            now_ms=now.wall_ms,
            age_ms_max=self._interval_ms * _INTERVALS_FRESH,
            resting=self._scheduler.resting(now.boot_ms),
            memory=self._memory,
        )

    def _tell(self, plan: Plan) -> None:
        """Log why nothing moves, of each that stays and of the whole round, when it is another reason than before."""
        told = {stay.subject: stay.reason for stay in plan.stays}
        if plan.idle is not None:
            told["the round"] = plan.idle.reason
        for subject, reason in told.items():
            if self._told.get(subject) != reason:
                _logger.debug("stays", extra={"subject": subject, "reason": reason})
        self._told = told

    async def _move(self, move: Move) -> None:
        """Ask for one move and wait for its end, whatever it is: owned there, called off, or the deadline."""
        timeout_ms = self._worker.config.admin_ms
        try:
            intent = (
                MoveAway(bundle=move.bundle, reason=move.reason)
                if move.destination is None
                else Transfer(bundle=move.bundle, destination=move.destination, reason=move.reason)
            )
            offset = await self._worker.request(intent, timeout_ms=timeout_ms)
            await self._worker.until(
                lambda view: _is_over(view, move.bundle, offset), timeout_ms=timeout_ms, what=f"the move of {move.bundle}"
            )
            owner = _owner_of(self._worker.view, move.bundle)
            if owner != move.source:  # Else it was called off, and changed nobody's load.
                self._memory = self._memory.after_move(move.source, owner, now_ms=self._worker.clock.now().wall_ms)
        except EquipoiseError as error:
            _logger.info("a move was not made: %s", error, extra={"bundle": move.bundle, "destination": move.destination})
        finally:
            self._scheduler.ended(move.bundle, self._worker.clock.now().boot_ms)


def _is_over(view: View, bundle: str, offset: int) -> bool | None:
    entry = view.bundles.get(bundle)
    return (entry is None or (entry.last > offset and entry.phase == "owned")) or None


def _owner_of(view: View, bundle: str) -> str | None:
    """The broker that a bundle is at after its move; None if it is nowhere, or is gone."""
    entry = view.bundles.get(bundle)
    owner = None if entry is None or entry.owner is None else view.live.get(entry.owner)
    return None if owner is None else owner.broker
