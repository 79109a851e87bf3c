"""Wait until a broker's view meets a condition, checked after each change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from equipoise.brokers.runtime.service import WorkerEnded
from equipoise.channel.core.errors import Overloaded
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline

T = TypeVar("T")

WAITERS_MAX: Final = 4_096
"""Waiting callers. Each checks a change in about 20 microseconds: 80 ms for all, a fifth of the stall that must not cost a lease. Lookups
over HTTP share one wait per bundle; the rest are a service's own callers and operators' moves."""

# Check again without a change: a broker becomes suspect by time alone.
_LOOK_AGAIN_MS: Final = 100


class Waiting:
    """The callers that wait for the view of one broker."""

    def __init__(self, look: Callable[[], View], *, broker: str) -> None:
        """`look` returns the current view."""
        self._look = look
        self._broker = broker
        self._changed = asyncio.Event()
        self._count = 0
        self._end: WorkerEnded | None = None

    def changed(self) -> None:
        """Make all waiting callers check again."""
        self._changed.set()

    def end(self, error: WorkerEnded) -> None:
        """End all waits with `error` after the broker's end."""
        self._end = error
        self._changed.set()

    async def until(self, condition: Callable[[View], T | None], *, timeout_ms: int, what: str) -> T:
        """See `brokers.runtime.worker.Worker.until`."""
        deadline = Deadline.after(timeout_ms=timeout_ms)
        result = self._result(condition)
        if result is not None:
            return result
        deadline.check(what)
        if self._count >= WAITERS_MAX:
            raise Overloaded(what=f"the row of those who wait at broker {self._broker}", limit=WAITERS_MAX)
        self._count += 1
        try:
            while True:
                await self._change(deadline)
                result = self._result(condition)
                if result is not None:
                    return result
                deadline.check(what)
        finally:
            self._count -= 1

    def _result(self, condition: Callable[[View], T | None]) -> T | None:
        result = condition(self._look())
        if result is None and self._end is not None:
            raise self._end.with_traceback(None)  # All callers share it.
        return result

    async def _change(self, deadline: Deadline) -> None:
        """Wait until something has changed, or until the next periodic check."""
        changed = self._changed = asyncio.Event() if self._changed.is_set() else self._changed
        try:
            async with asyncio.timeout(min(deadline.remaining_ms(), _LOOK_AGAIN_MS) / 1_000):
                await changed.wait()
        except TimeoutError:
            return
