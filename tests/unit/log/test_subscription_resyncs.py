"""Subscriptions that truncation or a copy cuts off: they resync from the snapshot and read on, or
end with a reason.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.errors import ChannelIncomplete, LogTruncated
from equipoise.channel.core.log import Check, Entry, Log
from equipoise.channel.core.propose import Author
from equipoise.channel.core.reader import Reader
from equipoise.channel.log import subscription
from equipoise.channel.log.append_queue import Appended
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.snapshots.snapshot_rows import encode_marker, marker_of, rows_of
from tests.channels.compacted import compact
from tests.channels.folding import CLUSTER, channel_with
from tests.channels.subscriber import UNAVAILABLE, Subscriber, log_of, run
from tests.channels.troubled_log import DEADLINE_SECONDS, TroubledLog


def channel_log(*, is_compacted: bool = False) -> TroubledLog:
    """A log with a channel of four bundles."""
    log = log_of(*(data for _, data in channel_with("a", bundles=4).entries))
    if is_compacted:
        compact(log)
    return log


async def caught_up(subscriber: Subscriber) -> None:
    """Wait until the subscriber has caught up."""
    await subscriber.until(lambda: subscriber.has_caught_up)


async def ended(subscriber: Subscriber) -> None:
    """Wait until the subscription has failed."""
    await subscriber.until(lambda: subscriber.failure is not None)


def test_a_truncated_position_is_restored_from_the_snapshot() -> None:
    """The subscriber gets a reader with the view of the snapshot, and then each entry above it,
    once.
    """
    log = channel_log()
    end = log.end()
    view = compact(log)
    log.append([b"tail"], timeout_ms=0)
    subscriber = run(caught_up, Subscriber(log))
    assert [("resynced", end + 1), b"tail", ("caught up", end + 1)] == subscriber.events
    (reader,) = subscriber.readers
    assert (view.offset, view.digest()) == (reader.view.offset, reader.view.digest())


def test_a_subscription_that_is_cut_off_resyncs_reads_on_and_appends() -> None:
    """It misses only the entries that the snapshot covers."""
    log = channel_log()
    end = log.end()

    async def scenario(subscriber: Subscriber) -> None:
        await caught_up(subscriber)
        await subscriber.go_away()
        subscriber.write(b"unread")
        compact(subscriber.writer)
        subscriber.log.read_error = None
        await subscriber.until(lambda: bool(subscriber.readers))
        subscriber.subscription.append(b"mine", subscriber.note)
        await subscriber.until_event(b"mine")

    subscriber = run(scenario, Subscriber(log))
    assert [
        ("caught up", end),
        ("resynced", end + 2),
        Appended(offset=end + 2),
        b"mine",
    ] == subscriber.events[end:]


def test_a_snapshot_of_another_cluster_ends_the_subscription() -> None:
    """As a log of another cluster would."""
    subscriber = run(ended, Subscriber(channel_log(is_compacted=True), cluster="another"))
    assert "belongs to cluster" in str(subscriber.failure)


def test_restores_that_are_truncated_again_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the log is truncated during each restore, the subscription ends."""
    attempts: list[None] = []

    def cut_off_again(log: Log, *, cluster: str | None, check: Check) -> Reader:
        attempts.append(None)
        raise LogTruncated(log=log.name, position=1, start=log.start())

    monkeypatch.setattr(subscription, "restored", cut_off_again)
    assert isinstance(run(ended, Subscriber(channel_log(is_compacted=True))).failure, LogTruncated)
    assert subscription.RESYNCS_MAX == len(attempts)


def test_resyncs_without_an_entry_between_them_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the position is gone after each restore, the subscription ends."""
    monkeypatch.setattr(
        subscription, "restored", lambda log, **_options: Reader(log=log.name, cluster=CLUSTER)
    )
    subscriber = run(ended, Subscriber(channel_log(is_compacted=True)))
    assert isinstance(subscriber.failure, LogTruncated)
    assert subscription.RESYNCS_MAX == len(subscriber.readers)


def test_an_outage_during_a_restore_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The resync follows when the log is back."""
    attempts: list[None] = []

    def away_at_first(log: Log, *, cluster: str | None, check: Check) -> Reader:
        attempts.append(None)
        if len(attempts) == 1:
            raise UNAVAILABLE
        return restored(log, cluster=cluster, check=check)

    monkeypatch.setattr(subscription, "restored", away_at_first)
    log = channel_log(is_compacted=True)
    start = log.start()
    subscriber = run(caught_up, Subscriber(log))
    assert [("resynced", start)] == subscriber.resyncs
    assert subscriber.failure is None


def test_a_stop_ends_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no resync afterwards."""
    restoring = threading.Event()

    def for_ever(log: Log, *, cluster: str | None, check: Check) -> Reader:
        restoring.set()
        while True:
            check()

    monkeypatch.setattr(subscription, "restored", for_ever)

    async def scenario(_subscriber: Subscriber) -> None:
        assert await asyncio.to_thread(restoring.wait, DEADLINE_SECONDS)

    subscriber = run(scenario, Subscriber(channel_log(is_compacted=True)))
    assert [] == subscriber.resyncs
    assert subscriber.failure is None


def test_a_subscription_that_is_cut_off_without_a_snapshot_ends() -> None:
    """The error names the lost entries."""
    log = channel_log()
    end = log.end()

    async def scenario(subscriber: Subscriber) -> None:
        await caught_up(subscriber)
        await subscriber.go_away()
        subscriber.write(b"unread")
        subscriber.writer.truncate(end + 2, timeout_ms=0)
        subscriber.log.read_error = None
        await ended(subscriber)

    failure = run(scenario, Subscriber(log)).failure
    assert isinstance(failure, ChannelIncomplete)
    assert end + 1 == failure.last


def a_copy(log: Log, *parts: str) -> None:
    """Write the genesis and the snapshot of a copy to an empty log, in the order of `parts`."""
    view = channel_with("a", bundles=4).view
    view.go_on_above(1_000, level=view.level, level_last=view.level_last)
    for part in parts:
        if part == "genesis":
            author = Author(publisher="admin:copy")
            log.append(
                [encode(propose.genesis(author, cluster=CLUSTER, base=1_000, level=view.level))],
                timeout_ms=0,
            )
        else:
            compacted_snapshot = log.compacted_snapshot()
            compacted_snapshot.claim(timeout_ms=0)
            compacted_snapshot.replace(
                rows_of(view, -1),
                encode_marker(marker_of(view, log=log.identity, copied=True)),
                timeout_ms=0,
            )


class Folding(Subscriber):
    """A subscriber that folds its entries."""

    reader: Reader | None = None

    def deliver(self, entries: Sequence[Entry]) -> None:
        self.reader = self.reader or Reader(log=self.log.name)
        for entry in entries:
            self.reader.feed(entry)
            self.note(entry.data)

    def resync(self, reader: Reader) -> None:
        self.reader = reader
        super().resync(reader)


@pytest.mark.parametrize("parts", [("snapshot", "genesis"), ("genesis", "snapshot")])
def test_a_subscriber_of_an_empty_log_resyncs_into_a_copy(parts: tuple[str, str]) -> None:
    """It resyncs to the view before the genesis of the copy, waits for a late snapshot, and reads
    nothing twice.
    """

    async def scenario(subscriber: Folding) -> None:
        await caught_up(subscriber)
        for part in parts:
            a_copy(subscriber.writer, part)
            if part == parts[0] == "genesis":
                await subscriber.until_in_thread(lambda: subscriber.subscription.outage is not None)
        subscriber.write(b"garbage")
        await subscriber.until_event(b"garbage")

    subscriber = run(scenario, Folding())
    assert subscriber.reader is not None
    assert (1_002, 1_001, 4) == (
        subscriber.reader.view.offset,
        subscriber.reader.view.genesis,
        len(subscriber.reader.view.bundles),
    )
    assert [("resynced", 1)] == subscriber.resyncs
    assert 4 == len(subscriber.events)  # Caught up, resynced, the genesis, the garbage.
    assert subscriber.subscription.outage is None


def test_the_wait_for_the_snapshot_of_a_copy_is_bounded() -> None:
    """After `COPY_MS_MAX` the copy has failed, and the subscription ends."""
    now_ns = 0

    async def scenario(subscriber: Folding) -> None:
        nonlocal now_ns
        await caught_up(subscriber)
        a_copy(subscriber.writer, "genesis")
        await subscriber.until_in_thread(lambda: subscriber.subscription.outage is not None)
        now_ns += subscription.COPY_MS_MAX * 1_000_000
        await ended(subscriber)

    assert isinstance(run(scenario, Folding(now_ns=lambda: now_ns)).failure, ChannelIncomplete)
