"""Ctrl-C while Spark runs: noted at once, and raised where no call into Spark is under way.

May live here: the handlers. PySpark's own asks Java to cancel what runs in the midst of whatever other call the main thread has with it,
and the two answers get mixed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], None]]:
    """While the block runs Ctrl-C does nothing but make what is yielded raise `KeyboardInterrupt` when it is called next.

    A second one raises it wherever the program is: somebody is out of patience. Threads that are not the main one have no signals.
    """
    is_noted = False

    def check() -> None:
        if is_noted:
            raise KeyboardInterrupt

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_noted
        check()
        is_noted = True

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, which must be whole: half an import swallows it, half a start leaves a JVM behind."""
    with noted_interrupts() as check:
        yield
    check()
