"""Workers of one loop on one SQLite log: they share its thread, also when they start at the same time and leave one by one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import CreateNamespace
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline

pytestmark = pytest.mark.integration

NAMESPACE = "t/n"
PATIENCE_MS = 20_000


class Quiet(Service):
    """A service with nothing to do."""

    async def open(self, ownership: Ownership, handover: bytes | None) -> None: ...

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None: ...


def worker_of(folder: Path, broker: str) -> Worker:
    """A worker that is not started yet."""
    config = WorkerConfig(log_url=f"sqlite:{folder}/channel.db", data_dir=folder / broker, broker_id=broker)
    return Worker(config, {"*": Quiet()}, addresses={})


def threads_of(worker: Worker) -> list[threading.Thread]:
    """The threads that follow the log of this worker."""
    return [thread for thread in threading.enumerate() if thread.name == f"log {worker.config.log_url}"]


def owners(view: View) -> frozenset[int | None]:
    """The incarnations that own something."""
    return frozenset(bundle.owner for bundle in view.bundles_of(NAMESPACE) if bundle.phase == "owned")


def test_workers_that_start_together_share_one_thread_to_the_last(tmp_path: Path) -> None:
    """Three workers, one thread; the one whose handle it may be dies, and the others go on to take over what it owned."""

    async def story() -> None:
        workers = [worker_of(tmp_path, broker) for broker in "abc"]
        await asyncio.gather(*(worker.start() for worker in workers))
        first, *others = workers
        for worker in workers:
            await worker.ready(timeout_ms=PATIENCE_MS)
        assert 1 == len(threads_of(first))
        await first.request(CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(6)), timeout_ms=PATIENCE_MS)
        alive = frozenset(worker.agent.incarnation for worker in workers)
        await first.until(lambda view: owners(view) == alive or None, timeout_ms=PATIENCE_MS, what="all owning something")
        await first.abort()
        alive = frozenset(worker.agent.incarnation for worker in others)
        for worker in others:
            await worker.until(lambda view: owners(view) == alive or None, timeout_ms=PATIENCE_MS, what="the others owning all")
        assert 1 == len(threads_of(first))
        await asyncio.gather(*(worker.stop() for worker in others))
        # The last seat is told in the thread's last words, a moment before it is gone.
        for thread in threads_of(first):
            thread.join(PATIENCE_MS / 1_000)
        assert [] == threads_of(first)

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())
