"""Tasks by shard: started, cancelled, awaited and started again with their bundle."""

from __future__ import annotations

import asyncio
import time

import pytest

from equipoise import Cluster, Shard, Tasks
from equipoise.pytest import MakeCluster

NAMESPACE = "acme/crawler"


class Crawler:
    """Notes which shards it works on, for all brokers of a test."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.starts = 0
        self.failures = 0

    async def crawl(self, shard: Shard) -> None:
        name = shard.bundle.name
        assert name not in self.running, "no shard has two tasks"
        assert shard.ownership.is_good
        self.running[name] = shard.token
        self.starts += 1
        try:
            if self.failures:
                self.failures -= 1
                raise ValueError("the page is broken")
            await asyncio.sleep(1_000_000)
        finally:
            await asyncio.sleep(0)
            del self.running[name]


@pytest.fixture
def crawler() -> Crawler:
    return Crawler()


@pytest.fixture
def cluster(crawler: Crawler, equipoise_cluster: MakeCluster) -> Cluster[Tasks]:
    cluster = equipoise_cluster(lambda: Tasks(NAMESPACE, crawler.crawl), brokers=2)
    cluster.create(NAMESPACE, bundles=2)
    for bundle in cluster.bundles(NAMESPACE):
        cluster.give(bundle, "broker-1")
    return cluster


def test_each_shard_has_one_task_wherever_it_is(cluster: Cluster[Tasks], crawler: Crawler) -> None:
    left, right = cluster.bundles(NAMESPACE)
    before = dict(crawler.running)
    assert {left, right} == before.keys()
    cluster.give(left, "broker-2")
    assert {left, right} == crawler.running.keys()
    assert before[left] < crawler.running[left]
    assert before[right] == crawler.running[right]


def test_tasks_follow_splits_and_merges(cluster: Cluster[Tasks], crawler: Crawler) -> None:
    left, _ = cluster.bundles(NAMESPACE)
    cluster.split(left)
    assert set(cluster.bundles(NAMESPACE)) == crawler.running.keys()
    cluster.merge(cluster.bundles(NAMESPACE)[0])
    assert set(cluster.bundles(NAMESPACE)) == crawler.running.keys()


def test_a_task_that_fails_starts_again(
    cluster: Cluster[Tasks],
    crawler: Crawler,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The log has the error."""
    monkeypatch.setattr("equipoise.brokers.sharded.tasks._PAUSE_S", 0.001)
    left, _ = cluster.bundles(NAMESPACE)
    crawler.failures, starts = 2, crawler.starts
    cluster.give(left, "broker-2")

    async def started_again() -> None:
        while left not in crawler.running or crawler.failures:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    cluster.call(started_again())
    assert crawler.starts == starts + 3
    assert "ValueError: the page is broken" in caplog.text


def test_a_shard_never_has_two_tasks_however_long_one_takes_to_end(
    equipoise_cluster: MakeCluster,
) -> None:
    """The parent of a split ends before its children begin, and before they move. An error at its
    end does not start it again.
    """
    running: list[str] = []

    async def work(shard: Shard) -> None:
        assert not any(shard.bundle.low < high and low < shard.bundle.high for low, high in ranges)
        ranges.append((shard.bundle.low, shard.bundle.high))
        running.append(shard.bundle.name)
        try:
            await asyncio.sleep(1_000_000)
        finally:
            for _ in range(50):
                await asyncio.sleep(0)
            ranges.remove((shard.bundle.low, shard.bundle.high))
            raise ValueError("at the end")

    ranges: list[tuple[int, int]] = []
    cluster = equipoise_cluster(lambda: Tasks(NAMESPACE, work), brokers=2)
    (bundle,) = cluster.create(NAMESPACE, bundles=1)
    cluster.give(bundle, "broker-1")
    started = len(running)
    cluster.split(bundle)
    for child in cluster.bundles(NAMESPACE):
        cluster.give(child, "broker-2")
    assert len(ranges) == 2
    assert bundle not in running[started:]


def test_a_task_that_returns_is_done(equipoise_cluster: MakeCluster) -> None:
    runs: list[str] = []

    async def once(shard: Shard) -> None:
        runs.append(shard.bundle.name)

    cluster = equipoise_cluster(lambda: Tasks(NAMESPACE, once), brokers=2)
    (bundle,) = cluster.create(NAMESPACE, bundles=1)
    cluster.give(bundle, "broker-1")
    cluster.give(bundle, "broker-2")
    assert [bundle, bundle] == runs


def test_the_load_of_a_shard_is_the_time_of_its_task(equipoise_cluster: MakeCluster) -> None:
    """Its CPU time, and the time since it was asked last that it runs."""

    async def work(shard: Shard) -> None:
        shards.append(shard)
        if shard.bundle.low == 0:
            end_s = time.thread_time() + 0.01
            while time.thread_time() < end_s:
                pass
            await asyncio.sleep(1_000_000)

    shards = list[Shard]()
    cluster = equipoise_cluster(lambda: Tasks(NAMESPACE, work), brokers=1)
    for bundle in cluster.create(NAMESPACE, bundles=2):
        cluster.give(bundle, "broker-1")
    busy, idle = (
        each.ownership.account for each in sorted(shards, key=lambda each: each.bundle.low)
    )
    first, other = busy.take(), idle.take()
    assert first is not None
    assert other is not None
    assert first.cpu_seconds_per_second > 10 * other.cpu_seconds_per_second > 0
    time.sleep(0.01)
    second = busy.take()
    assert second is not None
    assert second.cpu_seconds_per_second == 0
    assert second.wall_seconds_per_second == pytest.approx(1, rel=0.5)
    assert idle.take() is None
