"""An event loop whose time passes only while nothing is left to do, and a test's own work: the same
run on any machine.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import TypeVar
from unittest.mock import patch

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that skips what it would wait for a timer."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self.now_s

    def busy(self, seconds: float) -> None:
        """Let time pass as a handler does that computes: nothing else runs meanwhile."""
        self.now_s += seconds


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen"
        self._loop.now_s += max(timeout, 0)
        return super().select(0)


def run(coroutine: Coroutine[None, None, T]) -> T:
    """Return the result of a coroutine that runs in virtual time. Monotonic time is the loop's."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        with patch.object(time, "monotonic_ns", lambda: round(loop.now_s * 1_000_000_000)):
            return runner.run(coroutine)


def loop() -> VirtualLoop:
    """Return the running loop."""
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    return running
