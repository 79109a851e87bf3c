"""Starting while the log is away: a broker waits for it, within a bound, and says so.

May live here: the wait, its lines, and what is answered meanwhile to those who watch over the process.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import AsyncExitStack
from typing import Final

from equipoise.brokers.http.app import served
from equipoise.brokers.http.waiting_room import WaitingRoom
from equipoise.brokers.runtime.channel_loss import ChannelLoss
from equipoise.brokers.runtime.failures.repeated_failures import RepeatedFailures
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import LogUnavailable
from equipoise.channel.system.deadline import Deadline

_logger: Final = logging.getLogger(__name__)

# The pause after a log could not be opened: cheap, and short against what a start takes.
_TRY_AGAIN_MS: Final = 1_000

# While it waits one line in this time says so, as of failed appends.
_TOLD_AGAIN_MS: Final = 10_000


class Starting:
    """The start of one worker, on a log that may be away for a while, as it may be later on."""

    def __init__(self, worker: Worker, *, listening: socket.socket | None, stopping: asyncio.Event) -> None:
        """At `listening`, if there is one, it is answered that the broker is not ready; once `stopping` is set nobody waits any more."""
        self._worker = worker
        self._listening = listening
        self._stopping = stopping
        self._began_ms = worker.clock.now().boot_ms
        self._problem = ""
        self._failures = RepeatedFailures(told_again_ms=_TOLD_AGAIN_MS)

    async def start(self) -> None:
        """Start the worker, and try again while its log is away, for `log_wait_ms`.

        Raises what `Worker.start` raises: what is wrong with the log at once, and `LogUnavailable` at the end of the wait.
        """
        deadline = Deadline.after(timeout_ms=self._worker.config.log_wait_ms)
        async with AsyncExitStack() as room:
            is_open = False
            while True:
                try:
                    await self._worker.start()
                except LogUnavailable as error:
                    if self._stopping.is_set() or not deadline.remaining_ms():
                        raise
                    self._tell(error, left_ms=deadline.remaining_ms())
                    away = error
                else:
                    return
                if not is_open and self._listening is not None:
                    # A copy of the socket: what is served here ends with it, and the port goes on listening.
                    answering = WaitingRoom(broker=self._worker.broker_id, loss=self._loss).app()
                    await room.enter_async_context(served(answering, self._listening.dup(), self._worker))
                    is_open = True
                if await self._is_stopping_after(min(_TRY_AGAIN_MS, deadline.remaining_ms())):
                    raise away

    def _tell(self, error: LogUnavailable, *, left_ms: int) -> None:
        self._problem = str(error)
        failures = self._failures.failed(self._worker.clock.now().boot_ms)
        if failures is not None:
            fields = {"broker": self._worker.broker_id, "failures": failures, "seconds_left": left_ms // 1_000}
            _logger.warning("the log is waited for: %s", error, extra=fields)

    async def _is_stopping_after(self, pause_ms: int) -> bool:
        """Let some time pass; whether nobody waits any more."""
        try:
            async with asyncio.timeout(pause_ms / 1_000):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    def _loss(self) -> ChannelLoss:
        now = self._worker.clock.now()
        lost_ms = now.boot_ms - self._began_ms
        return ChannelLoss(since_ms=now.wall_ms - lost_ms, lost_ms=lost_ms, problem=self._problem, serving_on={})
