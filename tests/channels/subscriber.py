"""Subscribe to a log that may have troubles, keep every event, and wait for events in tests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from equipoise.channel.core.errors import LogDamaged, LogUnavailable
from equipoise.channel.core.log import FIRST_OFFSET, Entry, Log
from equipoise.channel.core.reader import Reader
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.log.subscription import Subscription
from equipoise.channel.system.clocks import Deadline
from tests.channels.troubled_log import DEADLINE_SECONDS, TroubledLog

NAME = "memory:subscription"
LOG_NAMES = (f"{NAME}-{number}" for number in itertools.count())
UNAVAILABLE = LogUnavailable(log=NAME, problem="it is away", in_doubt=False)
DOUBTFUL = LogUnavailable(log=NAME, problem="it is away")
DAMAGED = LogDamaged(log=NAME, problem="rust")
FOR_EVER_MS = 20_000 * int(DEADLINE_SECONDS)
"""Longer than any test may last."""


def standing_ns() -> int:
    """A clock that stands still, so that no record is too old to be appended because the machine is
    slow.
    """
    return 0


def log_of(*records: bytes) -> TroubledLog:
    """A log with these records, which its `batches` leave out."""
    log = TroubledLog(name=next(LOG_NAMES))
    if records:
        log.append(records, timeout_ms=0)
    log.batches.clear()
    return log


class Subscriber:
    """A subscription that keeps its events in order: records as bytes, outcomes, errors, and pairs
    for catching up and resyncs.
    """

    def __init__(
        self,
        log: TroubledLog | None = None,
        *,
        position: int = FIRST_OFFSET,
        cluster: str | None = None,
        now_ns: Callable[[], int] = standing_ns,
    ) -> None:
        self.log = log or log_of()
        self.position = position
        self.events: list[object] = []
        self.entries: list[Entry] = []
        self.batches: list[int] = []
        self.lags: list[int] = []
        self.readers: list[Reader] = []
        self.deliver_error: Exception | None = None
        self.something = asyncio.Event()
        self.writer = MemoryLog(name=self.log.name)
        self.subscription = Subscription(
            self.open,
            name=self.log.name,
            position=position,
            deliver=self.deliver,
            caught_up=lambda end: self.note(("caught up", end)),
            resynced=self.resync,
            failed=self.failed,
            cluster=cluster,
            now_ns=now_ns,
        )

    @property
    def failure(self) -> Exception | None:
        return self.subscription.failure

    @property
    def has_caught_up(self) -> bool:
        return any(isinstance(event, tuple) and event[0] == "caught up" for event in self.events)

    @property
    def resyncs(self) -> list[object]:
        return [
            event for event in self.events if isinstance(event, tuple) and event[0] == "resynced"
        ]

    def open(self) -> Log:
        return self.log

    def write(self, *records: bytes) -> None:
        """Append as another process would."""
        self.writer.append(records, timeout_ms=1_000)

    def deliver(self, entries: Sequence[Entry]) -> None:
        if self.deliver_error is not None:
            raise self.deliver_error
        self.entries += entries
        self.batches.append(len(entries))
        self.lags.append(self.subscription.lag_entries)
        self.events += [entry.data for entry in entries]
        self.something.set()

    def resync(self, reader: Reader) -> None:
        self.readers.append(reader)
        self.note(("resynced", reader.position))

    def failed(self, error: Exception) -> None:
        self.note(error)

    def note(self, event: object) -> None:
        self.events.append(event)
        self.something.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until an event makes the condition true."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                self.something.clear()
                await self.something.wait()

    async def until_event(self, event: object) -> None:
        await self.until(lambda: event in self.events)

    async def until_in_thread(self, condition: Callable[[], bool]) -> None:
        """Wait until the thread makes the condition true without an event."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():  # noqa: ASYNC110 - the thread notifies nobody
                await asyncio.sleep(0.001)

    async def hold_append(self) -> None:
        """Append `first`, and keep the log from finishing it until `log.gate` is set."""
        self.log.gate.clear()
        self.subscription.append(b"first")
        await asyncio.to_thread(self.log.at_gate.wait, DEADLINE_SECONDS)

    async def go_away(self) -> None:
        """Make reads fail, and wait for the outage."""
        self.log.read_error = UNAVAILABLE
        self.log.wake()
        await self.until_in_thread(lambda: self.subscription.outage is not None)

    async def stop(self) -> None:
        self.log.gate.set()
        await self.subscription.stop(Deadline.after(timeout_ms=30_000))


Some = TypeVar("Some", bound=Subscriber)


def run(scenario: Callable[[Some], Coroutine[None, None, None]], subscriber: Some) -> Some:
    """Run a scenario with a subscriber that has started, and stop it."""

    async def with_subscriber() -> None:
        subscriber.subscription.start()
        try:
            await scenario(subscriber)
        finally:
            await subscriber.stop()

    asyncio.run(with_subscriber())
    return subscriber
