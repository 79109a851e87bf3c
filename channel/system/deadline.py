"""Pass one deadline down a whole request, instead of a timeout per call.

For the IO edge only. Pure modules take their time as a number.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from equipoise.channel.core.errors import DeadlineExceeded

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A moment: `timeout_ms` milliseconds after `started_ns`, an instant of the monotonic clock."""

    started_ns: int
    timeout_ms: int

    def __repr__(self) -> str:
        return f"<Deadline: {self.remaining_ms()} of {self.timeout_ms} ms left>"

    @classmethod
    def after(cls, *, timeout_ms: int) -> Deadline:
        """Return the deadline that is `timeout_ms` from now."""
        return cls(started_ns=time.monotonic_ns(), timeout_ms=timeout_ms)

    def remaining_ms(self) -> int:
        """Return the time left in milliseconds; 0 once it is over. It rounds up, so that no caller
        spins through the last millisecond.
        """
        return max(0, self.timeout_ms - (time.monotonic_ns() - self.started_ns) // 1_000_000)

    def exceeded(self, what: str) -> DeadlineExceeded:
        """Return the error to raise when `what` did not happen in time."""
        return DeadlineExceeded(what=what, waited_ms=self.timeout_ms)

    def check(self, what: str) -> None:
        """Raise `DeadlineExceeded` if the deadline is over before `what` happened."""
        if not self.remaining_ms():
            raise self.exceeded(what)

    async def wait(self, awaited: Awaitable[Result], *, what: str) -> Result:
        """Return the result of `awaited`. Cancel it at the deadline, and raise `DeadlineExceeded`
        with `what`.

        Raises the errors of `awaited`, including its own `TimeoutError`, such as a socket's.
        """
        limit = asyncio.timeout(self.remaining_ms() / 1_000)
        try:
            async with limit:
                return await awaited
        except TimeoutError:
            if not limit.expired():
                raise
            raise self.exceeded(what) from None
