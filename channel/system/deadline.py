"""One deadline for a whole request, which is handed down in place of a timeout per call.

May live here: `Deadline` alone. It is for the rim, where IO is done and time passes; pure modules take their time as a number.
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
    """`timeout_ms` milliseconds after `started_ns`, an instant of the monotonic clock."""

    started_ns: int
    timeout_ms: int

    @classmethod
    def after(cls, *, timeout_ms: int) -> Deadline:
        """The deadline that comes `timeout_ms` from now."""
        return cls(started_ns=time.monotonic_ns(), timeout_ms=timeout_ms)

    def remaining_ms(self) -> int:
        """What is left of it, rounded up, so that nobody spins through its last millisecond; 0 once it has come."""
        return max(0, self.timeout_ms - (time.monotonic_ns() - self.started_ns) // 1_000_000)

    def exceeded(self, what: str) -> DeadlineExceeded:
        """The error to raise when `what` did not happen in time."""
        return DeadlineExceeded(what=what, waited_ms=self.timeout_ms)

    def check(self, what: str) -> None:
        """Raise `DeadlineExceeded` if it has come before `what` happened."""
        if not self.remaining_ms():
            raise self.exceeded(what)

    async def wait(self, awaited: Awaitable[Result], *, what: str) -> Result:
        """The result of `awaited`, which is cancelled if the deadline comes first; then `what` is in the `DeadlineExceeded`.

        Raises what `awaited` raises, a `TimeoutError` of its own too: such as a socket's, which has nothing to do with this deadline.
        """
        limit = asyncio.timeout(self.remaining_ms() / 1_000)
        try:
            async with limit:
                return await awaited
        except TimeoutError:
            if not limit.expired():
                raise
            raise self.exceeded(what) from None
