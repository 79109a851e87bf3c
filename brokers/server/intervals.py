"""The wait between two rounds of something that a broker does by itself, when how long that is may change meanwhile.

May live here: that wait. What is done in a round is the business of those who wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from equipoise.brokers.runtime.clock import Clock

# A change of an interval is seen after this long at most: who has set hours by mistake can take it back.
_LOOK_AGAIN_MS: Final = 1_000


async def interval_passed(interval_ms: Callable[[], float], clock: Clock) -> None:
    """Wait until as long has passed since the call as `interval_ms` says at that moment."""
    began_ms = clock.now().boot_ms
    while (left_ms := began_ms + interval_ms() - clock.now().boot_ms) > 0:  # noqa: ASYNC110 - settings have no event
        await asyncio.sleep(min(left_ms, _LOOK_AGAIN_MS) / 1_000)
