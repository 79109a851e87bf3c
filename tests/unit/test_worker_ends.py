"""A worker's beginning and end: what its disk, its services and its log file are told, and when.

May live here: one worker over a log in memory that has the trouble that a test wants.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import CreateNamespace
from equipoise.brokers.runtime import callers
from equipoise.brokers.runtime import worker as workers
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.errors import LogReplaced, LogStorageFull, LogUnavailable, OperatorError, Overloaded
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.view import View
from equipoise.channel.system.deadline import Deadline
from tests.troubled_log import TroubledLog

NAMESPACE = "t/n"
BUNDLES = 4
PATIENCE_MS = 20_000
LOST = LogReplaced(log="memory:troubled", path="troubled")


class Diary(Service):
    """A service that writes down what it is told."""

    def __init__(self) -> None:
        self.open_now: dict[str, Ownership] = {}
        self.closed: list[tuple[str, Peer | None, bool]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        self.open_now[ownership.bundle.name] = ownership

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None:
        self.closed.append((bundle.name, moved_to, deadline.remaining_ms() > 0))
        await self.gate.wait()
        return None


class Stand:
    """One worker, its service, its log and its directory."""

    def __init__(self, folder: Path) -> None:
        self.log = TroubledLog(name="memory:troubled")
        self.folder = folder
        self.diary = Diary()
        config = WorkerConfig(log_url="memory:troubled", data_dir=folder, broker_id="a", balance=False, drain_ms=500, close_ms=500)
        self.worker = Worker(config, {"*": self.diary}, addresses={"http": "http://a"})

    async def serve(self) -> None:
        """Have all bundles of a namespace open."""
        await self.worker.ready(timeout_ms=PATIENCE_MS)
        await self.worker.request(CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(BUNDLES)), timeout_ms=PATIENCE_MS)
        await self.until(lambda _: len(self.worker.open_bundles) == BUNDLES or None, "all bundles being open")

    async def until(self, condition: Callable[[View], bool | None], what: str) -> None:
        """Wait for a condition on the view."""
        await self.worker.until(condition, timeout_ms=PATIENCE_MS, what=what)


Run = Callable[[Callable[[Stand], Awaitable[None]]], None]


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a story with a worker that has been started; it is stopped after it."""

    def run(story: Callable[[Stand], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60), _started(tmp_path, monkeypatch) as stand:
                await story(stand)

        asyncio.run(bounded())

    return run


@asynccontextmanager
async def _started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:
    stand = Stand(folder)
    monkeypatch.setattr(workers, "open_log", lambda _url: stand.log)
    await stand.worker.start()
    try:
        yield stand
    finally:
        await stand.worker.stop()


def test_a_failure_closes_all_that_is_open(stand: Run, tmp_path: Path) -> None:
    """A service hears of the end of a broker whose log is lost, by itself, with time to settle; and that view is not kept."""

    async def story(stand: Stand) -> None:
        await stand.serve()
        names = sorted(stand.diary.open_now)
        stand.log.read_error = LOST
        with pytest.raises(LogReplaced):
            await stand.worker.finished()
        assert [] == [name for name, ownership in stand.diary.open_now.items() if ownership.is_good]
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            while len(stand.diary.closed) < BUNDLES:  # noqa: ASYNC110 - the end of a worker that nobody stops has no event
                await asyncio.sleep(0.001)
        assert [(name, None, True) for name in names] == sorted(stand.diary.closed)

    stand(story)
    assert not (tmp_path / "snapshot").exists()
    DataDirectory(tmp_path).close()


def test_a_service_that_hangs_in_its_last_closing_is_not_waited_for_long(stand: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a broker has a bound of its own, whatever its service does."""
    monkeypatch.setattr(workers, "_LAST_CLOSE_MS", 10)

    async def story(stand: Stand) -> None:
        await stand.serve()
        stand.diary.gate.clear()
        stand.log.read_error = LOST
        with pytest.raises(LogReplaced):
            await stand.worker.finished()
        await stand.worker.stop()
        assert BUNDLES == len(stand.diary.closed)

    stand(story)


def test_an_abort_tells_nobody(stand: Run, tmp_path: Path) -> None:
    """An abort is what a death is: no closing, no `left`, no snapshot; but the directory is free for a successor."""

    async def story(stand: Stand) -> None:
        await stand.serve()
        await stand.worker.abort()
        assert ([], BUNDLES) == (stand.diary.closed, len(stand.diary.open_now))
        assert "up" == stand.worker.view.brokers["a"].status

    stand(story)
    assert not (tmp_path / "snapshot").exists()
    DataDirectory(tmp_path).close()


def test_a_stop_leaves_and_keeps_a_snapshot(stand: Run, tmp_path: Path) -> None:
    """A graceful stop closes each bundle once, is read to have left, and the next start has a snapshot to begin with."""

    async def story(stand: Stand) -> None:
        await stand.serve()
        await stand.worker.stop()
        assert (BUNDLES, "left") == (len(stand.diary.closed), stand.worker.view.brokers["a"].status)

    stand(story)
    assert (tmp_path / "snapshot").exists()


def test_a_stop_without_a_log_is_over_in_its_time(stand: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that cannot say that it leaves closes all, and goes without."""
    monkeypatch.setattr(workers, "_LAST_WORDS_MS", 200)

    async def story(stand: Stand) -> None:
        await stand.serve()
        stand.log.append_error = LogUnavailable(log="memory:troubled", problem="it is locked", in_doubt=False)
        await stand.worker.stop()
        assert (BUNDLES, "up") == (len(stand.diary.closed), stand.worker.view.brokers["a"].status)

    stand(story)


def test_a_joined_waits_for_its_nonce_and_nothing_else_does(stand: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the disk hangs the loop goes on, and no `joined` is sent; once the nonce is written the broker joins with it."""
    disk = threading.Event()
    write_nonce = DataDirectory.write_nonce
    written: list[str] = []

    def slow(directory: DataDirectory, nonce: str) -> None:
        assert disk.wait(PATIENCE_MS / 1_000)
        write_nonce(directory, nonce)
        written.append(nonce)

    monkeypatch.setattr(DataDirectory, "write_nonce", slow)

    async def story(stand: Stand) -> None:
        await stand.until(lambda view: view.genesis is not None or None, "the first record")
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert [] == [batch for batch in stand.log.batches if b'"nonce"' in b"".join(batch)]
        disk.set()
        await stand.worker.ready(timeout_ms=PATIENCE_MS)
        assert stand.worker.view.brokers["a"].joined.nonce in written

    stand(story)


def test_a_disk_that_refuses_keeps_a_broker_from_joining(
    stand: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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

    async def story(stand: Stand) -> None:
        async with asyncio.timeout(PATIENCE_MS / 1_000):
            while not _alarms(caplog, "data_directory"):  # noqa: ASYNC110 - what is logged has no event
                await asyncio.sleep(0.001)
        assert {} == stand.worker.view.brokers
        full.clear()
        await stand.worker.ready(timeout_ms=PATIENCE_MS)

    stand(story)


def test_alarms_and_failed_appends_name_their_record(stand: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Which record, of which key, and where: as fields, for machines, not in prose only."""

    async def story(stand: Stand) -> None:
        await stand.serve()
        stand.log.append_error = LogStorageFull(log="memory:troubled")
        with pytest.raises(LogStorageFull):
            await stand.worker.request(CreateNamespace(name="t/other", boundaries=even_boundaries(1)), timeout_ms=PATIENCE_MS)
        stand.log.append_error = None
        former = stand.worker.view.brokers["a"]
        admin = Author(publisher="admin:test", as_of=stand.worker.view.offset)
        stand.log.append([encode(propose.down(admin, former, nonce=former.joined.nonce))], timeout_ms=1_000)
        await stand.until(lambda view: view.brokers["a"].incarnation != former.incarnation or None, "its coming back")

    with caplog.at_level(logging.INFO, logger="equipoise.brokers.runtime.failures"):
        stand(story)
    (failed,) = (record.__dict__ for record in caplog.records if record.message.startswith("append failed"))
    assert ("a", "namespace", "t/other") == (failed["broker"], failed["kind"], failed["key"])
    assert "appends succeed again" in caplog.messages
    (death,) = _alarms(caplog, "own_death")
    assert ("a", True) == (death.__dict__["key"], death.__dict__["offset"] > 0)


def test_a_start_that_is_cancelled_closes_the_log_that_it_was_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that opens a log cannot be stopped: the handle is closed when it comes, and the directory is free at once."""
    may_open = threading.Event()
    log = TroubledLog(name="memory:troubled")

    def slowly(_url: str) -> TroubledLog:
        assert may_open.wait(PATIENCE_MS / 1_000)
        return log

    async def story() -> None:
        stand = Stand(tmp_path)
        monkeypatch.setattr(workers, "open_log", slowly)
        starting = asyncio.ensure_future(stand.worker.start())
        await asyncio.sleep(0.01)
        starting.cancel()
        await asyncio.wait([starting])
        DataDirectory(tmp_path).close()
        assert not log.closed.is_set()
        may_open.set()
        assert await asyncio.to_thread(log.closed.wait, PATIENCE_MS / 1_000)

    asyncio.run(story())


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


def test_a_broker_tells_of_its_openings_and_closings(stand: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Each bundle has a line when it is opened, and one when it is closed."""

    async def story(stand: Stand) -> None:
        await stand.serve()
        await stand.worker.stop()

    with caplog.at_level(logging.INFO, logger="equipoise.brokers.runtime.bundle_lines"):
        stand(story)
    lines = [record.message for record in caplog.records if record.name == "equipoise.brokers.runtime.bundle_lines"]
    assert [BUNDLES, BUNDLES] == [lines.count("opened"), lines.count("closed")]


def test_one_listener_too_many_is_refused(stand: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who are told of every record are bounded in number; who ends it makes room."""
    monkeypatch.setattr(callers, "LISTENERS_MAX", 1)

    async def story(stand: Stand) -> None:
        end = stand.worker.listen(lambda _folded: None)
        with pytest.raises(Overloaded, match="the row of listeners"):
            stand.worker.listen(lambda _folded: None)
        end()
        stand.worker.listen(lambda _folded: None)()

    stand(story)


def _alarms(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.__dict__.get("alarm") == name]
