"""The compactor of one worker: when a compaction is due, who has it run, and what is told of its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.brokers.errors import CompactionFailed
from equipoise.brokers.runtime.worker import Worker
from equipoise.brokers.server import compacting
from equipoise.brokers.server.compacting import (
    Compacting,
    Compaction,
    Done,
    compact_in_child,
    compact_in_thread,
    compact_once_of,
)
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import restoration
from tests.unit.http.cluster import cluster, run, until

pytestmark = pytest.mark.integration

Outcome = Callable[[], Done]


class Once:
    """A compaction that notes that it was run, and ends as it is told."""

    def __init__(self, outcome: Outcome = lambda: Done(7)) -> None:
        self.runs: list[Compaction] = []
        self.outcome = outcome

    async def __call__(self, compaction: Compaction) -> Done:
        self.runs.append(compaction)
        return self.outcome()


def failing(error: str) -> Outcome:
    """A compaction that meets an error."""

    def fail() -> Done:
        raise CompactionFailed(log="memory:x", error=error, problem="it could not be")

    return fail


def scraped(worker: Worker, metric: str) -> float:
    """What a worker tells of one metric."""
    scrape = worker.metrics.scrape(worker.view, incarnation=None, lease_left_ms=0, lag_records=0, log_is_available=True)
    lines = scrape.decode().splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"equipoise_{metric}{{"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "_LOOK_S", 0.01)


async def test_the_leader_compacts_when_enough_records_were_added(tmp_path: Path) -> None:
    """Of two brokers that see the same records the leader alone has the log compacted, with the settings that it has."""
    async with cluster(tmp_path, brokers=2, compact_records=20, retain="3 offsets") as brokers:
        onces = [Once(), Once()]
        tasks = [
            asyncio.ensure_future(Compacting(one.worker, compact_once=once).run()) for one, once in zip(brokers.brokers, onces, strict=True)
        ]
        leader = next(index for index, one in enumerate(brokers.brokers) if one.worker.agent.leads)
        await until(lambda: bool(onces[leader].runs))
        for task in tasks:
            task.cancel()
        config = brokers.brokers[leader].worker.config
        assert Compaction(log_url=config.log_url, cluster=config.cluster, retain="3 offsets") == onces[leader].runs[0]
        assert [] == onces[1 - leader].runs
        assert 7 == scraped(brokers.brokers[leader].worker, "compaction_horizon_offset")


async def test_little_is_compacted_when_it_is_old(tmp_path: Path) -> None:
    """After `compact_age_ms` a single renewal is reason enough."""
    async with cluster(tmp_path, compact_age_ms=50) as brokers:
        (one,) = brokers.brokers
        once = Once()
        task = asyncio.ensure_future(Compacting(one.worker, compact_once=once).run())
        await until(lambda: len(once.runs) >= 2)
        task.cancel()


async def test_a_compactor_that_is_switched_off_does_nothing(tmp_path: Path) -> None:
    """With `compact_records` of 0 its task ends at once."""
    async with cluster(tmp_path, compact_records=0, compact_age_ms=1) as brokers:
        once = Once()
        await Compacting(brokers.brokers[0].worker, compact_once=once).run()
        assert [] == once.runs


def test_a_refusal_is_told_once_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A log that cannot be compacted raises one alarm, counts each failure, and is compacted as soon as it can be."""
    monkeypatch.setattr(compacting, "RETRY_MS", 1)

    async def story() -> None:
        async with cluster(tmp_path, compact_age_ms=1) as brokers:
            (one,) = brokers.brokers
            once = Once(failing("CompactionRefused"))
            task = asyncio.ensure_future(Compacting(one.worker, compact_once=once).run())
            await until(lambda: scraped(one.worker, "compaction_failures_total") >= 2)
            assert 0 == scraped(one.worker, "compaction_horizon_offset")
            once.outcome = lambda: Done(9)
            await until(lambda: scraped(one.worker, "compaction_horizon_offset") == 9)
            task.cancel()

    with caplog.at_level(logging.INFO, "equipoise.brokers.server.compacting"):
        run(story)
    assert 1 == len([record for record in caplog.records if record.__dict__.get("alarm") == "compaction"])
    assert "compacted the channel" in [record.message for record in caplog.records]


def test_a_time_ahead_of_the_clock_is_an_alarm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The leader names the record whose time is ahead of its clock, in its metrics and its log."""

    async def story() -> None:
        async with cluster(tmp_path, compact_age_ms=1) as brokers:
            (one,) = brokers.brokers
            task = asyncio.ensure_future(Compacting(one.worker, compact_once=Once(lambda: Done(9, ahead=4))).run())
            await until(lambda: scraped(one.worker, "log_clock_ahead_offset") == 4)
            task.cancel()

    with caplog.at_level(logging.WARNING, "equipoise.brokers.server.compacting"):
        run(story)
    assert ("log_clock", 4) == tuple(caplog.records[0].__dict__[name] for name in ("alarm", "offset"))


def test_who_was_overtaken_raises_no_alarm(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another compactor at the same log is no failure: that one does the work."""

    async def story() -> None:
        async with cluster(tmp_path, compact_age_ms=1) as brokers:
            (one,) = brokers.brokers
            once = Once(failing("SnapshotFenced"))
            task = asyncio.ensure_future(Compacting(one.worker, compact_once=once).run())
            await until(lambda: bool(once.runs))
            task.cancel()
            assert 0 == scraped(one.worker, "compaction_failures_total")

    with caplog.at_level(logging.INFO, "equipoise.brokers.server.compacting"):
        run(story)
    assert ["INFO"] == [record.levelname for record in caplog.records if record.name == "equipoise.brokers.server.compacting"]


async def test_a_log_in_memory_is_compacted_in_a_thread(tmp_path: Path) -> None:
    """What no other process can open gets its snapshot all the same; one that nobody has begun has none."""
    async with cluster(tmp_path) as brokers:
        config = brokers.brokers[0].worker.config
        assert compact_in_thread is compact_once_of(config.log_url)
        done = await compact_in_thread(Compaction(log_url=config.log_url, cluster=config.cluster, retain="7d"))
        log = open_log(config.log_url)
        marker = restoration(log).marker
        log.close()
        assert marker is not None
        assert Done(marker.horizon) == done


async def test_an_error_in_the_thread_is_told_by_its_name(tmp_path: Path) -> None:
    """What the compactor raises comes as the failure of a compaction, and names it."""
    async with cluster(tmp_path) as brokers:
        config = brokers.brokers[0].worker.config
        with pytest.raises(CompactionFailed) as caught:
            await compact_in_thread(Compaction(log_url=config.log_url, cluster="another", retain="7d"))
        assert "ForeignLog" == caught.value.error


def test_a_log_that_nobody_has_begun_is_compacted_to_nothing(tmp_path: Path) -> None:
    """A child that finds no record that a snapshot could hold says so, and that is no failure."""
    url = f"sqlite:{tmp_path / 'log'}"
    open_log(url).close()
    assert compact_in_child is compact_once_of(url)
    assert Done(None) == asyncio.run(compact_in_child(Compaction(log_url=url, cluster="c", retain="7d")))


def test_what_a_child_refuses_is_told_by_its_name(tmp_path: Path) -> None:
    """The error that a child prints is the one that its parent raises."""
    compaction = Compaction(log_url=f"sqlite:{tmp_path / 'none'}", cluster="c", retain="7d")
    with pytest.raises(CompactionFailed, match="LogNotBegun"):
        asyncio.run(compact_in_child(compaction))


def test_a_child_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of a compaction ends its process, and is told."""
    monkeypatch.setattr(compacting, "COMPACT_S_MAX", 0.001)
    with pytest.raises(CompactionFailed, match="DeadlineExceeded"):
        asyncio.run(compact_in_child(Compaction(log_url=f"sqlite:{tmp_path / 'log'}", cluster="c", retain="7d")))


async def test_a_child_ends_with_who_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that stops waits for no compaction: its child is killed, and waited for."""
    children: list[asyncio.subprocess.Process] = []
    make = asyncio.create_subprocess_exec

    async def noted(*words: str, **options: int | bool) -> asyncio.subprocess.Process:
        children.append(await make(*words, **options))  # type: ignore[arg-type] # passed on
        return children[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    compaction = Compaction(log_url=f"sqlite:{tmp_path / 'log'}", cluster="c", retain="7d")
    task = asyncio.ensure_future(compact_in_child(compaction))
    await until(lambda: bool(children))
    task.cancel()
    await asyncio.wait([task])
    assert children[0].returncode is not None
