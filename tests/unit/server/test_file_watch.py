"""A broker whose process runs out of files: what it says, and when it gives its bundles away."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.server.file_watch import PROBLEM, FileWatch
from tests.unit.http.cluster import PATIENCE_MS, Cluster, cluster

pytestmark = pytest.mark.integration


class Files:
    """How many files there are, and how many are left."""

    def __init__(self) -> None:
        self.left = 500

    def __call__(self) -> tuple[int, int]:
        return self.left, 1_000


def draining(brokers: Cluster) -> list[bool]:
    """Which brokers drain, as the channel says."""
    entries = [broker.worker.agent.entry for broker in brokers.brokers]
    return [entry is not None and entry.status == "draining" for entry in entries]


def is_draining(brokers: Cluster) -> bool:
    """Whether the first broker drains, as the channel says."""
    return draining(brokers)[0]


async def test_brokers_that_run_out_of_files_together_do_not_all_drain(tmp_path: Path) -> None:
    """Where the whole machine is short of files, one broker drains after the other, and the last one serves on."""
    async with cluster(tmp_path, brokers=2, balance=False) as brokers:
        files = Files()
        files.left = 0
        watches = [FileWatch(broker.worker, left=files) for broker in brokers.brokers]
        while not any(draining(brokers)):
            for watch in watches:  # In one turn of the loop, so that neither can have read of the other.
                watch.look()
            await asyncio.sleep(0.05)
        assert [False, True] == draining(brokers)
        child = brokers.brokers[0]
        await child.worker.until(
            lambda view: all(bundle.owner == child.worker.agent.incarnation for bundle in view.bundles.values()) or None,
            timeout_ms=PATIENCE_MS,
            what="all bundles being at the last broker",
        )


async def test_a_broker_without_files_gives_its_bundles_away(tmp_path: Path) -> None:
    """It says so in `/ready` at once, and drains once that has lasted for a lease; the other broker gets all bundles."""
    async with cluster(tmp_path, brokers=2, balance=False) as brokers:
        short, child = brokers.brokers
        files = Files()
        watch = FileWatch(short.worker, left=files)
        watch.look()
        assert 200 == (await short.get("/ready")).status
        files.left = 63
        watch.look()
        assert b"may open only 63 more files of 1000: raise that limit" in (await short.get("/ready")).body
        assert not is_draining(brokers)
        while not is_draining(brokers):
            watch.look()
            await asyncio.sleep(0.05)
        await short.worker.until(
            lambda view: all(bundle.owner == child.worker.agent.incarnation for bundle in view.bundles.values()) or None,
            timeout_ms=PATIENCE_MS,
            what="all bundles being away",
        )


async def test_files_that_come_back_are_no_problem(tmp_path: Path) -> None:
    """A peak that is over before the lease changes nothing, and is no longer told."""
    async with cluster(tmp_path, brokers=2, balance=False) as brokers:
        files, worker = Files(), brokers.brokers[0].worker
        watch = FileWatch(worker, left=files)
        for left in (0, 500, 0):
            files.left = left
            watch.look()
        assert not is_draining(brokers)
        assert PROBLEM in worker.client_problems
        files.left = 64
        watch.look()
        assert {} == worker.client_problems


async def test_a_broker_without_an_heir_keeps_its_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only broker serves whom it still can, since nobody else would: it never drains."""
    files = Files()
    files.left = 0
    config = WorkerConfig.model_validate({"log_url": f"memory:{uuid.uuid4()}", "data_dir": tmp_path, "broker_id": "a", "lease_ms": 3_000})
    worker = Worker(config, {}, addresses={})
    await worker.start()
    await worker.ready(timeout_ms=PATIENCE_MS)
    monkeypatch.setattr(worker, "drain", lambda: pytest.fail("it drained"))
    watch = FileWatch(worker, left=files)
    watch.look()
    now = worker.clock.now()
    monkeypatch.setattr(type(worker.clock), "now", lambda _: type(now)(boot_ms=now.boot_ms + 60_000, wall_ms=now.wall_ms + 60_000))
    watch.look()
    monkeypatch.undo()
    assert PROBLEM in worker.client_problems
    await worker.abort()
