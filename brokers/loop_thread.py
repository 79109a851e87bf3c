"""An event loop in a thread of its own, for programs that have none.

May live here: `LoopThread`. What runs on the loop is its user's business.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import TypeVar

from channel.errors import DeadlineExceeded

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for any thread but its own on one loop, from `start` to `stop`, once each."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def run(self, coroutine: Coroutine[None, None, T], *, timeout_ms: int, what: str) -> T:
        """The result of a coroutine. Raises what it raises, and `DeadlineExceeded` naming `what`, which cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_ms / 1_000)
        except concurrent.futures.TimeoutError:
            if future.done():  # It raised a `TimeoutError` itself.
                raise
            future.cancel()
            raise DeadlineExceeded(what=what, waited_ms=timeout_ms) from None

    def stop(self) -> None:
        """End the loop, cancelling what still runs on it, and the thread with it."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._stopping.wait())
