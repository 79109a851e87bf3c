"""See at once that the process of another broker of this machine has ended, and have the agent
declare it dead.

A thread looks at the locks of the others. The kernel wakes it when a process ends (pidfd); which
one, and of which broker, only the lock shows. It takes no lock, so it disturbs nobody, and it waits
for nothing but the next look, so it ends with its broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from equipoise.brokers.runtime.data_directory import look_at
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.entries import BrokerChanged, BrokerEntry
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View
from equipoise.channel.system.process_lock import LockedFile, this_boot

WATCHED_MAX: Final = 16
"""Brokers that one broker watches: those after it by age, the oldest after the youngest. So each of
a machine with more is watched by as many, and each needs that many files."""

# The interval of looks that nothing has caused. It finds the end of a process that has another id
# here, as in another container with the same folder, and costs some 0.1 ms of CPU.
_LOOK_MS: Final = 500

_END_S: Final = 1.0


def neighbours(view: View, incarnation: int | None, boot_id: str) -> Sequence[BrokerEntry]:
    """Return the brokers to watch from `incarnation`, by their age: of this boot of this machine,
    and not this one.
    """
    others = view.live_after(-1 if incarnation is None else incarnation)
    return [each for each in others if _lock_of(each, boot_id) is not None][:WATCHED_MAX]


def _lock_of(broker: BrokerEntry, boot_id: str) -> LockedFile | None:
    lock = None if broker.joined.lock is None else LockedFile.parse(broker.joined.lock)
    return lock if lock is not None and lock.boot_id == boot_id else None


class DeathWatch:
    """The watch of one broker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._boot_id = this_boot()

    async def run(self) -> None:
        """Watch until cancelled."""
        if self._worker.profile.lock is None:
            return
        loop = asyncio.get_running_loop()

        def ended(instance_id: str) -> None:
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(self._worker.process_ended, frozenset({instance_id}))

        looking = Looking(ended)
        listening = self._worker.listen(
            lambda folded: self._folded(folded, looking), resynced=lambda _: self._follow(looking)
        )
        try:
            self._follow(looking)
            await asyncio.Event().wait()
        finally:
            listening()
            await asyncio.to_thread(looking.stop)

    def _folded(self, folded: Folded, looking: Looking) -> None:
        if any(isinstance(change, BrokerChanged) for change in folded.verdict.changes):
            self._follow(looking)

    def _follow(self, looking: Looking) -> None:
        agent = self._worker.agent
        brokers = neighbours(agent.view, agent.incarnation, self._boot_id)
        looking.at(
            {
                broker.joined.instance_id: lock
                for broker in brokers
                if (lock := _lock_of(broker, self._boot_id)) is not None
            }
        )


class Looking:
    """The thread that looks at locks, until `stop`."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        """Call `ended` in the thread with the instance id of each process that has ended."""
        self._ended = ended
        self._locks: Mapping[str, LockedFile] = {}
        self._is_over = False
        self._woken, self._waking = os.pipe()
        os.set_blocking(self._waking, False)
        # A daemon: a path may lead to a disk that never answers.
        self._thread = threading.Thread(target=self._run, name="death watch", daemon=True)
        self._thread.start()

    def at(self, locks: Mapping[str, LockedFile]) -> None:
        """Look at these locks from now on, by the instance ids of those who hold them."""
        if locks != self._locks:
            self._locks = locks
            self._wake()

    def stop(self) -> None:
        """End the thread, and wait for that."""
        self._is_over = True
        self._wake()
        self._thread.join(_END_S)
        if not self._thread.is_alive():
            os.close(self._waking)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # It is full of wake-ups.
            os.write(self._waking, b"w")

    # --- in the thread ---

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._woken, select.POLLIN)
        processes: dict[int, int] = {}
        reported = frozenset[str]()
        while not self._is_over:
            locks = self._locks
            pids = set[int]()
            reported &= locks.keys()
            for instance_id in locks.keys() - reported:
                with contextlib.suppress(OSError):
                    look = look_at(locks[instance_id], instance_id)
                    if look.has_ended:
                        reported |= {instance_id}
                        self._ended(instance_id)
                    elif look.pid is not None:
                        pids.add(look.pid)
            _follow(poller, processes, pids)
            for file, _ in poller.poll(_LOOK_MS if locks.keys() - reported else None):
                if file == self._woken:
                    os.read(self._woken, 4_096)
                else:
                    poller.unregister(file)  # It would wake the thread for ever.
        _follow(poller, processes, set())
        os.close(self._woken)


def _follow(poller: select.poll, processes: dict[int, int], pids: set[int]) -> None:
    """Let the poller wake when one of the processes ends. Forget the others."""
    for pid in processes.keys() - pids:
        file = processes.pop(pid)
        with contextlib.suppress(KeyError):
            poller.unregister(file)
        os.close(file)
    for pid in pids - processes.keys():
        # Not on this system, no such process here, or too many files.
        with contextlib.suppress(AttributeError, OSError):
            processes[pid] = os.pidfd_open(pid)
            poller.register(processes[pid], select.POLLIN)
