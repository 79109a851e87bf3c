"""A channel followed live: when it is ready, what its listeners hear, and what ends it."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import PolicyChanged
from equipoise.channel.core.errors import DeadlineExceeded, LogDamaged, LogUnavailable
from equipoise.channel.core.log import Log
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.snapshot import to_bytes
from equipoise.channel.core.table import Resync
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.clocks import Deadline
from tests.channels.compacted import compact
from tests.channels.folding import channel_with
from tests.channels.troubled_log import TroubledLog

numbers = itertools.count()


def soon() -> Deadline:
    """A deadline that only a test which fails meets."""
    return Deadline.after(timeout_ms=30_000)


class Followed:
    """A log with a view that follows it, and the channel of the same records."""

    def __init__(self) -> None:
        self.channel = channel_with("a", bundles=2)
        self.log = TroubledLog(name=f"memory:table-view-{next(numbers)}")
        self.writer = MemoryLog(name=self.log.name)
        self.writer.append([data for _, data in self.channel.entries], timeout_ms=0)
        self.view = TableView(lambda: self.log, name=self.log.name)

    def write(self, data: bytes) -> None:
        """Append a record of somebody else."""
        self.channel.put_bytes(data)
        self.writer.append([data], timeout_ms=0)

    def set_policy(self, value: int) -> None:
        """Let somebody else set a policy."""
        self.write(
            encode(
                propose.set_policy(
                    self.channel.admin(), self.channel.view, name="limit", document={"value": value}
                )
            )
        )

    async def reached(self, offset: int) -> None:
        """Wait until the view has folded this offset."""
        async with asyncio.timeout(30):
            # A view tells no time at which it has an offset.
            while self.view.view.offset < offset:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    async def cut_off(self) -> None:
        """Have the view miss a change of the policy, and the truncation of it."""
        failures = self.log.failures
        self.log.read_error = LogUnavailable(
            log=self.log.name, problem="it is away", in_doubt=False
        )
        self.log.wake()
        async with asyncio.timeout(30):
            while self.log.failures == failures:  # noqa: ASYNC110 - the thread notifies nobody
                await asyncio.sleep(0.001)
        self.set_policy(7)
        compact(self.writer)
        self.log.read_error = None


async def test_a_view_is_ready_once_it_has_read_what_was_there() -> None:
    """Then it holds the view of the whole log, without its listeners hearing of a resync."""
    followed = Followed()
    heard: list[int] = []
    followed.view.listen(
        lambda folded: heard.append(folded.offset),
        resynced=lambda _: pytest.fail("nothing was skipped"),
    )
    async with followed.view as view:
        await view.ready(soon())
        await view.ready(soon())
        assert to_bytes(followed.channel.view) == to_bytes(view.view)
    assert list(range(1, followed.channel.view.offset + 1)) == heard


async def test_a_view_begins_with_the_snapshot() -> None:
    """With a snapshot, nothing below its horizon is read, even if it is all there. Listeners get no
    resync.
    """
    followed = Followed()
    compact(followed.writer, below=1)
    events: list[Resync | int] = []
    followed.view.listen(lambda folded: events.append(folded.offset), resynced=events.append)
    followed.set_policy(7)
    async with followed.view as view:
        await view.ready(soon())
        assert followed.channel.view.digest() == view.view.digest()
    assert [followed.channel.view.offset] == events


async def test_listeners_hear_every_record_and_may_stop_listening() -> None:
    """A listener gets each record that is folded from then on, rejected ones too, with the view
    just after it, until it ends.
    """
    followed = Followed()
    async with followed.view as view:
        await view.ready(soon())
        first = view.view.offset + 1
        heard: list[tuple[int, bool]] = []
        views: list[bool] = []
        end = view.listen(lambda folded: heard.append((folded.offset, folded.verdict.accepted)))
        view.listen(lambda folded: views.append(view.view.offset == folded.offset))
        followed.set_policy(1)
        followed.write(b"garbage")
        await followed.reached(first + 1)
        end()
        end()
        followed.set_policy(2)
        await followed.reached(first + 2)
    assert [(first, True), (first + 1, False)] == heard
    assert [True] * 3 == views


async def test_a_listener_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """What a listener raises is logged; the view, and the other listeners, get the record."""
    followed = Followed()
    async with followed.view as view:
        await view.ready(soon())
        offset = view.view.offset + 1
        heard: list[int] = []

        def fail(folded: Folded) -> None:
            raise KeyError(folded.offset)

        view.listen(fail)
        view.listen(lambda folded: heard.append(folded.offset))
        followed.set_policy(1)
        await followed.reached(offset)
        assert ([offset], None) == (heard, view.failure)
    assert [("listener failed", offset)] == [
        (record.message, record.__dict__["offset"]) for record in caplog.records
    ]


async def test_listeners_get_a_resync_instead_of_its_records() -> None:
    """A listener gets the resync when the view has changed, then records again, and the view is
    that of a reader of everything.
    """
    followed = Followed()
    events: list[Resync | int] = []
    async with followed.view as view:
        await view.ready(soon())

        def resynced(resync: Resync) -> None:
            assert view.view.offset == resync.offset
            events.append(resync)

        view.listen(lambda folded: events.append(folded.offset), resynced=resynced)
        view.listen(lambda _folded: None)
        before = view.view.offset
        await followed.cut_off()
        await followed.reached(before + 1)
        followed.set_policy(8)
        await followed.reached(followed.channel.view.offset)
        assert (followed.channel.view.digest(), None) == (view.view.digest(), view.failure)
    resync, offset = events
    assert isinstance(resync, Resync)
    assert (before, before + 1, before + 2) == (resync.before, resync.offset, offset)
    assert ["limit"] == [
        change.name for change in resync.changes if isinstance(change, PolicyChanged)
    ]


async def test_a_wait_for_a_log_that_cannot_be_opened_has_a_deadline() -> None:
    """The error says what did not happen."""

    def refuse() -> Log:
        raise LogUnavailable(log="x", problem="away", in_doubt=False)

    async with TableView(refuse, name="x") as view:
        with pytest.raises(DeadlineExceeded, match="reading x to its end"):
            await view.ready(Deadline.after(timeout_ms=1))


async def test_what_ends_the_subscription_ends_the_wait() -> None:
    """Damage is told to everybody who waits, and to everybody who comes later."""
    followed = Followed()
    followed.log.read_error = damaged = LogDamaged(log="x", problem="rust")
    async with followed.view as view:
        for _ in range(2):
            with pytest.raises(LogDamaged):
                await view.ready(soon())
        assert damaged is view.failure
