"""A host with a seat at a `channel.log.thread` that keeps what it is told, and lets a test wait for it.

May live here: `Host`, the way to run one, and the troubles that its log may have.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from equipoise.channel.core.errors import LogDamaged, LogUnavailable
from equipoise.channel.core.log import FIRST_OFFSET, Entry, Log
from equipoise.channel.core.reader import Reader
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.log.seat import LogSeat
from equipoise.channel.log.thread import LogThread
from equipoise.channel.system.deadline import Deadline
from tests.troubled_log import DEADLINE_SECONDS, TroubledLog

NAME = "memory:log-thread"
LOG_NAMES = (f"{NAME}-{number}" for number in itertools.count())
UNAVAILABLE = LogUnavailable(log=NAME, problem="it is away", in_doubt=False)
DOUBTFUL = LogUnavailable(log=NAME, problem="it is away")
DAMAGED = LogDamaged(log=NAME, problem="rust")


def standing_ns() -> int:
    """A clock that stands still, so that no record is too old to be appended because the machine is slow."""
    return 0


@dataclass(kw_only=True)
class Host:
    """A host of a thread, of its own or of another: keeps all that it is told, in order, and wakes who waits for something to be told."""

    log: TroubledLog
    position: int = FIRST_OFFSET
    now_ns: Callable[[], int] = standing_ns
    told: list[object] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    lags: list[int] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)
    deliver_error: Exception | None = None
    something: asyncio.Event = field(default_factory=asyncio.Event)
    beside: Host | None = None

    def __post_init__(self) -> None:
        self.writer = MemoryLog(name=self.log.name)
        self.thread: LogThread = self.beside.thread if self.beside else LogThread(self.open, name=self.log.name, now_ns=self.now_ns)
        self.seat = LogSeat(
            name=self.log.name,
            position=self.position,
            deliver=self.deliver,
            caught_up=lambda end: self.tell(("caught up", end)),
            resynced=self.resync,
            failed=self.tell,
        )

    def start(self) -> None:
        assert self.seat.join(self.thread)

    def open(self) -> Log:
        return self.log

    def write(self, *records: bytes) -> list[int]:
        """Append as another process would."""
        return list(self.writer.append(records, timeout_ms=1_000))

    def deliver(self, entries: Sequence[Entry]) -> None:
        if self.deliver_error is not None:
            raise self.deliver_error
        self.entries += entries
        self.batches.append(len(entries))
        self.lags.append(self.seat.lag_entries)
        self.told += [entry.data for entry in entries]
        self.something.set()

    def resync(self, reader: Reader) -> None:
        self.readers.append(reader)
        self.tell(("jumped", reader.position))

    def tell(self, what: object) -> None:
        self.told.append(what)
        self.something.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something that was told makes the condition true."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():
                self.something.clear()
                await self.something.wait()

    async def until_in_thread(self, condition: Callable[[], bool]) -> None:
        """Wait until something that only the thread does makes the condition true."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not condition():  # noqa: ASYNC110 - the thread tells nobody
                await asyncio.sleep(0.001)

    async def stop(self) -> None:
        self.log.gate.set()
        await self.seat.stop(Deadline.after(timeout_ms=30_000))


def run(
    scenario: Callable[[Host], Coroutine[None, None, None]],
    *,
    log: TroubledLog | None = None,
    position: int = FIRST_OFFSET,
    now_ns: Callable[[], int] = standing_ns,
) -> Host:
    """Run a scenario with a host whose thread has started, and stop it."""

    async def with_host() -> Host:
        host = Host(log=log or TroubledLog(name=next(LOG_NAMES)), position=position, now_ns=now_ns)
        host.start()
        try:
            await scenario(host)
        finally:
            await host.stop()
        return host

    return asyncio.run(with_host())
