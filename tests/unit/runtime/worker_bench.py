"""One worker over a log in memory with the trouble that a test sets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.runtime import snapshots
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.codec import encode
from equipoise.channel.core.errors import LogUnavailable
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.system.clocks import Deadline
from tests.channels.compacted import compact
from tests.channels.troubled_log import TroubledLog

NAMESPACE = "t/n"
PATIENCE_MS = 20_000
_numbers = itertools.count()


class Diary(Service):
    """A service that notes its calls. It closes and finds split points only when it may."""

    def __init__(self) -> None:
        self.open_now: dict[str, Ownership] = {}
        self.closed: list[tuple[str, Peer | None, bool]] = []
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.may_cut = asyncio.Event()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.open_now[ownership.bundle.name] = ownership

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        self.closed.append((bundle.name, moved_to, deadline.remaining_ms() > 0))
        await self.may_close.wait()
        return None

    async def split_points(
        self, bundle: Bundle, algorithm: str, positions: Sequence[int] | None
    ) -> Sequence[int]:
        await self.may_cut.wait()
        return positions or ()


class Bench:
    """One worker, its service and its log, which others may write to and compact while the worker
    cannot reach it.
    """

    def __init__(self, folder: Path, *, name: str | None = None) -> None:
        self.name = name or f"memory:troubled-{next(_numbers)}"
        self.log = TroubledLog(name=self.name)
        self.writer = MemoryLog(name=self.name)
        self.service = Diary()
        config = WorkerConfig(
            log_url=self.name,
            data_dir=folder,
            broker_id="a",
            balance=False,
            drain_ms=500,
            close_ms=500,
        )
        self.worker = Worker(config, {"*": self.service}, addresses={"http": "http://a"})

    @property
    def away(self) -> LogUnavailable:
        """Return the error of a log that is away."""
        return LogUnavailable(log=self.name, problem="it is away", in_doubt=False)

    async def serve(self, *, bundles: int = 1) -> None:
        """Create a namespace, and wait until all its bundles are open."""
        await self.worker.ready(timeout_ms=PATIENCE_MS)
        await self.worker.request(
            CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(bundles)),
            timeout_ms=PATIENCE_MS,
        )
        await self.until(lambda: len(self.worker.open_bundles) == bundles)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on the worker."""
        await self.worker.until(
            lambda _: condition() or None, timeout_ms=PATIENCE_MS, what="the condition of the test"
        )

    def put(self, make: Callable[[Author], AnyRecord]) -> None:
        """Append a record of an admin, made against the view of the worker."""
        author = Author(publisher="admin:ops", as_of=self.worker.view.offset)
        self.writer.append([encode(make(author))], timeout_ms=0)

    async def cut_off(self, make: Callable[[Author], AnyRecord]) -> None:
        """Append a record, and truncate it before the worker can read it."""
        self.log.read_error = self.log.append_error = self.away
        await self.until(lambda: not self.worker.log_is_available)
        self.put(make)
        compact(self.writer)
        self.log.read_error = self.log.append_error = None


class Benches:
    """Makes benches in a folder."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch

    @asynccontextmanager
    async def started(self, bench: Bench | None = None) -> AsyncIterator[Bench]:
        """Start the worker of a bench, by default a new one, and stop it at the end."""
        bench = bench or Bench(self.folder)
        log = bench.log
        self._patch.setattr(snapshots, "open_marked", lambda _url, _directory: log)
        await bench.worker.start()
        try:
            yield bench
        finally:
            await bench.worker.stop()


@pytest.fixture
def benches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Benches:
    """Return the benches of a test."""
    return Benches(tmp_path, monkeypatch)
