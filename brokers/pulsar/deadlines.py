"""Run one timer for all topics that wait for clients after a move."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from equipoise.brokers.pulsar.hosting import Served

_logger: Final = logging.getLogger(__name__)

# Retry interval while the lease has expired: it may be renewed, or lost for good.
_AGAIN_MS: Final = 100

# All topics of a bundle are due in the same millisecond. One turn of the loop handles them for this
# long, plus one topic's step; the rest follow in the next turn.
_TURN_MS: Final = 20


class Deadlines:
    """The waiting topics and their due times. A due time may move closer."""

    def __init__(self, handle: Callable[[Served], None], *, now_ms: Callable[[], int]) -> None:
        """`handle` handles a due topic and then watches it again or puts it off. `now_ms` is the
        clock of topics.
        """
        self._handle = handle
        self._now_ms = now_ms
        self._waiting: dict[Served, int] = {}
        # By time, then in order of insertion. An entry whose time differs from the table is
        # outdated.
        self._queue: list[tuple[int, int, Served]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0

    def waiting(self) -> Sequence[Served]:
        """Return the topics that still wait. Topics that stopped waiting are found by their
        state.
        """
        return [served for served in self._waiting if _waits(served)]

    def watch(self, served: Served) -> None:
        """Handle a topic at its `wake_at_ms`. No-op if it does not wait."""
        wake_at_ms = served.topic.wake_at_ms
        if wake_at_ms is not None:
            # Queue it behind those already due, so that a topic with much work takes turns with
            # them.
            self._schedule(served, max(wake_at_ms, self._now_ms()))

    def put_off(self, served: Served) -> None:
        """Handle a topic after `_AGAIN_MS`, because nothing may be done for it now. No-op if it
        does not wait.
        """
        if served.topic.wake_at_ms is not None:
            self._schedule(served, self._now_ms() + _AGAIN_MS)

    def _schedule(self, served: Served, due_ms: int) -> None:
        # An early call is harmless: it finds out the next due time.
        known_ms = self._waiting.get(served)
        if known_ms is not None and known_ms <= due_ms:
            return
        self._waiting[served] = due_ms
        heappush(self._queue, (due_ms, next(self._numbers), served))
        if self._timer is None or due_ms < self._due_ms:
            self._arm(due_ms)

    def _arm(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms = due_ms
        delay_ms = max(due_ms - self._now_ms(), 1)
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        began_ms = now_ms = self._now_ms()
        while self._queue and self._queue[0][0] <= began_ms and now_ms - began_ms < _TURN_MS:
            due_ms, _, served = heappop(self._queue)
            if self._waiting.get(served) == due_ms:
                del self._waiting[served]
                self._handle_due(served)
                now_ms = self._now_ms()
        if self._queue:
            self._arm(self._queue[0][0])

    def _handle_due(self, served: Served) -> None:
        if not _waits(served):
            return
        try:
            self._handle(served)
        except Exception:
            # A failing topic must not block the others.
            _logger.exception("a due topic failed", extra={"topic": served.name})


def _waits(served: Served) -> bool:
    return served.topic.wake_at_ms is not None and not served.topic.is_fenced
