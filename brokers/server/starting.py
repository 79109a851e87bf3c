"""Start a broker while its log is unavailable: wait for the log up to a limit, and report the
wait.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import AsyncExitStack
from typing import Final

from equipoise.brokers.http.app import served
from equipoise.brokers.http.health import WaitingRoom
from equipoise.brokers.runtime.channel_loss import ChannelLoss
from equipoise.brokers.runtime.failures import RepeatedFailures
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import LogUnavailable
from equipoise.channel.system.deadline import Deadline

_logger: Final = logging.getLogger(__name__)

# The pause after a failed attempt to open the log: cheap, and short compared with a start.
_TRY_AGAIN_MS: Final = 1_000

# How often the wait is logged, as for failed appends.
_LOG_INTERVAL_MS: Final = 10_000


class Starting:
    """The start of one worker, on a log that may be unavailable for a while."""

    def __init__(
        self, worker: Worker, *, listening: socket.socket | None, stopping: asyncio.Event
    ) -> None:
        """On `listening`, if given, requests get the answer that the broker is not ready. Once
        `stopping` is set, the wait ends.
        """
        self._worker = worker
        self._listening = listening
        self._stopping = stopping
        self._began_ms = worker.clock.now().boot_ms
        self._problem = ""
        self._failures = RepeatedFailures(interval_ms=_LOG_INTERVAL_MS)

    async def start(self) -> None:
        """Start the worker, and retry while its log is unavailable, for up to `log_wait_ms`.

        Raises the errors of `Worker.start`: other problems at once, and `LogUnavailable` at the end
        of the wait.
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
                    self._log(error, left_ms=deadline.remaining_ms())
                    away = error
                else:
                    return
                if not is_open and self._listening is not None:
                    # A copy of the socket: it ends with this server, and the port keeps listening.
                    answering = WaitingRoom(broker=self._worker.broker_id, loss=self._loss).app()
                    await room.enter_async_context(
                        served(answering, self._listening.dup(), self._worker)
                    )
                    is_open = True
                if await self._is_stopping_after(min(_TRY_AGAIN_MS, deadline.remaining_ms())):
                    raise away

    def _log(self, error: LogUnavailable, *, left_ms: int) -> None:
        self._problem = str(error)
        failures = self._failures.failed(self._worker.clock.now().boot_ms)
        if failures is not None:
            fields = {
                "broker": self._worker.broker_id,
                "failures": failures,
                "seconds_left": left_ms // 1_000,
            }
            _logger.warning("waiting for the log: %s", error, extra=fields)

    async def _is_stopping_after(self, pause_ms: int) -> bool:
        """Wait. Return whether a stop was requested."""
        try:
            async with asyncio.timeout(pause_ms / 1_000):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    def _loss(self) -> ChannelLoss:
        now = self._worker.clock.now()
        lost_ms = now.boot_ms - self._began_ms
        return ChannelLoss(
            since_ms=now.wall_ms - lost_ms, lost_ms=lost_ms, problem=self._problem, serving_on={}
        )
