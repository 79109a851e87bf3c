"""The compactor of one worker: when it compacts, in which process, and how failures are
reported.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from equipoise.brokers.runtime.loops import compacting
from equipoise.brokers.runtime.loops.compacting import (
    Compacting,
    Compaction,
    Done,
    compact_in_child,
    compact_in_thread,
    compact_once_of,
)
from equipoise.channel.core.errors import PeerError
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import restoration
from tests.unit.http.cluster import cluster, until

pytestmark = pytest.mark.integration

Outcome = Callable[[], Done]


class Once:
    """A compaction that notes that it ran, and ends with `outcome`."""

    def __init__(self, outcome: Outcome = lambda: Done(7)) -> None:
        self.runs: list[Compaction] = []
        self.outcome = outcome

    async def __call__(self, compaction: Compaction) -> Done:
        self.runs.append(compaction)
        return self.outcome()


def failing(error: str) -> Outcome:
    """Return a compaction that fails with an error of this name."""

    def fail() -> Done:
        raise PeerError("it could not be", code=error)

    return fail


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "_LOOK_S", 0.01)


async def test_only_the_leader_compacts_after_enough_records(tmp_path: Path) -> None:
    """It uses its own settings."""
    async with cluster(tmp_path, brokers=2, compact_records=20, retain="3 offsets") as brokers:
        onces = [Once(), Once()]
        tasks = [
            asyncio.ensure_future(Compacting(one.worker, compact_once=once).run())
            for one, once in zip(brokers.brokers, onces, strict=True)
        ]
        leader = next(index for index, one in enumerate(brokers.brokers) if one.worker.agent.leads)
        await until(lambda: bool(onces[leader].runs))
        for task in tasks:
            task.cancel()
        config = brokers.brokers[leader].worker.config
        assert (
            Compaction(log_url=config.log_url, cluster=config.cluster, retain="3 offsets")
            == onces[leader].runs[0]
        )
        assert [] == onces[1 - leader].runs
        assert 7 == brokers.brokers[leader].sample("compaction_horizon_offset")


async def test_a_log_is_compacted_after_compact_age_ms(tmp_path: Path) -> None:
    """A single renewal since the last compaction is enough."""
    async with cluster(tmp_path, compact_age_ms=50) as brokers:
        (one,) = brokers.brokers
        once = Once()
        task = asyncio.ensure_future(Compacting(one.worker, compact_once=once).run())
        await until(lambda: len(once.runs) >= 2)
        task.cancel()


async def test_compact_records_of_0_means_never(tmp_path: Path) -> None:
    async with cluster(tmp_path, compact_records=0, compact_age_ms=1) as brokers:
        once = Once()
        await Compacting(brokers.brokers[0].worker, compact_once=once).run()
        assert [] == once.runs


async def test_a_failure_raises_one_alarm_and_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each failure is counted."""
    monkeypatch.setattr(compacting, "RETRY_MS", 1)
    caplog.set_level(logging.INFO, "equipoise.brokers.runtime.loops.compacting")
    async with cluster(tmp_path, compact_age_ms=1) as brokers:
        (one,) = brokers.brokers
        once = Once(failing("CompactionRefused"))
        task = asyncio.ensure_future(Compacting(one.worker, compact_once=once).run())
        await until(lambda: one.sample("compaction_failures_total") >= 2)
        assert 0 == one.sample("compaction_horizon_offset")
        once.outcome = lambda: Done(9)
        await until(lambda: one.sample("compaction_horizon_offset") == 9)
        task.cancel()
    assert 1 == len(
        [record for record in caplog.records if record.__dict__.get("alarm") == "compaction"]
    )
    assert "compacted the channel" in [record.message for record in caplog.records]


async def test_a_time_ahead_of_the_clock_is_an_alarm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The metric and the log line have the offset of the record."""
    caplog.set_level(logging.WARNING, "equipoise.brokers.runtime.loops.compacting")
    async with cluster(tmp_path, compact_age_ms=1) as brokers:
        (one,) = brokers.brokers
        task = asyncio.ensure_future(
            Compacting(one.worker, compact_once=Once(lambda: Done(9, ahead=4))).run()
        )
        await until(lambda: one.sample("log_clock_ahead_offset") == 4)
        task.cancel()
    assert ("log_clock", 4) == tuple(
        caplog.records[0].__dict__[name] for name in ("alarm", "offset")
    )


async def test_an_overtaken_compaction_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Another compactor does the work."""
    caplog.set_level(logging.INFO, "equipoise.brokers.runtime.loops.compacting")
    async with cluster(tmp_path, compact_age_ms=1) as brokers:
        (one,) = brokers.brokers
        once = Once(failing("SnapshotFenced"))
        task = asyncio.ensure_future(Compacting(one.worker, compact_once=once).run())
        await until(lambda: bool(once.runs))
        task.cancel()
        assert 0 == one.sample("compaction_failures_total")
    assert ["INFO"] == [
        record.levelname
        for record in caplog.records
        if record.name == "equipoise.brokers.runtime.loops.compacting"
    ]


async def test_a_log_in_memory_is_compacted_in_a_thread(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        config = brokers.brokers[0].worker.config
        assert compact_in_thread is compact_once_of(config.log_url)
        done = await compact_in_thread(
            Compaction(log_url=config.log_url, cluster=config.cluster, retain="7d")
        )
        with closing(open_log(config.log_url)) as log:
            marker = restoration(log).marker
        assert marker is not None
        assert Done(marker.horizon) == done


async def test_an_error_in_the_thread_is_a_failed_compaction(tmp_path: Path) -> None:
    async with cluster(tmp_path) as brokers:
        config = brokers.brokers[0].worker.config
        with pytest.raises(PeerError) as caught:
            await compact_in_thread(
                Compaction(log_url=config.log_url, cluster="another", retain="7d")
            )
        assert "ForeignLog" == caught.value.code


async def test_a_log_without_records_has_no_horizon(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'log'}"
    open_log(url).close()
    assert compact_in_child is compact_once_of(url)
    assert Done(None) == await compact_in_child(Compaction(log_url=url, cluster="c", retain="7d"))


@pytest.mark.parametrize(
    ("seconds_max", "error"),
    [(60.0, "LogNotBegun"), (0.001, "DeadlineExceeded")],
    ids=["error", "too slow"],
)
async def test_a_failure_of_the_child_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_max: float, error: str
) -> None:
    monkeypatch.setattr(compacting, "COMPACT_S_MAX", seconds_max)
    with pytest.raises(PeerError, match=error):
        await compact_in_child(
            Compaction(log_url=f"sqlite:{tmp_path / 'none'}", cluster="c", retain="7d")
        )


async def test_a_cancelled_compaction_kills_its_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
