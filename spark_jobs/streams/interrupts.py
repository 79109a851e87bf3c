"""Ctrl-C while Spark runs: noted at once, and raised where no call into Spark is under way.

May live here: the handlers, and who waits for Spark in the place of a thread that calls it. PySpark's own handler asks Java to cancel
what runs in the midst of whatever other call the main thread has with it, and the two answers get mixed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, TypeVar

LOOK_S: Final = 0.25
"""How often who waits for Spark looks up: to tell how far it is, and to cancel again."""

Result = TypeVar("Result")


@contextmanager
def delayed_interrupts() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits for the end of the block, or for the next call of what is yielded: these raise `KeyboardInterrupt`.

    For what must be whole: half an import swallows Ctrl-C, half a start leaves a JVM behind. A second one raises it wherever the program
    is: somebody is out of patience. Threads that are not the main one have no signals.
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
    check()


def interruptible(
    work: Callable[[], Result], *, cancel: Callable[[], None], meanwhile: Callable[[], None] = lambda: None
) -> Future[Result]:
    """What becomes of `work`, which calls into Spark on a thread of its own, so that Ctrl-C meets no such call under way.

    `meanwhile` is called now and then. Ctrl-C calls `cancel`, which ends what Spark works on, until the thread has ended, and is
    raised then; a second one is raised at once.
    """
    job: Future[Result] = Future()

    def done() -> None:
        try:
            job.set_result(work())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is for who waits
            job.set_exception(error)

    # No thread that anybody must wait for: who presses Ctrl-C again is out of patience.
    threading.Thread(target=done, name="spark-work", daemon=True).start()
    try:
        while not job.done():
            wait([job], timeout=LOOK_S)
            meanwhile()
    except KeyboardInterrupt:
        while not job.done():  # Again, for `work` may be between two calls just now.
            with suppress(Exception):  # Where Spark is gone `work` ends by itself.
                cancel()
            wait([job], timeout=LOOK_S)
        raise
    return job
