"""How a worker ends and starts: failures, stops, aborts, and what they leave behind."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import CreateNamespace
from equipoise.brokers.runtime import snapshots
from equipoise.brokers.runtime import worker as workers
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.data_directory import DataDirectory, LogMark
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core import propose
from equipoise.channel.core.errors import LogReplaced, LogStorageFull, OperatorError
from equipoise.channel.core.ranges import even_boundaries
from tests.channels.troubled_log import TroubledLog
from tests.unit.runtime.worker_bench import PATIENCE_MS, Bench, Benches, benches

__all__ = ["benches"]

BUNDLES = 4
LOST = LogReplaced(log="memory:troubled", path="troubled")


async def test_a_failure_closes_all_open_bundles(benches: Benches, tmp_path: Path) -> None:
    """The service has time to settle. The view is not saved."""
    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        names = sorted(bench.service.open_now)
        bench.log.read_error = LOST
        with pytest.raises(OperatorError):
            await bench.worker.finished()
        assert [] == [
            name for name, ownership in bench.service.open_now.items() if ownership.is_good
        ]
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            # The end of a worker that nobody stops has no event.
            while len(bench.service.closed) < BUNDLES:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert [(name, None, True) for name in names] == sorted(bench.service.closed)

    assert not (tmp_path / "snapshot").exists()
    DataDirectory(tmp_path).close()


async def test_the_last_closings_are_bounded(
    benches: Benches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_LAST_CLOSE_MS", 10)

    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        bench.service.may_close.clear()
        bench.log.read_error = LOST
        with pytest.raises(OperatorError):
            await bench.worker.finished()
        await bench.worker.stop()
        assert BUNDLES == len(bench.service.closed)


async def test_an_abort_is_like_a_death(benches: Benches, tmp_path: Path) -> None:
    """No closing, no `left`, no snapshot. The directory is free."""
    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        await bench.worker.abort()
        assert ([], BUNDLES) == (bench.service.closed, len(bench.service.open_now))
        assert "up" == bench.worker.view.brokers["a"].status

    assert not (tmp_path / "snapshot").exists()
    DataDirectory(tmp_path).close()


async def test_a_stop_closes_leaves_and_saves_a_snapshot(benches: Benches, tmp_path: Path) -> None:
    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        await bench.worker.stop()
        assert (BUNDLES, "left") == (
            len(bench.service.closed),
            bench.worker.view.brokers["a"].status,
        )

    assert (tmp_path / "snapshot").exists()


async def test_a_stop_without_a_log_is_bounded(
    benches: Benches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes all bundles, but cannot leave."""
    monkeypatch.setattr(workers, "_LAST_RECORDS_MS", 200)

    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        bench.log.append_error = bench.away
        await bench.worker.stop()
        assert (BUNDLES, "up") == (len(bench.service.closed), bench.worker.view.brokers["a"].status)


async def test_a_stop_does_not_wait_for_a_log_that_hangs(
    benches: Benches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker closes all bundles and releases its directory. Only the thread of the log still
    waits.
    """
    monkeypatch.setattr(workers, "_LAST_RECORDS_MS", 200)

    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        bench.log.gate.clear()
        await bench.worker.stop()
        assert (BUNDLES, False) == (len(bench.service.closed), bench.log.closed.is_set())
        DataDirectory(benches.folder).close()
        assert (
            f"log stays open: the end of the thread of {bench.name} did not happen within 200 ms"
            in caplog.text
        )
        bench.log.gate.set()
        assert await asyncio.to_thread(bench.log.closed.wait, PATIENCE_MS / 1_000)


async def test_a_full_disk_keeps_a_broker_from_joining(
    benches: Benches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It raises an alarm, and tries again."""
    full = threading.Event()
    full.set()
    write_instance_id = DataDirectory.write_instance_id

    def refuse(directory: DataDirectory, instance_id: str) -> None:
        if full.is_set():
            raise OSError(28, "No space left on device")
        write_instance_id(directory, instance_id)

    monkeypatch.setattr(DataDirectory, "write_instance_id", refuse)

    async with benches.started() as bench:
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            # What is logged has no event.
            while not _alarms(caplog, "data_directory"):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert {} == bench.worker.view.brokers
        full.clear()
        await bench.worker.ready(timeout_ms=PATIENCE_MS)


async def test_a_bundle_waits_until_the_disk_has_its_token(
    benches: Benches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other work goes on meanwhile."""
    disk, write_mark = threading.Event(), DataDirectory.write_mark

    def slow(directory: DataDirectory, mark: LogMark) -> None:
        assert disk.wait(PATIENCE_MS / 1_000)
        write_mark(directory, mark)

    async with benches.started() as bench:
        await bench.worker.ready(timeout_ms=PATIENCE_MS)
        monkeypatch.setattr(DataDirectory, "write_mark", slow)
        serving = asyncio.ensure_future(bench.serve(bundles=BUNDLES))
        await bench.until(
            lambda: (
                ["owned"] * BUNDLES == [each.phase for each in bench.worker.view.bundles.values()]
            )
        )
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert {} == bench.service.open_now
        disk.set()
        await serving


async def test_alarms_and_failed_appends_name_their_record(
    benches: Benches, caplog: pytest.LogCaptureFixture
) -> None:
    """As fields of the log line."""
    caplog.set_level(logging.INFO, logger="equipoise.brokers.runtime.worker")
    async with benches.started() as bench:
        await bench.serve(bundles=BUNDLES)
        bench.log.append_error = LogStorageFull(log="memory:troubled")
        with pytest.raises(LogStorageFull):
            await bench.worker.request(
                CreateNamespace(name="t/other", boundaries=even_boundaries(1)),
                timeout_ms=PATIENCE_MS,
            )
        bench.log.append_error = None
        former = bench.worker.view.brokers["a"]
        bench.put(
            lambda author: propose.down(author, former, instance_id=former.joined.instance_id)
        )
        await bench.until(lambda: bench.worker.view.brokers["a"].incarnation != former.incarnation)

    (failed,) = (
        record.__dict__ for record in caplog.records if record.message.startswith("append failed")
    )
    assert ("a", "namespace", "t/other") == (failed["broker"], failed["kind"], failed["key"])
    assert "appends succeed again" in caplog.messages
    (death,) = _alarms(caplog, "own_death")
    assert ("a", True) == (death.__dict__["key"], death.__dict__["offset"] > 0)


async def test_each_join_and_the_stop_are_logged(
    benches: Benches, caplog: pytest.LogCaptureFixture
) -> None:
    """Once each, also the join after this broker was declared dead."""
    caplog.set_level(logging.INFO, logger="equipoise.brokers.runtime.worker")
    async with benches.started() as bench:
        await bench.serve()
        former = bench.worker.view.brokers["a"]
        bench.put(
            lambda author: propose.down(author, former, instance_id=former.joined.instance_id)
        )
        await bench.until(lambda: bench.worker.view.brokers["a"].incarnation != former.incarnation)
        again = bench.worker.agent.incarnation
    lines = [
        record.__dict__ for record in caplog.records if record.message in ("ready", "stopping")
    ]
    assert [("ready", former.incarnation), ("ready", again), ("stopping", None)] == [
        (line["message"], line.get("incarnation")) for line in lines
    ]
    assert {("a", logging.INFO)} == {(line["broker"], line["levelno"]) for line in lines}
    assert ["http://a", "http://a", None] == [line.get("address") for line in lines]


async def test_a_cancelled_start_closes_the_log_once_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is free at once."""
    may_open = threading.Event()
    log = TroubledLog(name="memory:troubled")

    def slowly(_url: str, _directory: DataDirectory) -> TroubledLog:
        assert may_open.wait(PATIENCE_MS / 1_000)
        return log

    bench = Bench(tmp_path)
    monkeypatch.setattr(snapshots, "open_marked", slowly)
    starting = asyncio.ensure_future(bench.worker.start())
    await asyncio.sleep(0.01)
    starting.cancel()
    await asyncio.wait([starting])
    DataDirectory(tmp_path).close()
    assert not log.closed.is_set()
    may_open.set()
    assert await asyncio.to_thread(log.closed.wait, PATIENCE_MS / 1_000)


async def test_a_log_that_every_user_may_write_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, with the path and its mode."""
    (tmp_path / "log.db").touch()
    (tmp_path / "log.db").chmod(0o666)
    config = WorkerConfig(
        log_url=f"sqlite:{tmp_path / 'log.db'}", data_dir=tmp_path / "a", broker_id="a"
    )
    worker = Worker(config, {}, addresses={})
    await worker.start()
    await worker.stop()
    lines = [
        record.__dict__
        for record in caplog.records
        if "every user of this machine may write" in record.message
    ]
    assert [(str(tmp_path / f"log.db{name}"), "0666") for name in ("", "-shm", "-wal")] == [
        (line["path"], line["mode"]) for line in lines
    ]
    assert all("chmod o-w" in line["message"] for line in lines)


def test_a_failed_start_leaves_no_evidence_file_and_no_thread(tmp_path: Path) -> None:
    held = DataDirectory(tmp_path / "a")
    config = WorkerConfig(
        log_url="memory:troubled",
        data_dir=tmp_path / "a",
        broker_id="a",
        evidence=tmp_path / "evidence",
    )
    worker = Worker(config, {}, addresses={})
    with pytest.raises(OperatorError):
        asyncio.run(worker.start())
    held.close()
    assert not (tmp_path / "evidence").exists()
    assert "evidence" not in [thread.name for thread in threading.enumerate()]


def _alarms(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.__dict__.get("alarm") == name]
