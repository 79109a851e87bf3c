"""A worker's beginning and end: what its disk, its services and its log see, and when."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import CreateNamespace
from equipoise.brokers.runtime import callers
from equipoise.brokers.runtime import worker as workers
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core import propose
from equipoise.channel.core.errors import LogReplaced, LogStorageFull, OperatorError, Overloaded
from equipoise.channel.core.ranges import even_boundaries
from tests.channels.troubled_log import TroubledLog
from tests.unit.runtime.worker_bench import PATIENCE_MS, Bench, Benches, benches

__all__ = ["benches"]

BUNDLES = 4
LOST = LogReplaced(log="memory:troubled", path="troubled")


async def test_a_failure_closes_all_that_is_open(benches: Benches, tmp_path: Path) -> None:
    """A service hears of the end of a broker whose log is lost, by itself, with time to settle; and that view is not kept."""
    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        names = sorted(bench.service.open_now)
        bench.log.read_error = LOST
        with pytest.raises(LogReplaced):
            await bench.worker.finished()
        assert [] == [name for name, ownership in bench.service.open_now.items() if ownership.is_good]
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            while len(bench.service.closed) < BUNDLES:  # noqa: ASYNC110 - the end of a worker that nobody stops has no event
                await asyncio.sleep(0.001)
        assert [(name, None, True) for name in names] == sorted(bench.service.closed)

    assert not (tmp_path / "snapshot").exists()
    DataDirectory(tmp_path).close()


async def test_a_service_that_hangs_in_its_last_closing_is_not_waited_for_long(benches: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a broker has a bound of its own, whatever its service does."""
    monkeypatch.setattr(workers, "_LAST_CLOSE_MS", 10)

    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        bench.service.may_close.clear()
        bench.log.read_error = LOST
        with pytest.raises(LogReplaced):
            await bench.worker.finished()
        await bench.worker.stop()
        assert BUNDLES == len(bench.service.closed)


async def test_an_abort_tells_nobody(benches: Benches, tmp_path: Path) -> None:
    """An abort is what a death is: no closing, no `left`, no snapshot; but the directory is free for a successor."""
    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        await bench.worker.abort()
        assert ([], BUNDLES) == (bench.service.closed, len(bench.service.open_now))
        assert "up" == bench.worker.view.brokers["a"].status

    assert not (tmp_path / "snapshot").exists()
    DataDirectory(tmp_path).close()


async def test_a_stop_leaves_and_keeps_a_snapshot(benches: Benches, tmp_path: Path) -> None:
    """A graceful stop closes each bundle once, is read to have left, and the next start has a snapshot to begin with."""
    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        await bench.worker.stop()
        assert (BUNDLES, "left") == (len(bench.service.closed), bench.worker.view.brokers["a"].status)

    assert (tmp_path / "snapshot").exists()


async def test_a_stop_without_a_log_is_over_in_its_time(benches: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that cannot say that it leaves closes all, and goes without."""
    monkeypatch.setattr(workers, "_LAST_RECORDS_MS", 200)

    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        bench.log.append_error = bench.away
        await bench.worker.stop()
        assert (BUNDLES, "up") == (len(bench.service.closed), bench.worker.view.brokers["a"].status)


async def test_a_joined_waits_for_its_nonce_and_nothing_else_does(benches: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk hangs the loop goes on, and no `joined` is sent; once the nonce is written the broker joins with it."""
    disk = threading.Event()
    write_nonce = DataDirectory.write_nonce
    written: list[str] = []

    def slow(directory: DataDirectory, nonce: str) -> None:
        assert disk.wait(PATIENCE_MS / 1_000)
        write_nonce(directory, nonce)
        written.append(nonce)

    monkeypatch.setattr(DataDirectory, "write_nonce", slow)

    async with benches.started() as bench:
        await bench.until(lambda: bench.worker.view.genesis is not None)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert [] == [batch for batch in bench.log.batches if b'"nonce"' in b"".join(batch)]
        disk.set()
        await bench.worker.ready(timeout_ms=PATIENCE_MS)
        assert bench.worker.view.brokers["a"].joined.nonce in written


async def test_a_disk_that_refuses_keeps_a_broker_from_joining(
    benches: Benches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A nonce that cannot be written raises an alarm and is tried anew; nothing is sent without it."""
    full = threading.Event()
    full.set()
    write_nonce = DataDirectory.write_nonce

    def refuse(directory: DataDirectory, nonce: str) -> None:
        if full.is_set():
            raise OSError(28, "No space left on device")
        write_nonce(directory, nonce)

    monkeypatch.setattr(DataDirectory, "write_nonce", refuse)

    async with benches.started() as bench:
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            while not _alarms(caplog, "data_directory"):  # noqa: ASYNC110 - what is logged has no event
                await asyncio.sleep(0.001)
        assert {} == bench.worker.view.brokers
        full.clear()
        await bench.worker.ready(timeout_ms=PATIENCE_MS)


async def test_alarms_and_failed_appends_name_their_record(benches: Benches, caplog: pytest.LogCaptureFixture) -> None:
    """Which record, of which key, and where: as fields, for machines, not in prose only."""
    caplog.set_level(logging.INFO, logger="equipoise.brokers.runtime.worker")
    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        bench.log.append_error = LogStorageFull(log="memory:troubled")
        with pytest.raises(LogStorageFull):
            await bench.worker.request(CreateNamespace(name="t/other", boundaries=even_boundaries(1)), timeout_ms=PATIENCE_MS)
        bench.log.append_error = None
        former = bench.worker.view.brokers["a"]
        bench.put(lambda author: propose.down(author, former, nonce=former.joined.nonce))
        await bench.until(lambda: bench.worker.view.brokers["a"].incarnation != former.incarnation)

    (failed,) = (record.__dict__ for record in caplog.records if record.message.startswith("append failed"))
    assert ("a", "namespace", "t/other") == (failed["broker"], failed["kind"], failed["key"])
    assert "appends succeed again" in caplog.messages
    (death,) = _alarms(caplog, "own_death")
    assert ("a", True) == (death.__dict__["key"], death.__dict__["offset"] > 0)


async def test_a_start_that_is_cancelled_closes_the_log_that_it_was_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that opens a log cannot be stopped: the handle is closed when it comes, and the directory is free at once."""
    may_open = threading.Event()
    log = TroubledLog(name="memory:troubled")

    def slowly(_url: str) -> TroubledLog:
        assert may_open.wait(PATIENCE_MS / 1_000)
        return log

    bench = Bench(tmp_path)
    monkeypatch.setattr(workers, "open_log", slowly)
    starting = asyncio.ensure_future(bench.worker.start())
    await asyncio.sleep(0.01)
    starting.cancel()
    await asyncio.wait([starting])
    DataDirectory(tmp_path).close()
    assert not log.closed.is_set()
    may_open.set()
    assert await asyncio.to_thread(log.closed.wait, PATIENCE_MS / 1_000)


def test_a_start_that_fails_leaves_no_thread_of_evidence(tmp_path: Path) -> None:
    """A worker whose directory is another's has opened no file, and left no thread, when that is found out."""
    held = DataDirectory(tmp_path / "a")
    config = WorkerConfig(log_url="memory:troubled", data_dir=tmp_path / "a", broker_id="a", evidence=tmp_path / "evidence")
    worker = Worker(config, {}, addresses={})
    with pytest.raises(OperatorError):
        asyncio.run(worker.start())
    held.close()
    assert not (tmp_path / "evidence").exists()
    assert "evidence" not in [thread.name for thread in threading.enumerate()]


async def test_a_broker_tells_of_its_openings_and_closings(benches: Benches, caplog: pytest.LogCaptureFixture) -> None:
    """Each bundle has a line when it is opened, and one when it is closed."""
    caplog.set_level(logging.INFO, logger="equipoise.brokers.runtime.bundle_lines")
    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        await bench.worker.stop()

    lines = [record.message for record in caplog.records if record.name == "equipoise.brokers.runtime.bundle_lines"]
    assert [BUNDLES, BUNDLES] == [lines.count("opened"), lines.count("closed")]


async def test_one_listener_too_many_is_refused(benches: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who are told of every record are bounded in number; who ends it makes room."""
    monkeypatch.setattr(callers, "LISTENERS_MAX", 1)

    async with benches.started() as bench:
        end = bench.worker.listen(lambda _folded: None)
        with pytest.raises(Overloaded, match="the list of listeners"):
            bench.worker.listen(lambda _folded: None)
        end()
        bench.worker.listen(lambda _folded: None)()


def _alarms(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.__dict__.get("alarm") == name]
