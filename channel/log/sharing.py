"""One thread and one handle for all who follow one log in one loop.

May live here: `sit_down`, and the threads that there are to sit down at. A hundred brokers in one process with a thread each would
wake a hundred threads for every record, and spend most of their time in handing the interpreter's lock around; so those
that meet in one loop share a thread, and nobody has to know or ask for it.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final
from weakref import WeakValueDictionary

from equipoise.channel.core.log import Log
from equipoise.channel.log.seat import LogSeat
from equipoise.channel.log.thread import LogThread

# By loop, and by the log's URL and identity: the same URL may by now lead to another log, whose followers must not join. Weak,
# because a thread that runs keeps itself, and one that has ended takes nobody: neither it nor its loop need be kept here.
_threads: Final[WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str, str], LogThread]] = WeakValueDictionary()

# Loops live in threads of their own, and all of them look here.
_threads_lock: Final = threading.Lock()


def sit_down(seat: LogSeat, handle: Log) -> None:
    """Begin to follow the log that `handle` is open on, on the running loop. From here on the handle is not the caller's.

    Whoever follows that log here already is joined, and the handle closed; otherwise it is the handle of a new thread.
    """
    key = (asyncio.get_running_loop(), handle.name, handle.identity)
    with _threads_lock:
        thread = _threads.get(key)
        joined = thread is not None and seat.join(thread)
        if not joined:
            thread = _threads[key] = LogThread(lambda: handle, name=handle.name)
            seat.join(thread)
    if joined:
        handle.close()
