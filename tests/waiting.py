"""Wait for what other processes and threads do, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from equipoise.channel.core.view import View

PATIENCE_S: Final = 120.0
_LOOK_S: Final = 0.02


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds. Fail with `what` has not happened."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(_LOOK_S)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait as `wait_until`, and let other tasks run meanwhile."""
    give_up_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_s, f"not within {PATIENCE_S:.0f} s: {what}"
        await asyncio.sleep(_LOOK_S)


def all_owned(view: View) -> bool | None:
    """Return whether there are bundles and each has an owner, and does not move; None if not."""
    bundles = view.bundles.values()
    return (bool(bundles) and all(bundle.phase == "owned" for bundle in bundles)) or None
