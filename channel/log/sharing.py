"""Share one thread and one handle among all subscribers of a log in one loop.

A hundred brokers in one process with a thread each would wake a hundred threads per record and mostly contend for the interpreter's lock.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Final
from weakref import WeakValueDictionary

from equipoise.channel.core.log import Log
from equipoise.channel.log.seat import LogSeat
from equipoise.channel.log.thread import LogThread

# The key is the loop, the log's URL and its identity: the same URL may by now lead to another log. The dictionary is weak: a running thread
# keeps itself alive, and an ended one accepts no subscriber.
_threads: Final[WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str, str], LogThread]] = WeakValueDictionary()

# Loops run in threads of their own and share this dictionary.
_threads_lock: Final = threading.Lock()


def sit_down(seat: LogSeat, handle: Log) -> None:
    """Subscribe to the log that `handle` is open on, on the running loop. Takes ownership of the handle.

    If the loop already follows that log, the subscription joins that thread and the handle is closed. Otherwise a new thread uses the
    handle.
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
