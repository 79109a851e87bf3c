"""Stop a process on SIGTERM or SIGINT, however it was started.

A shell starts background jobs of a script with SIGINT ignored, and Python keeps that. Then Ctrl-C,
`kill -INT` and `KillSignal=SIGINT` would do nothing. So a long-running process handles SIGINT
anyway, as other servers do. A process that ends on its own keeps the inherited setting.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def hear_interrupts() -> None:
    """Make SIGINT raise `KeyboardInterrupt` if this process was started with SIGINT ignored. Keep
    any other handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set from now on, on the running loop of the main
    thread.
    """
    event = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event


@contextmanager
def first_stop_signal() -> Iterator[Event]:
    """Yield an event that the first SIGTERM or SIGINT sets, in the main thread. The next one acts
    as usual.
    """
    stopped = Event()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(_signal: int, _frame: object) -> None:
        stopped.set()
        restore()

    for number in STOP_SIGNALS:
        signal.signal(number, note)
    try:
        yield stopped
    finally:
        restore()
