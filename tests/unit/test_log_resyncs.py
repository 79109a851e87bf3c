"""Seats that truncation cuts off: they are restored through the snapshot, told of it, and read on; or told why they cannot be.

May live here: what `channel.log.thread` does about positions that the log no longer has.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.errors import ChannelIncomplete, EquipoiseError, ForeignLog, LogTruncated
from equipoise.channel.core.log import Entry, Log
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.snapshot_store import Check
from equipoise.channel.log import thread as log_thread
from equipoise.channel.log.append_queue import Appended
from equipoise.channel.log.seat import LogSeat
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.snapshots.snapshot_rows import encode_marker, marker_of, rows_of
from tests.compacted import compact
from tests.folding import CLUSTER, Channel, channel_with
from tests.log_host import LOG_NAMES, UNAVAILABLE, Host, run, standing_ns
from tests.log_hosts import Watched, beside, has_caught_up, records, until_all
from tests.troubled_log import DEADLINE_SECONDS


def log_of(channel: Channel) -> Watched:
    """A log with what a channel says."""
    log = Watched(name=next(LOG_NAMES))
    log.append([data for _, data in channel.entries], timeout_ms=0)
    return log


def resyncs(host: Host) -> list[object]:
    """Where a host resynced to."""
    return [told for told in host.told if isinstance(told, tuple) and told[0] == "jumped"]


async def cut_off(host: Host) -> None:
    """Have the log's thread miss a record, and the truncation of it."""
    host.log.read_error = UNAVAILABLE
    await host.until_in_thread(lambda: host.seat.outage is not None)
    host.writer.append([b"unread"], timeout_ms=0)
    compact(host.writer)
    host.log.read_error = None


def test_a_position_that_is_gone_is_restored_through_the_snapshot() -> None:
    """The host gets a reader with the view of the snapshot, and then each entry above its horizon, once."""
    channel = channel_with("a", bundles=4)
    log = log_of(channel)
    view = compact(log)
    log.append([b"tail"], timeout_ms=0)

    async def scenario(host: Host) -> None:
        await host.until(lambda: has_caught_up(host))

    host = run(scenario, log=log)
    end = len(channel.entries)
    assert [("jumped", end + 1), b"tail", ("caught up", end + 1)] == host.told
    (reader,) = host.readers
    assert (view.offset, view.digest()) == (reader.view.offset, reader.view.digest())


def test_all_who_are_cut_off_while_they_follow_resync_and_read_on() -> None:
    """Seats of one thread that are cut off at once are restored each with a view of its own, and miss nothing after it."""
    channel = channel_with("a", bundles=4)
    hosts: list[Host] = []

    async def scenario(one: Host) -> None:
        hosts.extend((one, beside(one), beside(one)))
        await until_all(hosts, has_caught_up)
        await cut_off(one)
        one.write(b"tail")
        await until_all(hosts, lambda host: b"tail" in host.told)
        for host in hosts[1:]:
            await host.stop()

    run(scenario, log=log_of(channel))
    assert [[("jumped", len(channel.entries) + 2)]] * 3 == [resyncs(host) for host in hosts]
    assert [[*(data for _, data in channel.entries), b"tail"]] * 3 == [records(host) for host in hosts]
    assert 3 == len({id(host.readers[0].view) for host in hosts})


def test_an_append_goes_on_after_a_resync() -> None:
    """A seat that has resynced appends, and reads what it has appended."""

    async def scenario(host: Host) -> None:
        await host.until(lambda: has_caught_up(host))
        await cut_off(host)
        await host.until(lambda: bool(host.readers))
        host.seat.append(b"mine", host.tell)
        await host.until(lambda: b"mine" in host.told)

    channel = channel_with("a")
    host = run(scenario, log=log_of(channel))
    assert [Appended(offset=len(channel.entries) + 2), b"mine"] == host.told[-2:]


def test_nobody_else_is_cut_off_with_one_who_is() -> None:
    """Who is at the log's end reads on, without a resync, while another is restored."""
    log = log_of(channel_with("a"))
    compact(log)
    log.append([b"tail"], timeout_ms=0)

    async def scenario(one: Host) -> None:
        late = beside(one)
        await until_all((one, late), has_caught_up)
        assert [[], [("jumped", one.position)]] == [resyncs(one), resyncs(late)]
        assert [[b"tail"]] * 2 == [records(one), records(late)]
        await late.stop()

    run(scenario, log=log, position=log.start())


def test_a_log_of_another_cluster_is_not_resynced_into() -> None:
    """The snapshot of another cluster ends the seat, as its log would have."""
    log = log_of(channel_with("a"))
    compact(log)

    async def scenario(host: Host) -> None:
        seat = LogSeat(
            name=log.name,
            position=1,
            deliver=lambda _entries: None,
            caught_up=lambda _end: None,
            resynced=lambda _reader: None,
            failed=host.tell,
            cluster="another",
        )
        seat.join(host.thread)
        await host.until(lambda: any(isinstance(told, ForeignLog) for told in host.told))
        assert isinstance(seat.failure, ForeignLog)

    host = run(scenario, log=log, position=log.start())
    assert host.seat.failure is None


def test_a_restoring_that_is_cut_off_itself_is_tried_again_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that is truncated in the midst of each restoring ends the seat in the end, with what it last said."""
    log = log_of(channel_with("a"))
    compact(log)
    told: list[EquipoiseError] = []

    def cut_off_again(log: Log, *, cluster: str | None, check: Check) -> Reader:
        told.append(LogTruncated(log=log.name, position=1, start=log.start()))
        raise told[-1]

    monkeypatch.setattr(log_thread, "restored", cut_off_again)

    async def scenario(host: Host) -> None:
        await host.until(lambda: host.seat.failure is not None)

    host = run(scenario, log=log)
    assert isinstance(host.seat.failure, LogTruncated)
    assert log_thread.RESYNCS_MAX == len(told)


def test_resyncs_without_an_entry_between_them_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader whose position is always gone when it is restored is not restored for ever."""
    log = log_of(channel_with("a"))
    compact(log)
    log.append([b"tail"], timeout_ms=0)
    log.truncate(log.end() + 1, timeout_ms=0)
    monkeypatch.setattr(log_thread, "restored", lambda log, **_options: Reader(log=log.name, cluster=CLUSTER))

    async def scenario(host: Host) -> None:
        await host.until(lambda: host.seat.failure is not None)

    host = run(scenario, log=log)
    assert isinstance(host.seat.failure, LogTruncated)
    assert log_thread.RESYNCS_MAX == len(host.readers)


def test_an_outage_in_the_midst_of_a_restoring_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that goes away while its snapshot is loaded is an outage like any other; the resync comes when it is back."""
    log = log_of(channel_with("a"))
    compact(log)
    attempts: list[None] = []

    def away_at_first(log: Log, *, cluster: str | None, check: Check) -> Reader:
        attempts.append(None)
        if len(attempts) == 1:
            raise UNAVAILABLE
        return restored(log, cluster=cluster, check=check)

    monkeypatch.setattr(log_thread, "restored", away_at_first)

    async def scenario(host: Host) -> None:
        await host.until(lambda: has_caught_up(host))

    start = log.start()
    host = run(scenario, log=log)
    assert [("jumped", start)] == resyncs(host)
    assert host.seat.failure is None


def test_a_restoring_that_nobody_waits_for_any_more_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leaves while it is restored is let go of at the next look, and is told of no resync."""
    log = log_of(channel_with("a"))
    compact(log)
    restoring = threading.Event()

    def for_ever(log: Log, *, cluster: str | None, check: Check) -> Reader:
        restoring.set()
        while True:
            check()

    monkeypatch.setattr(log_thread, "restored", for_ever)

    async def scenario(_host: Host) -> None:
        assert await asyncio.to_thread(restoring.wait, DEADLINE_SECONDS)

    host = run(scenario, log=log)
    assert [] == resyncs(host)
    assert host.seat.failure is None


def test_without_a_snapshot_a_seat_that_is_cut_off_ends() -> None:
    """What nobody can tell any more is not guessed: the seat ends, and says which entries are lost."""
    log = log_of(channel_with("a"))

    async def scenario(host: Host) -> None:
        await host.until(lambda: has_caught_up(host))
        host.log.read_error = UNAVAILABLE
        await host.until_in_thread(lambda: host.seat.outage is not None)
        host.write(b"unread")
        host.writer.truncate(host.writer.end() + 1, timeout_ms=0)
        host.log.read_error = None
        await host.until(lambda: host.seat.failure is not None)

    host = run(scenario, log=log)
    assert isinstance(host.seat.failure, ChannelIncomplete)


def a_copy(log: Log, *parts: str) -> None:
    """Have the genesis of a copy, and its snapshot, come to be on an empty log; the order of `parts` is the order in which they come."""
    view = channel_with("a", bundles=4).view
    view.go_on_above(1_000, level=view.level, level_last=view.level_last)
    for part in parts:
        if part == "genesis":
            author = Author(publisher="admin:copy")
            log.append([encode(propose.genesis(author, cluster=CLUSTER, base=1_000, level=view.level))], timeout_ms=0)
        else:
            compacted_snapshot = log.compacted_snapshot()
            compacted_snapshot.claim(timeout_ms=0)
            compacted_snapshot.replace(rows_of(view, -1), encode_marker(marker_of(view, log=log.identity, copied=True)), timeout_ms=0)


class Folding(Host):
    """A host that folds what it is delivered."""

    reader: Reader | None = None

    def deliver(self, entries: Sequence[Entry]) -> None:
        self.reader = self.reader or Reader(log=self.log.name)
        for entry in entries:
            self.reader.feed(entry)
            self.told.append(entry.data)
        self.something.set()

    def resync(self, reader: Reader) -> None:
        self.reader = reader
        super().resync(reader)


def run_folding(scenario: Callable[[Folding], Coroutine[None, None, None]], *, now_ns: Callable[[], int] = standing_ns) -> Folding:
    """Run a scenario with a host that folds, and has caught up with an empty log."""
    hosts: list[Folding] = []

    async def with_host() -> None:
        host = Folding(log=Watched(name=next(LOG_NAMES)), now_ns=now_ns)
        hosts.append(host)
        host.start()
        try:
            await host.until(lambda: has_caught_up(host))
            await scenario(host)
        finally:
            await host.stop()

    asyncio.run(with_host())
    return hosts[0]


@pytest.mark.parametrize("parts", [("twin", "genesis"), ("genesis", "twin")])
def test_who_follows_an_empty_log_resyncs_into_its_copy(parts: tuple[str, str]) -> None:
    """A reader resyncs to the view before the genesis of the copy, waits for a late snapshot, and reads nothing twice."""

    async def scenario(host: Folding) -> None:
        for part in parts:
            a_copy(host.writer, part)
            if part == parts[0] == "genesis":
                await host.until_in_thread(lambda: host.seat.outage is not None)
        host.write(b"garbage")
        await host.until(lambda: b"garbage" in host.told)

    host = run_folding(scenario)
    assert host.reader is not None
    assert (1_002, 1_001, 4) == (host.reader.view.offset, host.reader.view.genesis, len(host.reader.view.bundles))
    assert [("jumped", 1)] == resyncs(host)
    assert 4 == len(host.told)  # Caught up, resynced, the genesis, the garbage.
    assert host.seat.outage is None


def test_a_copy_that_gets_no_snapshot_is_not_waited_for_longer_than_it_takes() -> None:
    """A seat that waits for the snapshot of a copy that died ends as all do who find such a log."""
    now_ns = 0

    async def scenario(host: Folding) -> None:
        nonlocal now_ns
        a_copy(host.writer, "genesis")
        await host.until_in_thread(lambda: host.seat.outage is not None)
        now_ns += log_thread.COPY_MS_MAX * 1_000_000
        await host.until(lambda: host.seat.failure is not None)

    host = run_folding(scenario, now_ns=lambda: now_ns)
    assert isinstance(host.seat.failure, ChannelIncomplete)
