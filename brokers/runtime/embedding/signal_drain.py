"""Drain a broker before the server of its program handles SIGTERM or SIGINT.

Web servers close their listener first, and tell the program afterwards. Callers that come meanwhile
are refused. So the broker takes the signal first, moves its bundles away while the program still
answers and redirects, and then passes the signal on.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from equipoise.channel.core.errors import CallerError, EquipoiseError

_logger: Final = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

# Where event loops keep the functions that stand for their own handlers. Those run at once, even if
# others handle the signal, too.
_LOOPS: Final = ("asyncio", "uvloop")

QUIET_MS: Final = 200
"""How long no call comes before a drained program ends. Callers that follow its redirects call
again within some round trips."""

_LINGER_PARTS: Final = 20
_PART_MS_MAX: Final = 50


@contextmanager
def draining(drain: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Run `drain` at the first SIGTERM or SIGINT, and then pass the signal to the handler that was
    there before. Use it on an event loop.

    A second signal goes to that handler at once. Outside the main thread, which alone gets signals,
    nothing is handled.

    Raises `CallerError` if the event loop handles a signal, since that cannot be delayed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in _SIGNALS}
    for number, handler in before.items():
        if (getattr(handler, "__module__", None) or "").partition(".")[0] in _LOOPS:
            problem = (
                f"the server of this program handles {number.name} on its event loop, and closes"
                " its listener at once"
            )
            raise CallerError(
                f"cannot drain before the end: {problem}; run it under uvicorn, or drain it before"
                " you send the signal"
            )
    tasks: list[asyncio.Task[None]] = []

    async def drain_and_pass_on(number: int) -> None:
        try:
            await drain()
        except Exception as error:
            _logger.warning(
                "ends without draining: %s", error, exc_info=not isinstance(error, EquipoiseError)
            )
        signal.raise_signal(number)

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is take:
                signal.signal(number, handler)

    def take(number: int, _frame: FrameType | None) -> None:
        restore()
        loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(drain_and_pass_on(number))))

    for number in _SIGNALS:
        signal.signal(number, take)
    try:
        yield
    finally:
        restore()
        for task in tasks:
            task.cancel()


async def lingered(
    linger_ms: float, calls: Callable[[], int], *, has_peers: Callable[[], bool]
) -> None:
    """Wait until no call has come for `QUIET_MS`, at most `linger_ms`, and while there are peers
    that could serve the callers.

    `calls` returns how many have come so far.

    Wait in parts, with turns of the event loop between. A process that stalls answers nobody: it
    loses one part only.
    """
    part_ms = min(linger_ms / _LINGER_PARTS, _PART_MS_MAX)
    seen, waited_ms, quiet_ms = calls(), 0.0, 0.0
    while waited_ms < linger_ms and quiet_ms < QUIET_MS and has_peers():
        await asyncio.sleep(part_ms / 1_000)
        waited_ms += part_ms
        quiet_ms = quiet_ms + part_ms if calls() == seen else 0.0
        seen = calls()
