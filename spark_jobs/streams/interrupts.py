"""Delay Ctrl-C while Spark runs, and raise it where no call into Spark is in progress.

PySpark's own handler calls Java in the middle of other calls of the main thread, and the answers
get mixed up.
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
"""How often the thread that waits for Spark shows progress and, after Ctrl-C, cancels again."""

Result = TypeVar("Result")


@contextmanager
def delayed_interrupts() -> Iterator[Callable[[], None]]:
    """Delay Ctrl-C to the end of the block or the next call of the yielded function. Both then
    raise `KeyboardInterrupt`.

    Use it for steps that must not be cut: an interrupted import swallows Ctrl-C, an interrupted
    start leaves a JVM behind. A second Ctrl-C raises at once. Outside the main thread it does
    nothing, because only that gets signals.
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
    work: Callable[[], Result],
    *,
    cancel: Callable[[], None],
    meanwhile: Callable[[], None] = lambda: None,
) -> Future[Result]:
    """Run `work`, which calls into Spark, on its own thread, so that Ctrl-C interrupts no such
    call. Return its finished future.

    Call `meanwhile` regularly. On Ctrl-C call `cancel`, which ends Spark's work, until the thread
    has ended, then raise `KeyboardInterrupt`. A second Ctrl-C raises at once.
    """
    job: Future[Result] = Future()

    def done() -> None:
        try:
            job.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the waiting thread gets any error
            job.set_exception(error)

    # A daemon thread, so that a second Ctrl-C can end the program.
    threading.Thread(target=done, name="spark-work", daemon=True).start()
    try:
        while not job.done():
            wait([job], timeout=LOOK_S)
            meanwhile()
    except KeyboardInterrupt:
        while not job.done():  # Repeated, because `work` may be between two calls.
            with suppress(Exception):  # If Spark is gone, `work` ends too.
                cancel()
            wait([job], timeout=LOOK_S)
        raise
    return job
