"""The thread that writes to a broker's data directory, so that a slow disk stalls no event loop, and costs no renewal.

May live here: the queue before the disk. What is written there, and how it is kept whole, is `brokers.runtime.directory.data_directory`'s.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Final

from equipoise.brokers.runtime.directory.data_directory import DataDirectory
from equipoise.channel.core.errors import Bug, EquipoiseError, Overloaded
from equipoise.channel.system.deadline import Deadline

QUEUED_MAX: Final = 64
"""Writes that wait for the disk. Attempts to join are a renewal interval apart, and snapshots 20,000 records, so that this many
come up in a minute of a disk that hangs. What comes then is refused, and tried anew by whoever wants it."""

Write = Callable[[DataDirectory], None]
Done = Callable[[EquipoiseError | None], None]


class DirectoryThread:
    """Carries out writes one at a time, in the order in which they were asked for. Its methods run on the loop that made it.

    The directory is the thread's from now on: it lets go of it after the last write, however long that one takes, because
    whoever finds the lock free may take what is in the directory for final.
    """

    def __init__(self, directory: DataDirectory) -> None:
        """Begin; within the loop that the host runs in."""
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._queue: queue.SimpleQueue[tuple[Write, Done] | None] = queue.SimpleQueue()
        # A daemon, so that a disk which never answers does not keep the process from ending.
        threading.Thread(target=self._run, name=f"data directory {directory.path}", daemon=True).start()

    def write(self, write: Write, done: Done) -> None:
        """Queue a write; never blocks. `done` is called on the loop with what went wrong, or None; never before this returns.

        What a full queue does not take is `Overloaded`.
        """
        if self._queue.qsize() >= QUEUED_MAX:
            refusal = Overloaded(what=f"the queue of writes to the data directory {self._directory.path}", limit=QUEUED_MAX)
            self._loop.call_soon(done, refusal)
        else:
            self._queue.put((write, done))

    async def stop(self, deadline: Deadline) -> None:
        """Finish what is queued, and let go of the directory. Afterwards nothing may be called but this.

        Raises `DeadlineExceeded` if the disk takes longer; the directory stays locked until it is done.
        """
        self._queue.put(None)
        await deadline.wait(asyncio.shield(self._ended), what=f"the last write to the data directory {self._directory.path}")

    # --- in the thread ---

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            write, done = item
            self._post(done, self._outcome(write))
        self._directory.close()
        self._post(self._end)

    def _outcome(self, write: Write) -> EquipoiseError | None:
        try:
            write(self._directory)
        except EquipoiseError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a thread that dies silently is a broker that never joins
            bug = Bug(f"writing to the data directory {self._directory.path} met {type(error).__name__}: {error}; please report it")
            bug.__cause__ = error
            return bug
        return None

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        """Call on the loop; a loop that has ended hears nothing any more, and what is queued is written all the same."""
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            return

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
