"""When which topic must be looked at again, because it waits for clients that may not come back.

May live here: one timer for all topics, and the table of those that wait.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from equipoise.brokers.pulsar.hosting import Served

_logger: Final = logging.getLogger(__name__)

# What may not be done at this moment, because the lease has run out, is tried again so much later: it may be renewed, or lost for good.
_AGAIN_MS: Final = 100

# All topics of a bundle are due in the same millisecond. So long, and one topic's step more, are they looked at in one turn of the
# loop; then others have theirs, and the rest is looked at in the next.
_TURN_MS: Final = 20


class Deadlines:
    """The topics that wait; each is looked at when its time has come, which may come nearer meanwhile."""

    def __init__(self, look: Callable[[Served], None], *, now_ms: Callable[[], int]) -> None:
        """`look` lets a topic do what time has come for, and has it watched on, or put off; `now_ms` is the clock of topics."""
        self._look = look
        self._now_ms = now_ms
        self._waiting: dict[Served, int] = {}
        # By time, and then as they came. An entry whose time is not (any more) that in the table is out of date.
        self._queue: list[tuple[int, int, Served]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0

    def waiting(self) -> Sequence[Served]:
        """Those that wait. One that has ceased to is told from its state, since nobody says so."""
        return [served for served in self._waiting if _waits(served)]

    def watch(self, served: Served) -> None:
        """Look at a topic when it says so; no-op if it does not wait."""
        wake_at_ms = served.topic.wake_at_ms
        if wake_at_ms is not None:
            # Behind those that are due already, so that one that has much to do takes turns with them.
            self._look_at(served, max(wake_at_ms, self._now_ms()))

    def put_off(self, served: Served) -> None:
        """Look at a topic in a moment: at this one nothing may be done for it. No-op if it does not wait."""
        if served.topic.wake_at_ms is not None:
            self._look_at(served, self._now_ms() + _AGAIN_MS)

    def _look_at(self, served: Served, due_ms: int) -> None:
        # Too early does no harm, and the next look finds out when another is due.
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
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        began_ms = now_ms = self._now_ms()
        while self._queue and self._queue[0][0] <= began_ms and now_ms - began_ms < _TURN_MS:
            due_ms, _, served = heappop(self._queue)
            if self._waiting.get(served) == due_ms:
                del self._waiting[served]
                self._look_now(served)
                now_ms = self._now_ms()
        if self._queue:
            self._arm(self._queue[0][0])

    def _look_now(self, served: Served) -> None:
        if not _waits(served):
            return
        try:
            self._look(served)
        except Exception:
            # What one topic fails by must not keep the others waiting for ever.
            _logger.exception("a topic failed as its time had come", extra={"topic": served.name})


def _waits(served: Served) -> bool:
    return served.topic.wake_at_ms is not None and not served.topic.is_fenced
