"""Count the decisions of a broker, and write those with news to the decision log.

A queue connects the loops that decide and the thread that writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.decision_log import DecisionLog
from equipoise.brokers.runtime.clock import Clock
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.system.failures import LoggedFailures

_logger: Final = logging.getLogger(__name__)

# The most decisions that wait. Each loop makes at most one a second, so this covers minutes of an
# outage.
_WAITING_MAX: Final = 1_000

REPEATED_MS: Final = 60_000
"""Equal rounds of a shedder without moves are written once in this time; all are counted."""


class DecisionWriter:
    """Takes decisions of one broker, on its loop. `run` writes them in a thread until it is
    cancelled.
    """

    def __init__(
        self, log: DecisionLog, *, broker: str, clock: Clock, counted: Callable[[Decision], None]
    ) -> None:
        """`counted` is called with every decision, written or not."""
        self._log = log
        self._clock = clock
        self._counted = counted
        self._waiting: asyncio.Queue[Decision] = asyncio.Queue(_WAITING_MAX)
        self._shed: tuple[Decision, int] | None = None
        self._failures = LoggedFailures(
            _logger, broker=broker, failed="decision not stored", over="decisions are stored again"
        )

    def decided(self, decision: Decision) -> None:
        """Count a decision, and queue it for writing if it has news. Splits and merges always
        have.
        """
        self._counted(decision)
        if decision.kind == "shed":
            now_ms, written = self._clock.now().boot_ms, self._shed
            if (
                written is not None
                and now_ms - written[1] < REPEATED_MS
                and not decision.plan.moves
                and _is_like(decision, written[0])
            ):
                return
            self._shed = (decision, now_ms)
        try:
            self._waiting.put_nowait(decision)
        except asyncio.QueueFull:
            self._failed(
                Overloaded(
                    what=f"the queue of decisions at broker {decision.broker}", limit=_WAITING_MAX
                )
            )

    async def run(self) -> None:
        """Write the queued decisions in order. A decision that cannot be written is lost, which is
        logged once a minute.
        """
        while True:
            decision = await self._waiting.get()
            try:
                await asyncio.to_thread(self._log.write, decision)
            except Exception as error:  # noqa: BLE001 - one failed decision must not end the loop.
                self._failed(error)
            else:
                self._failures.succeeded()

    def _failed(self, error: Exception) -> None:
        self._failures.failed(error, self._clock.now().boot_ms)


def _is_like(decision: Decision, before: Decision) -> bool:
    """Return whether two rounds without moves have the same outcome. Details of single brokers
    differ a little each time.
    """
    return not before.plan.moves and (decision.strategy, decision.counted) == (
        before.strategy,
        before.counted,
    )
