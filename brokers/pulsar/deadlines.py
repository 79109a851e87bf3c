"""When which topic must be looked at again, because it waits for clients that may not come back.

May live here: one timer for all topics, and the table of those that wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokers.pulsar.hosting import Served


class Deadlines:
    """The topics that wait; each is looked at when its time has come, which may come nearer meanwhile."""

    def __init__(self, look: Callable[[Served], None], *, now_ms: Callable[[], int]) -> None:
        """`look` lets a topic do what time has come for; `now_ms` is the clock of topics."""
        self._look = look
        self._now_ms = now_ms
        self._waiting: dict[Served, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0

    def __len__(self) -> int:
        """How many wait. One that has ceased to is told from its state, since nobody says so."""
        return sum(1 for served in self._waiting if served.topic.wake_at_ms is not None and not served.topic.is_fenced)

    def watch(self, served: Served) -> None:
        """Look at a topic when it says so; no-op if it does not wait."""
        wake_at_ms = served.topic.wake_at_ms
        if wake_at_ms is None:
            return
        self._waiting[served] = None
        if self._timer is None or wake_at_ms < self._due_ms:
            self._arm(wake_at_ms)

    def _arm(self, due_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms = due_ms
        delay_ms = max(due_ms - self._now_ms(), 1)
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1_000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        for served in list(self._waiting):
            wake_at_ms = served.topic.wake_at_ms
            if wake_at_ms is not None and wake_at_ms <= now_ms and not served.topic.is_fenced:
                self._look(served)
            if served.topic.wake_at_ms is None or served.topic.is_fenced:
                del self._waiting[served]
        due_ms = [wake_at_ms for served in self._waiting if (wake_at_ms := served.topic.wake_at_ms) is not None]
        if due_ms:
            self._arm(min(due_ms))
