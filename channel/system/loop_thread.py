"""Run an async context in a thread of its own, for programs that have no event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, Self, TypeVar

from equipoise.channel.core.errors import CallerError, DeadlineExceeded

T = TypeVar("T")

CROSSING_MS: Final = 1_000
"""Extra time of a call from another thread, for the way to the loop and back."""


def not_running(what: str, problem: str) -> CallerError:
    """Return the error for `what`, used outside its context, or entered twice."""
    return CallerError(
        f"{what} cannot be used: {problem}; use it inside its `with`, and make a new one for each"
    )


class InThread:
    """An async context on a loop in its own thread, where other threads can run coroutines.

    Enter it once, as a plain context manager.
    """

    def __init__(
        self,
        context: AbstractAsyncContextManager[object],
        *,
        what: str,
        start_ms: int,
        stop_ms: int,
    ) -> None:
        """`what` names it in errors, such as `the worker`. Entering may take `start_ms`, and
        leaving `stop_ms`.
        """
        self._context = context
        self._what = what
        self._start_ms = start_ms
        self._stop_ms = stop_ms
        self._thread: threading.Thread | None = None
        # Guards the loop: coroutines are handed over before it ends, then cancelled.
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._problem = "it has not been started"
        self._stopping = asyncio.Event()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._context!r}>"

    def __enter__(self) -> Self:
        """Start. Raises the context's own errors, `DeadlineExceeded`, and `CallerError` the second
        time.
        """
        if self._thread is not None:
            raise not_running(what=self._what, problem="it was started before")
        self._loop = loop = asyncio.new_event_loop()
        self._problem = "it has ended"
        self._thread = threading.Thread(
            target=self._serve, args=(loop,), name=f"equipoise {self._what}", daemon=True
        )
        self._thread.start()
        try:
            self.run(self._enter(), timeout_ms=self._start_ms, what=f"the start of {self._what}")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.run(
                self._leave(kind, error, trace),
                timeout_ms=self._stop_ms,
                what=f"the end of {self._what}",
            )
        finally:
            self._stop()

    def run(self, coroutine: Coroutine[None, None, T], *, timeout_ms: int, what: str) -> T:
        """Return the result of a coroutine on the loop, after `timeout_ms` milliseconds at most.
        `what` names it in errors.

        Raises its errors; `DeadlineExceeded`, after cancelling it; and `CallerError` outside the
        context.
        """
        with self._lock:
            if self._loop is None:
                coroutine.close()  # It will never be awaited.
                raise not_running(what=self._what, problem=self._problem)
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_ms / 1_000)
        except concurrent.futures.TimeoutError:
            if future.done():  # It raised a `TimeoutError` itself.
                raise
            future.cancel()
            raise DeadlineExceeded(what=what, waited_ms=timeout_ms) from None
        except concurrent.futures.CancelledError:
            if self._loop is not None:
                raise
            raise not_running(what=self._what, problem=self._problem) from None

    async def _enter(self) -> None:
        await self._context.__aenter__()

    async def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._context.__aexit__(kind, error, trace)

    def _stop(self) -> None:
        """Cancel what still runs on the loop, end the loop, and join the thread."""
        with self._lock:
            loop, self._loop = self._loop, None
        assert loop is not None, "it was started"
        assert self._thread is not None, "it was started"
        loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._stopping.wait())
