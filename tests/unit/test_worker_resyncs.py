"""A worker whose log is cut off under it: it goes on from the snapshot, and those who listen, ask and follow hear of it.

May live here: workers on a log in memory that is out of reach while it is compacted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from equipoise.brokers.agent.intents import CreateNamespace, SplitBundle
from equipoise.brokers.balancing.splitting.split_points import SPECIFIED_POSITIONS_DIVIDE
from equipoise.brokers.http.assignment_feed import AssignmentFeed
from equipoise.brokers.operations.in_worker import Operations
from equipoise.brokers.operations.verbs import split
from equipoise.brokers.runtime import worker as workers
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.service import Bundle, Ownership, Peer, Service
from equipoise.brokers.runtime.worker import Worker
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.errors import LogUnavailable, OutcomeUnknown
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.records import AnyRecord
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.system.deadline import Deadline
from equipoise.compaction.copying import begin_above, empty_target
from tests.carried import soon
from tests.compacted import compact
from tests.folding import channel_with
from tests.troubled_log import TroubledLog

NAMESPACE = "t/n"
numbers = itertools.count()
PATIENCE_MS = 20_000


class Quiet(Service):
    """A service that does what it is told, and finds cuts only when it may."""

    def __init__(self) -> None:
        self.may_cut = asyncio.Event()

    async def open(self, ownership: Ownership, handover: bytes | None) -> None:
        """Nothing."""

    async def close(self, bundle: Bundle, moved_to: Peer | None, deadline: Deadline) -> bytes | None:
        return None

    async def split_points(self, bundle: Bundle, algorithm: str, positions: Sequence[int] | None) -> Sequence[int]:
        await self.may_cut.wait()
        return positions or ()


class Stand:
    """One worker and its log, which others may write to and compact while the worker does not reach it."""

    def __init__(self, folder: Path, *, name: str | None = None) -> None:
        self.name = name or f"memory:worker-jumps-{next(numbers)}"
        self.log = TroubledLog(name=self.name)
        self.writer = MemoryLog(name=self.name)
        self.service = Quiet()
        config = WorkerConfig(log_url=self.name, data_dir=folder, broker_id="a", balance=False, drain_ms=500, close_ms=500)
        self.worker = Worker(config, {"*": self.service}, addresses={"http": "http://a"})

    async def serve(self) -> None:
        """Have the one bundle of a namespace open."""
        await self.worker.ready(timeout_ms=PATIENCE_MS)
        await self.worker.request(CreateNamespace(name=NAMESPACE, boundaries=even_boundaries(1)), timeout_ms=PATIENCE_MS)
        await self.until(lambda: len(self.worker.open_bundles) == 1)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on the worker."""
        await self.worker.until(lambda _: condition() or None, timeout_ms=PATIENCE_MS, what="what the test waits for")

    def put(self, make: Callable[[Author], AnyRecord]) -> None:
        """An admin's record, made against what the worker has read."""
        author = Author(publisher="admin:ops", as_of=self.worker.view.offset)
        self.writer.append([encode(make(author))], timeout_ms=0)

    async def cut_off(self, make: Callable[[Author], AnyRecord]) -> None:
        """Have the worker miss a record, and the truncation of it."""
        away = LogUnavailable(log=self.name, problem="it is away", in_doubt=False)
        self.log.read_error = self.log.append_error = away
        await self.until(lambda: not self.worker.log_is_available)
        self.put(make)
        compact(self.writer)
        self.log.read_error = self.log.append_error = None


Run = Callable[[Callable[[Stand], Awaitable[None]]], None]


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a story with a worker that serves; it is stopped after it."""

    def run(story: Callable[[Stand], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(60), _serving(tmp_path, monkeypatch) as stand:
                await story(stand)

        asyncio.run(bounded())

    return run


@asynccontextmanager
async def _serving(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:
    stand = Stand(folder)
    monkeypatch.setattr(workers, "open_log", lambda _url: stand.log)
    await stand.worker.start()
    try:
        await stand.serve()
        yield stand
    finally:
        await stand.worker.stop()


def unload(stand: Stand) -> Callable[[Author], AnyRecord]:
    """An admin takes the bundle away."""
    (bundle,) = stand.worker.view.bundles_of(NAMESPACE)
    return lambda author: propose.unload(author, bundle, reason="operator")


def test_a_worker_that_is_cut_off_goes_on_from_the_snapshot(stand: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It acts on what it never read, counts the resync, keeps a new snapshot, and is the same member as before."""

    async def story(stand: Stand) -> None:
        incarnation = stand.worker.agent.incarnation
        await stand.cut_off(unload(stand))
        # What was unloaded unread is let go of, and placed anew: at the only broker there is.
        await stand.until(lambda: stand.worker.view.bundles_of(NAMESPACE)[0].token > stand.worker.view.namespaces[NAMESPACE].last + 4)
        await stand.until(lambda: len(stand.worker.open_bundles) == 1)
        assert incarnation == stand.worker.agent.incarnation

    with caplog.at_level(logging.WARNING, "equipoise.brokers.runtime.worker"):
        stand(story)
    (resynced,) = [record for record in caplog.records if "truncated" in record.message]
    assert 1 == resynced.__dict__["changes"]


def test_listeners_hear_of_a_resync(stand: Run) -> None:
    """Who asks for resyncs is told of this one, with the bundle that changed, and then of records again."""

    async def story(stand: Stand) -> None:
        resyncs: list[Resync] = []
        stand.worker.listen(lambda _folded: None, resynced=resyncs.append)
        await stand.cut_off(unload(stand))
        await stand.until(lambda: bool(resyncs))
        (bundle,) = stand.worker.view.bundles_of(NAMESPACE)
        assert [bundle.name] == [getattr(change, "name", None) for change in resyncs[0].changes]

    stand(story)


def test_who_follows_an_assignment_is_woken_by_a_resync(stand: Run) -> None:
    """The feed names the bundle that changed, and its namespace has changed at the offset at which it truly did."""

    async def story(stand: Stand) -> None:
        feed = AssignmentFeed(stand.worker.listen, broker="a")
        before = feed.offset_of(stand.worker.view, NAMESPACE)
        (bundle,) = stand.worker.view.bundles_of(NAMESPACE)
        with feed.follower(NAMESPACE) as follower:
            await stand.cut_off(unload(stand))
            assert await follower.wait(timeout_ms=PATIENCE_MS)
            assert [bundle.name] == follower.take()
            assert feed.offset_of(stand.worker.view, NAMESPACE) > before
        feed.close()

    stand(story)


def test_who_follows_a_namespace_hears_that_a_resync_has_deleted_it(stand: Run) -> None:
    """A namespace whose policies were changed unread wakes its followers, too."""

    async def story(stand: Stand) -> None:
        feed = AssignmentFeed(stand.worker.listen, broker="a")
        with feed.follower(NAMESPACE) as follower:
            await stand.cut_off(
                lambda author: propose.set_namespace_policies(author, stand.worker.view, name=NAMESPACE, policies={"limit": 1})
            )
            assert await follower.wait(timeout_ms=PATIENCE_MS)
            assert [] == follower.take()
        feed.close()

    stand(story)


def test_a_move_whose_end_was_cut_off_ends_unknown(stand: Run) -> None:
    """Who waits for a split that somebody cancelled in records that nobody read is told that it is not known."""

    async def story(stand: Stand) -> None:
        (bundle,) = stand.worker.view.bundles_of(NAMESPACE)
        operation = split(bundle.name, SPECIFIED_POSITIONS_DIVIDE, (1 << 31,))
        splitting = asyncio.ensure_future(Operations(stand.worker).run(operation, Deadline.after(timeout_ms=PATIENCE_MS)))
        await stand.until(lambda: stand.worker.view.bundles[bundle.name].phase == "splitting")
        now = stand.worker.view.bundles[bundle.name]
        await stand.cut_off(lambda author: propose.cancel(author, now, reason="too long"))
        with pytest.raises(OutcomeUnknown, match="truncated"):
            await splitting

    stand(story)


def test_a_request_whose_record_was_cut_off_ends_unknown(stand: Run) -> None:
    """A record that stands in what was truncated was accepted or not: its author is told that nobody can tell."""

    async def story(stand: Stand) -> None:
        (bundle,) = stand.worker.view.bundles_of(NAMESPACE)
        stand.log.read_error = LogUnavailable(log=stand.name, problem="it is away", in_doubt=False)
        await stand.until(lambda: not stand.worker.log_is_available)
        appended = len(stand.log.batches)
        wish = SplitBundle(bundle=bundle.name, algorithm=SPECIFIED_POSITIONS_DIVIDE, positions=(1 << 31,), reason="test")
        asking = asyncio.ensure_future(stand.worker.request(wish, timeout_ms=PATIENCE_MS))
        await stand.until(lambda: any(b'"test"' in record for batch in stand.log.batches[appended:] for record in batch))
        compact(stand.writer)
        stand.log.read_error = None
        with pytest.raises(OutcomeUnknown, match="truncated"):
            await asking

    stand(story)


def test_a_worker_without_anything_starts_from_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker whose directory is empty is ready on a log whose beginning is gone, and has read its namespaces."""

    async def story() -> None:
        async with asyncio.timeout(60):
            async with _serving(tmp_path / "one", monkeypatch) as stand:
                writer = stand.writer
            compact(writer)
            assert writer.start() > 1
            stand = Stand(tmp_path / "two", name=stand.name)
            monkeypatch.setattr(workers, "open_log", lambda _url: stand.log)
            await stand.worker.start()
            await stand.worker.ready(timeout_ms=PATIENCE_MS)
            assert NAMESPACE in stand.worker.view.namespaces
            await stand.worker.stop()

    asyncio.run(story())


def test_a_log_that_is_away_at_the_start_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that finds its log unreadable begins all the same, and restores itself when the log is back; that is no resync."""

    async def story() -> None:
        async with asyncio.timeout(60):
            async with _serving(tmp_path / "one", monkeypatch) as stand:
                pass
            again = Stand(tmp_path / "two", name=stand.name)
            again.log.read_error = LogUnavailable(log=stand.name, problem="it is away", in_doubt=False)
            monkeypatch.setattr(workers, "open_log", lambda _url: again.log)
            await again.worker.start()
            assert not again.worker.agent.is_ready
            again.log.read_error = None
            await again.worker.ready(timeout_ms=PATIENCE_MS)
            assert NAMESPACE in again.worker.view.namespaces
            await again.worker.stop()

    with caplog.at_level(logging.WARNING, "equipoise.brokers.runtime.worker"):
        asyncio.run(story())
    assert "waiting for the log" in caplog.text
    assert "truncated before" not in caplog.text


def test_a_worker_on_an_empty_log_resyncs_into_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that was started on the new log too early joins the channel that is copied there, and not an empty one of its own."""

    async def story() -> None:
        async with asyncio.timeout(60):
            stand = Stand(tmp_path)
            monkeypatch.setattr(workers, "open_log", lambda _url: stand.log)
            stand.log.append_error = LogUnavailable(log=stand.name, problem="it is away", in_doubt=False)
            await stand.worker.start()
            channel = channel_with(bundles=4)
            view = channel.view
            view.cluster = stand.worker.config.cluster
            view.go_on_above(1_000, level=view.level, level_last=view.level_last)
            begin_above(stand.writer, empty_target(stand.writer, deadline=soon()), view, deadline=soon())
            await stand.until(lambda: stand.worker.view.base == 1_000)
            stand.log.append_error = None
            await stand.worker.ready(timeout_ms=PATIENCE_MS)
            assert 4 == len(stand.worker.view.bundles)
            assert (1_001, True) == (stand.worker.view.genesis, min(stand.worker.view.live) > 1_000)
            await stand.worker.stop()

    asyncio.run(story())
    assert [] == [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
