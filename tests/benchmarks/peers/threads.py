"""Run the client of a system that blocks, in a thread."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from threading import Event, Thread


class InThread(ABC):
    """An adapter whose `run` goes on until `is_ending`. Set `changed` to wake it."""

    def __init__(self) -> None:
        self.changed = Event()
        self.is_ending = False
        self._thread = Thread(target=self.run)

    @abstractmethod
    def run(self) -> None:
        """Take part until `is_ending`, and then give all shards away."""

    async def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Wait until the thread has ended."""
        self.is_ending = True
        self.changed.set()
        await asyncio.to_thread(self._thread.join)

    def wait(self, timeout_s: float) -> None:
        """Wait for a change, or for some time."""
        self.changed.wait(timeout_s)
        self.changed.clear()
