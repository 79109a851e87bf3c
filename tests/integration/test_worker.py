"""Workers in one process over one log, with real time, a real disk and a real service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import CreateNamespace, MergeBundles, SplitBundle
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core.errors import ForeignLog
from equipoise.channel.core.ranges import even_boundaries, key_hash
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline

pytestmark = pytest.mark.integration

NAMESPACE = "t/n"
PATIENCE_MS = 30_000


@dataclass
class Diary(Service):
    """A service that notes its open bundles and their handovers."""

    open_now: dict[str, Ownership] = field(default_factory=dict)
    received: dict[str, bytes | None] = field(default_factory=dict)

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.open_now[ownership.bundle.name] = ownership
        self.received[ownership.bundle.name] = handover

    async def close(
        self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline
    ) -> bytes | None:
        self.open_now.pop(bundle.name, None)
        return f"from {bundle.name}".encode()


@dataclass
class Members:
    """The workers of one cluster, each with its service."""

    folder: Path
    log_url: str
    workers: list[Worker] = field(default_factory=list)
    diaries: list[Diary] = field(default_factory=list)

    async def join(self, broker: str, **settings: object) -> Worker:
        """Start one more worker, and wait until it is ready."""
        diary = Diary()
        config = WorkerConfig.model_validate(
            {
                "log_url": self.log_url,
                "data_dir": self.folder / broker,
                "broker_id": broker,
                **settings,
            }
        )
        worker = Worker(config, {"*": diary}, addresses={"http": f"http://{broker}"})
        await worker.start()
        self.workers.append(worker)
        self.diaries.append(diary)
        await worker.ready(timeout_ms=PATIENCE_MS)
        return worker


@asynccontextmanager
async def cluster(folder: Path, log_url: str, *brokers: str) -> AsyncIterator[Members]:
    """Yield a cluster with one namespace of four bundles, all of them open."""
    members = Members(folder, log_url)
    try:
        for broker in brokers:
            await members.join(broker)
        await members.workers[0].request(
            CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(4)), timeout_ms=PATIENCE_MS
        )
        for worker in members.workers:
            await worker.until(
                partial(all_open, worker), timeout_ms=PATIENCE_MS, what="all bundles being open"
            )
        yield members
    finally:
        await asyncio.gather(*(worker.stop() for worker in members.workers))


def all_owned(view: View) -> bool | None:
    """Return whether every bundle is owned."""
    bundles = view.bundles_of(NAMESPACE)
    return (bool(bundles) and all(bundle.phase == "owned" for bundle in bundles)) or None


def all_open(worker: Worker, view: View) -> bool | None:
    """Return whether every bundle is owned, and open where it is this worker's."""
    return (
        all_owned(view)
        and len(worker.open_bundles) == view.held_count(worker.agent.incarnation or 0)
    ) or None


async def test_work_goes_on_through_a_split_and_a_merge(tmp_path: Path, log_url: str) -> None:
    """It passes its second check under the same token."""
    async with cluster(tmp_path, log_url, "a") as members:
        (a,) = members.workers
        parent = a.view.bundles_of(NAMESPACE)[0]
        key = next(
            f"k{n}"
            for n in range(1_000)
            if a.view.bundle_at(NAMESPACE, key_hash(f"k{n}")) is parent
        )
        routed = await a.route(NAMESPACE, key, timeout_ms=PATIENCE_MS)
        assert isinstance(routed, Ownership)
        work = routed.begin(key)
        split = SplitBundle(bundle=parent.name, algorithm="range_equally_divide", reason="test")
        await a.request(split, timeout_ms=PATIENCE_MS)
        await a.until(
            lambda view: parent.name not in view.bundles or None,
            timeout_ms=PATIENCE_MS,
            what="the split",
        )
        work.finish()
        left = a.view.bundles_of(NAMESPACE)[0]
        await a.request(MergeBundles(left=left.name, reason="test"), timeout_ms=PATIENCE_MS)
        work.finish()
        assert parent.token == work.token
        assert 4 == len(a.view.bundles_of(NAMESPACE))


async def test_a_restart_with_its_directory_replaces_its_former_self_at_once(
    tmp_path: Path, log_url: str
) -> None:
    """It does not wait for its old lease."""
    async with cluster(tmp_path, log_url, "a", "b") as members:
        former = members.workers[0].agent.incarnation
        await members.workers[0].abort()
        again = await members.join("a")
        assert again.agent.incarnation != former
        record = again.view.brokers["a"].joined
        assert (True, False) == (record.replaces is not None, record.after_silence)


async def test_a_log_of_another_cluster_refuses_the_start(tmp_path: Path, log_url: str) -> None:
    async with cluster(tmp_path, log_url, "a") as members:
        with pytest.raises(ForeignLog):
            await members.join("b", cluster="another")
