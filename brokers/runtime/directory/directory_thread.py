"""Write to the data directory in a thread, so that a slow disk delays no renewal."""

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
"""Writes that wait for the disk: about a minute of a hanging disk. (Attempts to join are a renewal interval apart, snapshots 20,000
records.) More are refused, and the callers retry."""

Write = Callable[[DataDirectory], None]
Done = Callable[[EquipoiseError | None], None]


class DirectoryThread:
    """Carry out writes one at a time, in order. Call the methods on the loop that created it.

    The thread owns the directory and unlocks it only after the last write: another process may take unlocked content for final.
    """

    def __init__(self, directory: DataDirectory) -> None:
        """Start the thread. Call within the host's loop."""
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._queue: queue.SimpleQueue[tuple[Write, Done] | None] = queue.SimpleQueue()
        # A daemon: a disk that never answers must not keep the process alive.
        threading.Thread(target=self._run, name=f"data directory {directory.path}", daemon=True).start()

    def write(self, write: Write, done: Done) -> None:
        """Queue a write without blocking. `done` is called on the loop, later, with the error or None.

        If the queue is full, the error is `Overloaded`.
        """
        if self._queue.qsize() >= QUEUED_MAX:
            refusal = Overloaded(what=f"the queue of writes to the data directory {self._directory.path}", limit=QUEUED_MAX)
            self._loop.call_soon(done, refusal)
        else:
            self._queue.put((write, done))

    async def stop(self, deadline: Deadline) -> None:
        """Finish the queued writes and release the directory. Afterwards call only this.

        Raise `DeadlineExceeded` if the disk is slower. The directory stays locked until the thread is done.
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
        """Call on the loop, unless it has ended. Queued writes are still done."""
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            return

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
