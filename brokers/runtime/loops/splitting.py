"""Run a broker's rounds of automatic splits and merges over the bundles that it owns.

`auto_split` and `auto_merge` decide; `splitting_memory` prepares the input and keeps the state.
This module runs the loop and makes the changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Final

from equipoise.brokers.agent.requests import MergeBundles, MoveAway, SplitBundle
from equipoise.brokers.balancing.controls import Controls, controls_in
from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.placement import places_elsewhere
from equipoise.brokers.balancing.settings.balancing_settings import (
    BalancingSettings,
    RoundSettings,
    merge_settings_of,
    split_settings_of,
)
from equipoise.brokers.balancing.splitting.auto_merge import MergeDecision, plan_merges
from equipoise.brokers.balancing.splitting.auto_split import SplitDecision, plan_splits
from equipoise.brokers.balancing.splitting.splitting_memory import (
    SplittingMemory,
    Standing,
    standing_of,
)
from equipoise.brokers.errors import Rejected
from equipoise.brokers.operations.in_worker import Operations, WorkerPort
from equipoise.brokers.operations.moves import move
from equipoise.brokers.runtime.clock import interval_passed
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.failures import LoggedFailures
from equipoise.shedder.loads import BundleTraffic

_logger: Final = logging.getLogger(__name__)

# What may fail. Each is logged separately.
_ROUND: Final = "a round of splits and merges"
_SPLIT: Final = "a split"
_MERGE: Final = "a merge"
_UNLOAD: Final = "an unload after a split"

_UNLOADED: Final = "a part of a bundle that was split for its load; the parts are unloaded"


class Splitting:
    """The rounds of one worker. `run` continues until it is cancelled; it logs a failed round and
    decides again.

    A round looks at all bundles of the broker, in a thread. It makes the due changes at once and
    waits for them. The next round starts one interval later.
    """

    def __init__(
        self,
        worker: Worker,
        bundles: Callable[[], Sequence[BundleTraffic]],
        settings: Callable[[], BalancingSettings],
        decided: Callable[[Decision], None],
    ) -> None:
        """`bundles` returns the load of each open bundle; it is called in a thread.

        `settings` returns the settings in force. `decided` is called with decisions.
        """
        self._worker = worker
        self._bundles = bundles
        self._settings = settings
        self._decided = decided
        self._operations = Operations(worker)
        self._splitting_memory = SplittingMemory()
        self._failures = {
            what: LoggedFailures(
                _logger,
                broker=worker.broker_id,
                failed=f"{what} failed",
                over=f"{what} succeeds again",
            )
            for what in (_ROUND, _SPLIT, _MERGE, _UNLOAD)
        }

    async def run(self) -> None:
        """Run rounds, one interval apart. The first starts one interval after the start, so that
        there are averages.
        """
        while True:
            await interval_passed(
                lambda: self._settings().balancing.split_interval_ms, self._worker.clock
            )
            try:
                await self._round(self._settings())
            except Exception as error:  # noqa: BLE001 - the next round may succeed after any error.
                self._failed(_ROUND, error)
            else:
                self._failures[_ROUND].succeeded()

    async def _round(self, settings: BalancingSettings) -> None:
        rounds, splitting_memory = settings.balancing, self._splitting_memory
        bundles = await asyncio.to_thread(self._bundles)
        await self._part(
            self._split,
            splitting_memory.forget_splits,
            bundles,
            settings,
            wanted=rounds.enabled and rounds.splitting,
        )
        await self._part(
            self._merge,
            splitting_memory.forget_merges,
            bundles,
            settings,
            wanted=rounds.enabled and rounds.merging,
        )

    @property
    def _controls(self) -> Controls:
        return controls_in(self._worker.view, self._worker.clock.now().wall_ms)

    async def _part(
        self,
        divide: Callable[
            [Standing, Sequence[BundleTraffic], BalancingSettings], Awaitable[Decision | None]
        ],
        forget: Callable[[], None],
        bundles: Sequence[BundleTraffic],
        settings: BalancingSettings,
        *,
        wanted: bool,
    ) -> None:
        """Run one half of a round if `wanted`, possible and not paused; otherwise `forget` its
        counts.
        """
        is_due = wanted and self._controls.pause is None
        # Read again for merges, because splits take time.
        standing = self._standing(bundles) if is_due else None
        if standing is None:
            forget()
            return
        decision = await divide(standing, bundles, settings)
        if decision is not None:
            self._decided(decision)

    def _standing(self, bundles: Sequence[BundleTraffic]) -> Standing | None:
        """Return the state of the bundles; None if this broker is not a member, or drains."""
        view, incarnation = self._worker.view, self._worker.agent.incarnation
        member = None if incarnation is None else view.live.get(incarnation)
        if member is None or member.status != "up":
            return None
        return standing_of(
            view,
            member.incarnation,
            (bundle.bundle for bundle in bundles),
            frozen=self._controls.why_frozen,
        )

    async def _split(
        self, standing: Standing, bundles: Sequence[BundleTraffic], settings: BalancingSettings
    ) -> Decision | None:
        splitting_memory, rounds, split_settings = (
            self._splitting_memory,
            settings.balancing,
            split_settings_of(settings),
        )
        snapshot = splitting_memory.split_snapshot(
            standing, bundles, now_ms=self._now_ms, rest_ms=rounds.rest_ms
        )
        plan = await asyncio.to_thread(
            plan_splits, snapshot, split_settings, splitting_memory.split_hits
        )
        problems = await _together(
            {split.bundle: self._carry_out_split(split, rounds) for split in plan.splits}
        )
        hits_threshold, now = split_settings.hits_threshold, self._worker.clock.now()
        return splitting_memory.splits_ended(
            plan,
            problems,
            broker=standing.broker,
            hits_threshold=hits_threshold,
            now_ms=now.boot_ms,
            at_ms=now.wall_ms,
        )

    async def _merge(
        self, standing: Standing, bundles: Sequence[BundleTraffic], settings: BalancingSettings
    ) -> Decision | None:
        splitting_memory, rounds, merge_settings = (
            self._splitting_memory,
            settings.balancing,
            merge_settings_of(settings),
        )
        snapshot = splitting_memory.merge_snapshot(
            standing, bundles, now_ms=self._now_ms, rest_ms=rounds.rest_ms
        )
        plan = await asyncio.to_thread(
            plan_merges, snapshot, merge_settings, splitting_memory.merge_hits
        )
        problems = await _together(
            {merge.left: self._carry_out_merge(merge, rounds) for merge in plan.merges}
        )
        hits_threshold, now = merge_settings.hits_threshold, self._worker.clock.now()
        return splitting_memory.merges_ended(
            plan,
            problems,
            broker=standing.broker,
            hits_threshold=hits_threshold,
            now_ms=now.boot_ms,
            at_ms=now.wall_ms,
        )

    def _port(self, rounds: RoundSettings) -> WorkerPort:
        return self._operations.port(Deadline.after(timeout_ms=rounds.move_timeout_ms))

    async def _carry_out_split(self, split: SplitDecision, rounds: RoundSettings) -> str | None:
        """Split a bundle. Return why it failed, or None."""
        intent = SplitBundle(
            bundle=split.bundle,
            algorithm=rounds.split_algorithm,
            positions=None,
            reason=split.reason,
        )
        try:
            _, children = await move(self._port(rounds), intent, f"the split of {split.bundle}")
        except EquipoiseError as error:
            return self._failed(_SPLIT, error)
        self._failures[_SPLIT].succeeded()
        if rounds.unload_split_children:
            planned = places_elsewhere(self._worker.view, children, self._worker.placement)
            await asyncio.gather(
                *(self._unload(child.name, planned.get(child.name), rounds) for child in children)
            )
        return None

    async def _carry_out_merge(self, merge: MergeDecision, rounds: RoundSettings) -> str | None:
        """Merge two neighbours. Return why it failed, or None."""
        intent = MergeBundles(left=merge.left, right=merge.right, reason=merge.reason)
        try:
            await self._port(rounds).propose(intent)
        except EquipoiseError as error:
            return self._failed(_MERGE, error)
        self._failures[_MERGE].succeeded()
        return None

    async def _unload(self, child: str, planned: int | None, rounds: RoundSettings) -> None:
        """Start to move a child of a split away, if another broker may have it. `planned` is as in
        `MoveAway`.
        """
        intent = MoveAway(bundle=child, reason=_UNLOADED, or_stay=True, planned=planned)
        try:
            await self._port(rounds).propose(intent)
        except Rejected as error:
            _logger.info(
                "child of a split stays: %s",
                error,
                extra={"broker": self._worker.broker_id, "bundle": child},
            )
        except EquipoiseError as error:
            self._failed(_UNLOAD, error)
        else:
            self._failures[_UNLOAD].succeeded()

    @property
    def _now_ms(self) -> int:
        return self._worker.clock.now().boot_ms

    def _failed(self, what: str, error: Exception) -> str:
        """Log a failure, at intervals. Return its message."""
        self._failures[what].failed(error, self._now_ms)
        return str(error)


async def _together(deeds: Mapping[str, Coroutine[None, None, str | None]]) -> Mapping[str, str]:
    """Run the coroutines concurrently. Return the problems of those that failed, by name."""
    problems = await asyncio.gather(*deeds.values())
    return {
        name: problem for name, problem in zip(deeds, problems, strict=True) if problem is not None
    }
