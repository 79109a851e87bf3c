"""When which topic must be looked at again, because it waits for clients that may not come back.

May live here: one timer for all topics, and the table of those that wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from brokers.pulsar.hosting import Served

_logger: Final = logging.getLogger(__name__)

# What may not be done at this moment, because the lease has run out, is tried again so much later: it may be renewed, or lost for good.
_AGAIN_MS: Final = 100


class Deadlines:
    """The topics that wait; each is looked at when its time has come, which may come nearer meanwhile."""

    def __init__(self, look: Callable[[Served], None], *, now_ms: Callable[[], int]) -> None:
        """`look` lets a topic do what time has come for, and has it watched on, or put off; `now_ms` is the clock of topics."""
        self._look = look
        self._now_ms = now_ms
        self._waiting: dict[Served, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0

    def __len__(self) -> int:
        """How many wait. One that has ceased to is told from its state, since nobody says so."""
        return sum(1 for served in self._waiting if served.topic.wake_at_ms is not None and not served.topic.is_fenced)

    def watch(self, served: Served) -> None:
        """Look at a topic when it says so; no-op if it does not wait."""
        wake_at_ms = served.topic.wake_at_ms
        if wake_at_ms is not None:
            self._look_at(served, wake_at_ms)

    def put_off(self, served: Served) -> None:
        """Look at a topic in a moment: at this one nothing may be done for it. No-op if it does not wait."""
        if served.topic.wake_at_ms is not None:
            self._look_at(served, self._now_ms() + _AGAIN_MS)

    def _look_at(self, served: Served, due_ms: int) -> None:
        # Too early does no harm, and the next look finds out when another is due.
        self._waiting[served] = due_ms = min(due_ms, self._waiting.get(served, due_ms))
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
        now_ms = self._now_ms()
        for served, due_ms in list(self._waiting.items()):
            if served.topic.wake_at_ms is None or served.topic.is_fenced:
                del self._waiting[served]
            elif due_ms <= now_ms:
                del self._waiting[served]
                try:
                    self._look(served)
                except Exception:
                    # What one topic fails by must not keep the others waiting for ever.
                    _logger.exception("a topic failed as its time had come", extra={"topic": served.name})
        if self._waiting:
            self._arm(min(self._waiting.values()))
