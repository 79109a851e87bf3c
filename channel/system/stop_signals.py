"""How a process of ours is told to stop: by SIGTERM or SIGINT, however it was started.

A shell starts what it runs in the background of a script with SIGINT ignored, and Python leaves it so. Then Ctrl-C, `kill -INT` and
`KillSignal=SIGINT` would do nothing. What runs until it is stopped hears SIGINT nevertheless, as other servers do. What ends by itself
keeps what it inherited.

May live here: which signals these are, and who hears them. What a command does when it is told to stop is its own business.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def hear_interrupts() -> None:
    """Have SIGINT raise `KeyboardInterrupt` if this process was started with SIGINT ignored; another handler stays."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set from now on, on the running loop of the main thread."""
    event = asyncio.Event()
    for number in STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event
