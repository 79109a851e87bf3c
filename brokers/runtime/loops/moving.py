"""Carry out the moves of a round as the leader: request each, and wait for its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from equipoise.brokers.agent.requests import Intent, MoveAway, Transfer
from equipoise.brokers.balancing.planning import broker_id_of
from equipoise.brokers.operations.in_worker import Operations
from equipoise.brokers.operations.moves import move as moved_by
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.system.clocks import Deadline
from equipoise.shedder.plan import Move
from equipoise.shedder.snapshot import EndedMove

_logger: Final = logging.getLogger(__name__)


class Moving:
    """The moves in progress that one leader has begun."""

    def __init__(
        self,
        worker: Worker,
        *,
        made: Callable[[EndedMove], None],
        ended: Callable[[str, int, str | None], None],
    ) -> None:
        """`made` is called with each move that was made, and then `ended` for each move: with its
        bundle, how long it took in ms, and why it was not done.
        """
        self._worker = worker
        self._made = made
        self._ended = ended
        self._operations = Operations(worker)
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, move: Move, planned: int | None, *, timeout_ms: int) -> None:
        """Start a move. `planned` is as in `MoveAway`."""
        task = asyncio.get_running_loop().create_task(
            self._move(move, planned, timeout_ms), name=f"move of {move.bundle}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._has_ended)
        self._worker.metrics.set("balancing_moves_under_way", len(self._tasks))

    async def cancel(self) -> None:
        """Cancel all moves. What the log has of them goes on."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._worker.metrics.set("balancing_moves_under_way", len(self._tasks))

    async def _move(self, move: Move, planned: int | None, timeout_ms: int) -> None:
        intent: Intent = (
            MoveAway(bundle=move.bundle, reason=move.reason, or_stay=True, planned=planned)
            if move.destination is None
            else Transfer(bundle=move.bundle, destination=move.destination, reason=move.reason)
        )
        clock = self._worker.clock
        began_ms, duration_ms = clock.now().boot_ms, 0
        problem: str | None = "its end is not known"
        try:
            port = self._operations.port(Deadline.after(timeout_ms=timeout_ms))
            _, made = await moved_by(port, intent, f"the move of {move.bundle}")
            owner = broker_id_of(self._worker.view, made[0].owner) if made else None
            now = clock.now()
            duration_ms = now.boot_ms - began_ms
            self._made(
                EndedMove(
                    source=move.source,
                    destination=owner,
                    at_ms=now.wall_ms,
                    duration_ms=duration_ms,
                )
            )
            problem = (
                None
                if owner == (move.destination or owner)
                else f"{owner or 'nobody'} has the bundle now"
            )
        except EquipoiseError as error:
            problem = str(error)
            _logger.info(
                "move failed: %s",
                error,
                extra={"bundle": move.bundle, "destination": move.destination},
            )
        finally:
            self._ended(move.bundle, duration_ms, problem)
