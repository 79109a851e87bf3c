"""A table view that resyncs after a truncation: its waits, its listeners, and proposals in the gap."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.difference import Resync
from equipoise.channel.core.entries import PolicyChanged
from equipoise.channel.core.errors import LogUnavailable, OutcomeUnknown
from equipoise.channel.core.reader import Folded
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.log.table_view import TableView
from equipoise.channel.system.deadline import Deadline
from tests.channels.compacted import compact
from tests.channels.folding import CLUSTER, channel_with
from tests.channels.troubled_log import TroubledLog

numbers = itertools.count()
OPS = "admin:ops"


def soon() -> Deadline:
    """A deadline that only a test which fails meets."""
    return Deadline.after(timeout_ms=30_000)


class Followed:
    """A log with a view that follows it, and the channel of the same records."""

    def __init__(self) -> None:
        self.channel = channel_with("a", bundles=2)
        self.log = TroubledLog(name=f"memory:table-view-jumps-{next(numbers)}")
        self.writer = MemoryLog(name=self.log.name)
        self.writer.append([data for _, data in self.channel.entries], timeout_ms=0)
        self.view = TableView(lambda: self.log, name=self.log.name, cluster=CLUSTER)

    def write(self, data: bytes) -> None:
        """A record of somebody else's."""
        self.channel.put_bytes(data)
        self.writer.append([data], timeout_ms=0)

    def set_policy(self, value: int) -> None:
        """Somebody else sets a policy."""
        self.write(encode(propose.set_policy(self.channel.admin(), self.channel.view, name="limit", document={"value": value})))

    async def cut_off(self) -> None:
        """Have the view miss a change of the policy, and the truncation of it."""
        self.log.read_error = LogUnavailable(log=self.log.name, problem="it is away", in_doubt=False)
        async with asyncio.timeout(30):
            while self.view.outage is None:  # noqa: ASYNC110 - the thread notifies nobody
                await asyncio.sleep(0.001)
        self.set_policy(7)
        compact(self.writer)
        self.log.read_error = None


async def test_the_view_after_a_resync_equals_that_of_a_reader_of_everything() -> None:
    """Waits for an offset in the gap end, records after the resync are folded, and the digests agree."""
    followed = Followed()
    async with followed.view as view:
        await view.ready(soon())
        waiting = asyncio.ensure_future(view.reached(followed.channel.view.offset + 1, soon()))
        await followed.cut_off()
        await waiting
        assert {"value": 7} == view.view.policies["limit"].document
        followed.set_policy(8)
        await view.reached(followed.channel.view.offset, soon())
        assert followed.channel.view.digest() == view.view.digest()
        assert view.failure is None


async def test_listeners_get_a_resync_instead_of_its_records() -> None:
    """A listener gets the resync when the view has changed, and then records again."""
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
        followed.set_policy(8)
        await view.reached(followed.channel.view.offset, soon())
    resync, offset = events
    assert isinstance(resync, Resync)
    assert (before, before + 1, before + 2) == (resync.before, resync.offset, offset)
    assert ["limit"] == [change.name for change in resync.changes if isinstance(change, PolicyChanged)]


@pytest.mark.parametrize("is_in_doubt", [False, True], ids=["appended", "in doubt"])
async def test_a_proposal_whose_record_lies_in_the_gap_ends_unknown(is_in_doubt: bool) -> None:
    """Nobody can read its verdict any more. The proposer does not wait for its deadline."""
    followed = Followed()
    log = followed.log
    async with followed.view as view:
        await view.ready(soon())
        away = LogUnavailable(log=log.name, problem="it is away", in_doubt=is_in_doubt)
        log.read_error = away
        if is_in_doubt:
            log.append_error = away
        record = propose.set_policy(view.author(OPS), view.view, name="mine", document={})
        proposing = asyncio.ensure_future(view.append(record, soon()))
        async with asyncio.timeout(30):
            while not log.batches:  # noqa: ASYNC110 - the thread notifies nobody
                await asyncio.sleep(0.001)
        followed.channel.put(record)
        await followed.cut_off()
        with pytest.raises(OutcomeUnknown, match="mine"):
            await proposing
        assert "mine" in view.view.policies


def test_a_proposal_after_the_resync_gets_its_verdict() -> None:
    """A view that has resynced proposes against its new state, and reads the verdict."""

    async def story() -> Folded:
        followed = Followed()
        async with followed.view as view:
            await view.ready(soon())
            await followed.cut_off()
            await view.reached(followed.channel.view.offset, soon())
            record = propose.set_policy(view.author(OPS), view.view, name="limit", document={"value": 9})
            return await view.append(record, soon())

    assert asyncio.run(story()).verdict.accepted


async def test_a_view_begins_with_the_snapshot() -> None:
    """With a snapshot, nothing below its horizon is read, even if it is all there. Listeners get no resync."""
    followed = Followed()
    compact(followed.writer, below=1)
    events: list[Resync | int] = []
    followed.view.listen(lambda folded: events.append(folded.offset), resynced=events.append)
    followed.set_policy(7)
    async with followed.view as view:
        await view.ready(soon())
        assert followed.channel.view.digest() == view.view.digest()
    assert [followed.channel.view.offset] == events
