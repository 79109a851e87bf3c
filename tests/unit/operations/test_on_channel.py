"""Operations directly on the channel: lost races, outages, truncations and death declarations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from equipoise.brokers.agent.requests import RACES_MAX, Intent, SplitBundle
from equipoise.brokers.balancing.splitting.split_points import RANGE_EQUALLY_DIVIDE
from equipoise.brokers.errors import Rejected
from equipoise.brokers.operations.access import Access, follow, until
from equipoise.brokers.operations.moves import UNLOADS_AT_ONCE, cancel, move, unload_all
from equipoise.brokers.operations.on_channel import ChannelPort, declare_dead, run, submit
from equipoise.brokers.operations.verbs import delete_namespace
from equipoise.brokers.runtime.data_directory import DataDirectory
from equipoise.channel.core import propose
from equipoise.channel.core.codec import encode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import DeadlineExceeded, LogUnavailable, OutcomeUnknown
from equipoise.channel.core.log import Entry
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import even_boundaries
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import AnyRecord, Genesis, PolicyRecord, Reason
from equipoise.channel.core.table import Resync
from equipoise.channel.core.view import View
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.system.clocks import Deadline
from tests.channels.compacted import compact
from tests.channels.compacting import reader_at_end
from tests.channels.folding import MIDDLE, NAMESPACE, Channel, channel_in, channel_with, joined
from tests.channels.operating import FoldingPort

numbers = itertools.count()

Meddle = Callable[[], None]


class Crowded(MemoryLog):
    """A log on which another writer acts just before our appends or our reads."""

    before_append: Sequence[Meddle] = ()
    before_read: Sequence[Meddle] = ()

    def append(self, batch: Sequence[bytes], *, timeout_ms: int) -> Sequence[int]:
        if self.before_append:
            meddle, *self.before_append = self.before_append
            meddle()
        return super().append(batch, timeout_ms=timeout_ms)

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        if self.before_read:
            meddle, *self.before_read = self.before_read
            meddle()
        return super().read(position, limit=limit)


def access_to(channel: Channel, *, timeout_ms: int = 5_000) -> tuple[Access, Crowded]:
    """A log that holds the channel, and the access of an admin who has read all of it."""
    log = Crowded(name=f"memory:crowded-{next(numbers)}")
    log.append([data for _, data in channel.entries], timeout_ms=0)
    deadline = Deadline.after(timeout_ms=timeout_ms)
    return Access(
        log=log, reader=reader_at_end(log), publisher="admin:erin", deadline=deadline
    ), log


def begun() -> Channel:
    """A channel without brokers."""
    channel = Channel()
    channel.genesis()
    return channel


def set_policy(view: View, author: propose.Author) -> PolicyRecord:
    """The record that all writers propose here: the policy `p` names its author."""
    return propose.set_policy(author, view, name="p", document={"of": author.publisher})


def others(channel: Channel, log: MemoryLog, *acts: Callable[[], AnyRecord]) -> Meddle:
    """Return what others do: they read the log, and append records that are accepted."""

    def meddle() -> None:
        for entry in MemoryLog.read(log, channel.view.offset + 1, limit=1_000):
            channel.put_bytes(entry.data)
        for act in acts:
            channel.accept(act())
            MemoryLog.append(log, [channel.entries[-1][1]], timeout_ms=0)

    return meddle


def rival(channel: Channel, log: MemoryLog) -> Meddle:
    """Return another writer, which sets the policy just before us."""
    return others(channel, log, lambda: set_policy(channel.view, channel.admin()))


def test_a_lost_race_is_retried() -> None:
    channel = begun()
    access, log = access_to(channel)
    # Our own records take offsets too: the rival writes at 2, we are stale at 3, and accepted at 4.
    log.before_append = [rival(channel, log)]
    accepted = submit(access, set_policy)
    assert (4, {"of": "admin:erin"}) == (accepted.offset, dict(access.view.policies["p"].document))


def test_retries_are_bounded() -> None:
    channel = begun()
    access, log = access_to(channel)

    log.before_append = [rival(channel, log)] * (RACES_MAX + 1)
    with pytest.raises(Rejected, match="another change was faster") as caught:
        submit(access, set_policy)
    assert (Reason.STALE, 2 * RACES_MAX + 1) == (caught.value.reason, caught.value.offset)
    assert 1 == len(log.before_append)


def test_any_other_rejection_is_final() -> None:
    channel = begun()
    access, log = access_to(channel)
    with pytest.raises(Rejected) as caught:
        submit(
            access,
            lambda view, author: propose.create_namespace(
                author, view, name="no namespace", boundaries=(0, 1)
            ),
        )
    assert (Reason.MALFORMED, 2, 2) == (caught.value.reason, caught.value.offset, log.end())
    assert "'no namespace' is not a namespace" in (caught.value.problem or "")


def test_a_deletion_skips_bundles_that_others_have_unloaded() -> None:
    channel = begun()
    channel.join("a")
    channel.create()
    channel.own("a")
    access, log = access_to(channel)

    unloaded = others(
        channel,
        log,
        lambda: propose.unload(channel.admin(), channel.bundle()),
        lambda: propose.released(channel.author("a"), channel.bundle()),
    )
    log.before_append = [lambda: None, unloaded]
    told: list[str] = []
    # Deleting stands at 6, the others' records at 7 and 8, our late unload at 9.
    answer = run(delete_namespace(ChannelPort(access), NAMESPACE, progress=told.append))
    assert 10 == answer.document["offset"]
    assert ({}, 1) == (access.view.namespaces, len(told))


class Owner(MemoryLog):
    """A log on which broker a releases all bundles that it must release, once the admin has read
    everything and waits.
    """

    channel: Channel
    releasing_max = 0

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        if position > self.end():
            others(self.channel, self)()
            bundles = self.channel.view.bundles_of(NAMESPACE)
            releasing = [bundle for bundle in bundles if bundle.phase == "unloading"]
            self.releasing_max = max(self.releasing_max, len(releasing))
            others(self.channel, self, *(partial(self._released, each) for each in releasing))()
        return super().wait(position, timeout_ms=timeout_ms)

    def _released(self, bundle: BundleEntry) -> AnyRecord:
        return propose.released(self.channel.author("a"), bundle)


def owned_by_a(log: MemoryLog, *, bundles: int) -> tuple[Access, Channel]:
    """A channel on which a owns so many bundles, written to `log`, and an admin's access to it."""
    channel = begun()
    channel.join("a")
    channel.create(even_boundaries(bundles))
    for bundle in channel.view.bundles_of(NAMESPACE):
        channel.own("a", bundle.low)
    log.append([data for _, data in channel.entries], timeout_ms=0)
    deadline = Deadline.after(timeout_ms=10_000)
    return Access(
        log=log, reader=reader_at_end(log), publisher="admin:erin", deadline=deadline
    ), channel


@pytest.mark.parametrize("is_deletion", [False, True])
def test_the_bundles_of_a_namespace_are_released_in_batches(*, is_deletion: bool) -> None:
    log = Owner(name=f"memory:owner-{next(numbers)}")
    access, log.channel = owned_by_a(log, bundles=UNLOADS_AT_ONCE + 6)
    if is_deletion:
        run(delete_namespace(ChannelPort(access), NAMESPACE))
        assert {} == access.view.namespaces
    else:
        assert UNLOADS_AT_ONCE + 6 == len(run(unload_all(ChannelPort(access), NAMESPACE)).outcomes)
        assert {"free"} == {bundle.phase for bundle in access.view.bundles_of(NAMESPACE)}
    assert log.releasing_max == UNLOADS_AT_ONCE


def test_an_unload_of_all_skips_bundles_that_others_move() -> None:
    log = Crowded(name=f"memory:crowded-{next(numbers)}")
    access, channel = owned_by_a(log, bundles=3)
    first, second, third = access.view.bundles_of(NAMESPACE)

    unload_second = others(
        channel, log, lambda: propose.unload(channel.admin(), channel.view.bundles[second.name])
    )
    log.before_append = [lambda: None, unload_second]
    assert {first.name: 10, third.name: 13} == run(
        unload_all(ChannelPort(access), NAMESPACE, wait=False)
    ).document["offsets"]
    assert {"unloading"} == {bundle.phase for bundle in access.view.bundles_of(NAMESPACE)}


def test_an_outage_is_reported_once() -> None:
    access, log = access_to(begun())
    log.append(
        [encode(Genesis(key="genesis", expected_offset=0, publisher="b", cluster="late"))],
        timeout_ms=0,
    )

    def fail() -> None:
        raise LogUnavailable(log=log.name, problem="it is away")

    log.before_read = [fail, fail]
    outages: list[str] = []
    news = follow(access, outage=lambda error: outages.append(error.problem))
    assert [None, None, 2, None] == [
        folded and folded.offset for folded in (next(news) for _ in range(4))
    ]
    assert ["it is away"] == outages


def test_a_follower_resyncs_after_a_truncation() -> None:
    channel = begun()
    access, log = access_to(channel)

    def compacted() -> None:
        log.before_read = ()
        channel.accept(propose.set_policy(channel.admin(), channel.view, name="p", document={}))
        MemoryLog.append(log, [channel.entries[-1][1]], timeout_ms=0)
        compact(log)
        channel.accept(
            propose.set_policy(channel.admin(), channel.view, name="p", document={"value": 1})
        )
        MemoryLog.append(log, [channel.entries[-1][1]], timeout_ms=0)

    # Something to wake for, which is a second genesis.
    log.append([channel.entries[0][1]], timeout_ms=0)
    channel.put_bytes(channel.entries[0][1])
    log.before_read = [compacted]
    resyncs: list[Resync] = []
    news = follow(access, resynced=resyncs.append)
    assert [None, 4] == [folded and folded.offset for folded in (next(news), next(news))]
    assert [(1, 3, ["p"])] == [
        (resync.before, resync.offset, [getattr(change, "name", None) for change in resync.changes])
        for resync in resyncs
    ]
    assert channel.view.digest() == access.view.digest()


def test_the_outcome_of_a_truncated_record_is_unknown() -> None:
    access, log = access_to(begun())

    def compacted() -> None:
        log.before_read = ()
        compact(log)

    def make(view: View, author: Author) -> PolicyRecord:
        log.before_read = [compacted]  # From here on, the next read is that of the verdict.
        return propose.set_policy(author, view, name="p", document={})

    with pytest.raises(OutcomeUnknown, match="the record of p"):
        submit(access, make)


def test_until_ends_at_the_deadline() -> None:
    access, _ = access_to(begun(), timeout_ms=1)
    with pytest.raises(DeadlineExceeded, match="a miracle did not happen within 1 ms"):
        until(access, lambda _: None, what="a miracle")


def test_a_condition_sees_every_state() -> None:
    channel = begun()
    access, log = access_to(channel)
    for name in ("a", "b"):
        channel.accept(
            propose.set_policy(channel.admin(), channel.view, name="p", document={"of": name})
        )
        log.append([channel.entries[-1][1]], timeout_ms=0)

    def is_of_a(view: View) -> int | None:
        return (
            view.offset
            if "p" in view.policies and view.policies["p"].document["of"] == "a"
            else None
        )

    assert 2 == until(access, is_of_a, what="a's moment")


def dead_broker(folder: Path) -> Channel:
    """A channel on which broker a is alive with the instance id `a-1`. Its directory in `folder` is
    not locked.
    """
    channel = begun()
    channel.accept(joined("a", channel.view, instance_id="a-1"))
    with DataDirectory(folder) as directory:
        directory.write_instance_id("a-1")
    return channel


def test_a_death_declaration_reads_the_last_records_of_the_process_first(tmp_path: Path) -> None:
    channel = dead_broker(tmp_path)
    access, log = access_to(begun())
    log.append([channel.entries[1][1]], timeout_ms=0)
    (death_declaration,) = declare_dead(access, tmp_path)
    assert ("a", 2, 3, 0) == (
        death_declaration.broker,
        death_declaration.incarnation,
        death_declaration.offset,
        death_declaration.bundles,
    )


def test_a_broker_that_somebody_else_declared_dead_is_skipped(tmp_path: Path) -> None:
    channel = dead_broker(tmp_path)
    access, log = access_to(channel)

    entry = channel.broker("a")
    log.before_append = [
        others(channel, log, lambda: propose.down(channel.admin(), entry, instance_id="a-1"))
    ]
    assert () == declare_dead(access, tmp_path)
    assert ("down", 3) == (access.view.brokers["a"].status, channel.view.offset)


def test_a_new_incarnation_is_not_declared_dead(tmp_path: Path) -> None:
    channel = dead_broker(tmp_path)
    channel.accept(joined("a", channel.view, instance_id="a-2", replaces="a-1"))
    access, log = access_to(channel)
    assert () == declare_dead(access, tmp_path)
    assert (True, 3) == (access.view.brokers["a"].live, log.end())
    assert b"a-2" in encode(access.view.brokers["a"].joined)


class TakenFirst(FoldingPort):
    """A channel on which the bundle gets its owner just before the proposal."""

    async def propose(self, intent: Intent) -> Folded:
        self.channel.own("a")
        return await super().propose(intent)


def test_a_split_follows_a_bundle_that_got_its_owner_last() -> None:
    channel = channel_with("a")
    port = TakenFirst(
        channel,
        lambda: port.fold(propose.split(channel.author("a"), channel.bundle(), cuts=(MIDDLE,))),
    )
    intent = SplitBundle(bundle=channel.bundle().name, algorithm=RANGE_EQUALLY_DIVIDE, reason="big")
    assert 2 == len(run(move(port, intent, "the split"))[1])


def test_a_cancel_names_a_dead_owner_by_its_incarnation() -> None:
    channel = channel_in("transferring")
    source = channel.incarnation("source")

    class Survived(FoldingPort):
        """The source dies just after the proposal."""

        async def propose(self, intent: Intent) -> Folded:
            accepted = await super().propose(intent)
            channel.die("source")
            return accepted

    answer = run(cancel(Survived(channel), channel.bundle().name))
    assert f"#{source}" == answer.document["owner"]
