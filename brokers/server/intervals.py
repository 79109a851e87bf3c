"""Wait for the next round of a background task whose interval may change during the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from equipoise.brokers.runtime.clock import Clock

# A change of the interval takes effect within this time, so an operator can correct an interval of hours.
_LOOK_AGAIN_MS: Final = 1_000


async def interval_passed(interval_ms: Callable[[], float], clock: Clock) -> None:
    """Return once the current value of `interval_ms` has passed since the call."""
    began_ms = clock.now().boot_ms
    while (left_ms := began_ms + interval_ms() - clock.now().boot_ms) > 0:  # noqa: ASYNC110 - settings have no event
        await asyncio.sleep(min(left_ms, _LOOK_AGAIN_MS) / 1_000)
