"""A broker whose process runs out of files: what it reports, and when it drains."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from equipoise.brokers.runtime.loops.file_watch import PROBLEM, FileWatch
from tests.unit.http.cluster import PATIENCE_MS, Cluster, cluster

pytestmark = pytest.mark.integration


class Files:
    """The number of files that may still be opened, and the limit."""

    def __init__(self) -> None:
        self.left = 500

    def __call__(self) -> tuple[int, int]:
        return self.left, 1_000


def draining(brokers: Cluster) -> list[bool]:
    """Return which brokers drain, by the channel."""
    entries = [broker.worker.agent.entry for broker in brokers.brokers]
    return [entry is not None and entry.status == "draining" for entry in entries]


async def served_by_the_first(brokers: Cluster) -> None:
    """Wait until the first broker owns all bundles."""
    worker = brokers.brokers[0].worker
    await worker.until(
        lambda view: (
            all(bundle.owner == worker.agent.incarnation for bundle in view.bundles.values())
            or None
        ),
        timeout_ms=PATIENCE_MS,
        what="the first broker owning all bundles",
    )


async def test_brokers_that_run_out_of_files_together_do_not_all_drain(tmp_path: Path) -> None:
    """The youngest drains first. The last one serves on."""
    async with cluster(tmp_path, brokers=2, balance=False) as brokers:
        files = Files()
        files.left = 0
        watches = [FileWatch(broker.worker, left=files) for broker in brokers.brokers]
        while not any(draining(brokers)):
            # In one turn of the loop, so that neither can have read the drain of the other.
            for watch in watches:
                watch.look()
            await asyncio.sleep(0.05)
        assert [False, True] == draining(brokers)
        await served_by_the_first(brokers)


async def test_a_broker_without_files_drains_after_a_lease(tmp_path: Path) -> None:
    """`/ready` has the reason at once. A short lack drains nothing, and is reported only while it
    lasts.
    """
    async with cluster(tmp_path, brokers=2, balance=False) as brokers:
        short, files = brokers.brokers[1], Files()
        watch = FileWatch(short.worker, left=files)
        for left, status in ((500, 200), (0, 503), (500, 200), (63, 503), (64, 200)):
            files.left = left
            watch.look()
            ready = await short.get("/ready")
            assert (status, status == 503) == (
                ready.status,
                f"may open only {left} more files of 1000: raise that limit".encode() in ready.body,
            )
        assert [False, False] == draining(brokers)
        files.left = 0
        while not any(draining(brokers)):
            watch.look()
            await asyncio.sleep(0.05)
        await served_by_the_first(brokers)


async def test_the_only_broker_never_drains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path, balance=False) as brokers:
        (broker,) = brokers.brokers
        worker, files = broker.worker, Files()
        files.left = 0
        monkeypatch.setattr(worker, "drain", lambda **_: pytest.fail("it drained"))
        watch = FileWatch(worker, left=files)
        watch.look()
        now = worker.clock.now()
        with monkeypatch.context() as patched:
            patched.setattr(
                type(worker.clock),
                "now",
                lambda _: type(now)(boot_ms=now.boot_ms + 60_000, wall_ms=now.wall_ms + 60_000),
            )
            watch.look()
        assert PROBLEM in worker.client_problems
