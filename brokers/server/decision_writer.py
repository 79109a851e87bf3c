"""The writer of a broker's decisions: it counts each, and has those that tell something new written to the decision log.

May live here: the queue between the loops that decide and the thread that writes, and what need not be written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from equipoise.brokers.balancing.decisions import Decision, DecisionLog
from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.failures.told_failures import ToldFailures
from equipoise.channel.core.errors import Overloaded

_logger: Final = logging.getLogger(__name__)

# Decisions that wait to be written: each loop of a broker makes one a second at most, so that these are minutes of an outage.
_WAITING_MAX: Final = 1_000

REPEATED_MS: Final = 60_000
"""Rounds of a shedder that move nothing, and come to the same, are written once in so long; all are counted."""


class DecisionWriter:
    """Takes decisions of one broker, in its loop; `run` writes them, in a thread, until it is cancelled."""

    def __init__(self, log: DecisionLog, *, broker: str, clock: Clock, counted: Callable[[Decision], None]) -> None:
        """`counted` is told of every decision, written or not."""
        self._log = log
        self._clock = clock
        self._counted = counted
        self._waiting: asyncio.Queue[Decision] = asyncio.Queue(_WAITING_MAX)
        self._shed: tuple[Decision, int] | None = None
        self._failures = ToldFailures(_logger, broker=broker, failed="a decision is not kept", over="decisions are kept again")

    def decided(self, decision: Decision) -> None:
        """Count a decision, and have it written if it tells something new, as those of splits and merges always do."""
        self._counted(decision)
        if decision.kind == "shed":
            now_ms, written = self._clock.now().boot_ms, self._shed
            if written is not None and now_ms - written[1] < REPEATED_MS and not decision.moves and _is_like(decision, written[0]):
                return
            self._shed = (decision, now_ms)
        try:
            self._waiting.put_nowait(decision)
        except asyncio.QueueFull:
            self._failed(Overloaded(what=f"the row of decisions to be written at broker {decision.broker}", limit=_WAITING_MAX))

    async def run(self) -> None:
        """Write what was decided, one after the other; what cannot be written is lost, and told once a minute."""
        while True:
            decision = await self._waiting.get()
            try:
                await asyncio.to_thread(self._log.write, decision)
            except Exception as error:  # noqa: BLE001 - what one decision meets must not end all that come after it.
                self._failed(error)
            else:
                self._failures.succeeded()

    def _failed(self, error: Exception) -> None:
        self._failures.failed(error, self._clock.now().boot_ms)


def _is_like(decision: Decision, before: Decision) -> bool:
    """Whether two rounds that move nothing came to the same: what is told of single brokers differs a little at each look."""
    return not before.moves and (decision.strategy, decision.counted) == (before.strategy, before.counted)
