"""Test that a copied channel has the same view above a new base, and that the old log is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, repeat

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode, encode
from equipoise.channel.core.entries import BundleEntry
from equipoise.channel.core.errors import (
    BegunAbove,
    CallerError,
    ChannelIncomplete,
    DeadlineExceeded,
    LogClosed,
    LogNotBegun,
    LogUnavailable,
    OperatorError,
)
from equipoise.channel.core.log import Log, SnapshotRow
from equipoise.channel.core.propose import Author
from equipoise.channel.core.ranges import HASH_MAX
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import LEVEL_CLOSED, AnyRecord, Genesis, LevelRecord
from equipoise.channel.core.view import View
from equipoise.channel.log.memory_log import MemoryLog
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.snapshots.snapshot_rows import encode_marker, marker_of, rows_of
from equipoise.channel.system.clocks import Deadline
from equipoise.compaction.copying import Copied, back_up, copy
from equipoise.compaction.retention import Retention
from tests.channels.carried import TIMEOUT_MS, cut_off, entries_of
from tests.channels.compacting import compacted, image_of, restored_to_end
from tests.channels.folding import CLUSTER, NAMESPACE, Channel, channel_with, joined
from tests.channels.gap_log import GapLog

LEASE_MS = 20


class TroubledLog(MemoryLog):
    """A log in memory to which something happens just before the append of a record that `trouble`
    waits for.
    """

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name)
        self.trouble: Callable[[bytes], None] = lambda _: None

    def append(self, batch: Sequence[bytes], *, timeout_ms: int) -> Sequence[int]:
        """See `Log.append`."""
        for data in batch:
            self.trouble(data)
        return super().append(batch, timeout_ms=timeout_ms)


@pytest.fixture
def old() -> Iterator[TroubledLog]:
    """The log that is copied."""
    with closing(TroubledLog(name="memory:old")) as log:
        yield log


@pytest.fixture
def new() -> Iterator[TroubledLog]:
    """The log that it is copied to."""
    with closing(TroubledLog(name="memory:new")) as log:
        yield log


@pytest.fixture
def third() -> Iterator[MemoryLog]:
    """Another log."""
    with closing(MemoryLog(name="memory:third")) as log:
        yield log


@pytest.fixture
def left(old: TroubledLog) -> None:
    """All brokers have left the channel of the old log."""
    write(old, left_channel())


def write(log: Log, channel: Channel) -> None:
    """Append what a channel has beyond what stands on its log."""
    log.append([data for _, data in channel.entries[log.end() :]], timeout_ms=TIMEOUT_MS)


def working_channel() -> Channel:
    """A channel at whose brokers work is under way: a transfer, an unload, a split, a deleted
    policy, a namespace that goes.
    """
    channel = Channel()
    channel.genesis()
    for broker in ("a", "b"):
        channel.accept(
            replace(
                joined(broker, channel.view, instance_id=f"instance_id of {broker}"),
                lease_ms=LEASE_MS,
                grace_ms=LEASE_MS,
            )
        )
    channel.create((0, 100, 200, 300, HASH_MAX))
    for point in (0, 100, 200):
        channel.own("a", point)
    channel.accept(
        propose.transfer(channel.admin(), channel.bundle(0), destination=channel.incarnation("b"))
    )
    channel.accept(propose.unload(channel.admin(), channel.bundle(100)))
    channel.accept(
        propose.start_split(channel.admin(), channel.bundle(200), algorithm="x", positions=(250,))
    )
    channel.accept(
        propose.set_policy(channel.admin(), channel.view, name="kept", document={"limit": 1})
    )
    channel.accept(propose.set_policy(channel.admin(), channel.view, name="gone", document={}))
    channel.accept(propose.remove_policy(channel.admin(), channel.view, name="gone"))
    channel.create(namespace="tenant/going")
    channel.accept(
        propose.start_deleting_namespace(channel.admin(), channel.view, name="tenant/going")
    )
    return channel


def left_channel() -> Channel:
    """A channel that all brokers have left."""
    channel = channel_with("a", "b", bundles=4)
    channel.own("a")
    for broker in ("a", "b"):
        channel.accept(propose.left(channel.author(broker), channel.broker(broker)))
    return channel


def copied(old: Log, new: Log, *, again: bool = False, other_is_lost: bool = False) -> Copied:
    """Copy one log to the other."""
    deadline = Deadline.after(timeout_ms=TIMEOUT_MS)
    return copy(
        old, new, publisher="admin:ops", deadline=deadline, again=again, other_is_lost=other_is_lost
    )


def refused(
    error: type[Exception],
    why: str | None,
    old: Log,
    new: Log,
    *,
    again: bool = False,
    other_is_lost: bool = False,
) -> None:
    """Try to copy one log to the other."""
    with pytest.raises(error, match=why):
        copied(old, new, again=again, other_is_lost=other_is_lost)


def held(view: View) -> dict[str, object]:
    """What a view says of its keys, but for the brokers, whose deaths a copy may have written
    down.
    """
    return {
        "bundles": view.bundles,
        "namespaces": view.namespaces,
        "policies": view.policies,
        "removed_at": view.removed_at,
    }


def before_closing(log: Log) -> View:
    """What a closed log came to just before the record that closed it."""
    reader = restored(log)
    for entry in log.read(reader.position, limit=1_000):
        record = decode(entry.data)
        if isinstance(record, LevelRecord) and record.raises_to == LEVEL_CLOSED:
            break
        reader.feed(entry)
    return reader.view


def check_copy(old: Log, new: Log, done: Copied) -> None:
    """The new log comes to the view of the old one above its end, and the old one cannot be gone on
    with.
    """
    there, here = before_closing(old), restored_to_end(new)
    assert held(there) == held(here)
    assert {name: (b.status, b.incarnation, b.last) for name, b in there.brokers.items()} == {
        name: (b.status, b.incarnation, b.last) for name, b in here.brokers.items()
    }
    assert (CLUSTER, there.level, there.level_last) == (here.cluster, here.level, here.level_last)
    assert (done.base, done.base + 1, done.digest) == (here.base, here.genesis, here.digest())
    assert done.base > there.offset
    with pytest.raises(LogClosed):
        restored_to_end(old)


@pytest.mark.usefixtures("left")
def test_a_channel_that_all_have_left_is_copied(old: TroubledLog, new: TroubledLog) -> None:
    """Its keys are as they were, and its offsets go on above where the old log was closed."""
    done = copied(old, new)
    check_copy(old, new, done)
    assert (CLUSTER, old.end(), 2, 1, 4, ()) == (
        done.cluster,
        done.base,
        done.brokers,
        done.namespaces,
        done.bundles,
        done.declared_dead,
    )
    first, *_ = entries_of(new)
    assert isinstance(decode(first.data), Genesis)


@pytest.mark.usefixtures("left")
def test_no_token_falls(old: TroubledLog, new: TroubledLog) -> None:
    """Whoever joins the copy gets an incarnation, and for a bundle a token, above all that the old
    log ever issued.
    """
    copied(old, new)

    def put(make: Callable[[View, BundleEntry], AnyRecord]) -> BundleEntry:
        view = restored_to_end(new)
        new.append([encode(make(view, bundle_of(view)))], timeout_ms=TIMEOUT_MS)
        return bundle_of(restored_to_end(new))

    def opened(view: View, bundle: BundleEntry) -> AnyRecord:
        incarnation = view.brokers["a"].incarnation
        assert incarnation > old.end()
        author = Author(publisher="a", incarnation=incarnation, sequence=1)
        return propose.opened(author, bundle)

    put(lambda view, _: joined("a", view, instance_id="another"))
    put(
        lambda view, bundle: propose.assign(
            Author(publisher="admin:ops", as_of=view.offset),
            bundle,
            owner=view.brokers["a"].incarnation,
        )
    )
    assert old.end() < put(opened).token


def bundle_of(view: View) -> BundleEntry:
    """The first bundle."""
    bundle = view.bundle_at(NAMESPACE, 0)
    assert bundle is not None
    return bundle


def test_brokers_that_are_silent_are_declared_down(old: TroubledLog, new: TroubledLog) -> None:
    """Whatever they were about is ended as by any death, on the old log, before it is closed."""
    write(old, working_channel())
    done = copied(old, new)
    assert ("a", "b") == done.declared_dead
    check_copy(old, new, done)
    assert {"free"} == {bundle.phase for bundle in restored_to_end(new).bundles.values()}
    publishers = {
        record.publisher.partition("/")[0]
        for record in map(decode, (entry.data for entry in entries_of(old)[-3:]))
        if record.publisher
    }
    assert {"admin:ops"} == publishers


def renewal(channel: Channel, broker: str) -> bytes:
    """A renewal of a broker."""
    return encode(propose.renewed(channel.author(broker), channel.broker(broker)))


@pytest.mark.parametrize(("words", "named"), [("a", "a"), ("?", "b"), ("ba", "a, b: stop")])
def test_a_broker_that_renews_is_not_copied_away_from(
    old: TroubledLog, new: TroubledLog, monkeypatch: pytest.MonkeyPatch, words: str, named: str
) -> None:
    """While anybody says anything, also what is rejected, the copy is refused, and both logs are as
    they were. Once one broker was heard the others get the time of a renewal, so that the operator
    learns of all at once.
    """
    channel = working_channel()
    write(old, channel)
    rejected = b'{"kind":"?","publisher":"b","incarnation":3,"sequence":99}'
    said = [rejected if word == "?" else renewal(channel, word) for word in words]
    spoken = chain(said, repeat(said[-1]))
    monkeypatch.setattr(
        old, "wait", lambda *_, **__: old.append([next(spoken)], timeout_ms=TIMEOUT_MS)
    )
    before = old.end() + 1
    refused(OperatorError, f"in use by {named}", old, new)
    assert said == [entry.data for entry in old.read(before, limit=10)][: len(said)]
    assert [] == entries_of(new)
    assert restored_to_end(old).live


@pytest.mark.parametrize("word", ["renewal", "join"])
def test_a_broker_that_speaks_at_the_last_moment_is_heard(
    word: str, old: TroubledLog, new: TroubledLog
) -> None:
    """A renewal just before the record of a death, or a broker that joins before the log is closed:
    both make it refused.
    """
    channel = working_channel()
    write(old, channel)

    def speak(data: bytes) -> None:
        old.trouble = lambda _: None
        if word == "renewal":
            old.append([renewal(channel, "a")], timeout_ms=TIMEOUT_MS)
        elif b'"level"' in data:
            old.append(
                [encode(joined("c", restored_to_end(old), instance_id="new"))],
                timeout_ms=TIMEOUT_MS,
            )
        else:
            old.trouble = speak

    old.trouble = speak
    refused(OperatorError, f"in use by {'a' if word == 'renewal' else 'c'}:", old, new)
    assert restored_to_end(old).live
    assert [] == entries_of(new)


@pytest.mark.usefixtures("left")
def test_of_two_copies_one_is_made(old: TroubledLog, new: TroubledLog, third: MemoryLog) -> None:
    """The log is closed once, by one of them; the other is refused, and its target stays empty."""
    rival = TroubledLog(name="memory:old")

    def overtake(_: bytes) -> None:
        old.trouble = lambda _: None
        copied(rival, third)

    old.trouble = overtake
    refused(LogClosed, None, old, new)
    assert ([], 1) == (entries_of(new), len(entries_of(third)))
    rival.close()


@pytest.mark.usefixtures("left")
def test_a_copied_log_is_copied_again_only_on_demand(
    old: TroubledLog, new: TroubledLog, third: MemoryLog
) -> None:
    """Where the first copy is lost for good, the same one can be made anew on another log, above
    the same base.
    """
    first = copied(old, new)
    refused(LogClosed, None, old, third)
    why = (
        f"{old.name} was closed at offset {old.end()} for its copy to memory:new, and"
        " memory:third is not that log.*--other-is-lost"
    )
    refused(OperatorError, why, old, third, again=True)
    assert [] == entries_of(third)
    second = copied(old, third, again=True, other_is_lost=True)
    assert first == second
    check_copy(old, third, second)


@pytest.mark.usefixtures("left")
def test_a_log_that_was_made_anew_under_the_same_name_is_another_one(
    old: TroubledLog, new: TroubledLog
) -> None:
    """The copy may have been moved away and be in use: what tells logs apart is not how they are
    called.
    """
    copied(old, new)
    new.close()
    with (
        closing(TroubledLog(name="memory:new")) as anew,
        pytest.raises(OperatorError, match="two copies would issue the same tokens"),
    ):
        copied(old, anew, again=True)


def test_a_log_whose_last_record_names_no_copy_is_copied_again(
    old: TroubledLog, new: TroubledLog
) -> None:
    """A form of that name which nobody knows is none."""
    channel = left_channel()
    closed = encode(propose.close_log(channel.admin(), channel.view))
    channel.put_bytes(closed[:-1] + b',"copied_to":7,"copied_to_identity":{}}')
    write(old, channel)
    check_copy(old, new, copied(old, new, again=True))


def test_a_name_that_is_no_text_is_told_as_far_as_it_can_be(old: TroubledLog) -> None:
    """A path may hold bytes that are no text, which no record can carry; the identity tells the
    copy all the same.
    """
    write(old, channel := left_channel())
    record = propose.close_log(
        channel.admin(), channel.view, copied_to="sqlite:new\udcff.db", identity="an identity"
    )
    assert b'"copied_to":"sqlite:new?.db"' in encode(record)


@pytest.mark.usefixtures("left")
def test_a_target_takes_its_name_before_the_log_is_closed(
    old: TroubledLog, new: TroubledLog, third: MemoryLog
) -> None:
    """So that a copy which dies then is finished on the log that the closed one names; if it
    cannot, nothing is closed.
    """
    end = old.end()

    def fail() -> Log:
        raise LogUnavailable(log="memory:new", problem="no such name")

    def name_target() -> Log:
        assert end == old.end()
        return new

    def copied_with(named: Callable[[], Log]) -> Copied:
        return copy(
            old,
            third,
            publisher="admin:ops",
            deadline=Deadline.after(timeout_ms=TIMEOUT_MS),
            name_target=named,
        )

    with pytest.raises(LogUnavailable):
        copied_with(fail)
    assert end == old.end()
    check_copy(old, new, copied_with(name_target))
    assert [] == entries_of(third)


@pytest.mark.parametrize("step", ["genesis", "snapshot", "answer"])
@pytest.mark.usefixtures("left")
def test_a_copy_that_died_is_finished(
    step: str, old: TroubledLog, new: TroubledLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it died, it is made again, and comes to the same view."""

    def die(*_: object, **__: object) -> None:
        raise LogUnavailable(log="memory:new", problem="it is gone")

    with monkeypatch.context() as dying:
        if step == "genesis":
            new.trouble = die
        elif step == "snapshot":
            dying.setattr(type(new.compacted_snapshot()), "replace", die)
        else:
            dying.setattr("equipoise.compaction.copying.Copied", die)
        refused(LogUnavailable, None, old, new)
    new.trouble = lambda _: None
    refused(LogClosed, None, old, new)
    if step == "snapshot":
        with pytest.raises(ChannelIncomplete):  # Nobody takes it for a new log.
            restored(new)
    elif step != "genesis":
        # Also before it was finished the new log is that of a copy, for whoever starts on it.
        assert held(before_closing(old)) == held(restored_to_end(new))
    check_copy(old, new, copied(old, new, again=True))


@pytest.mark.usefixtures("left")
def test_a_target_that_holds_anything_is_refused(old: TroubledLog, new: TroubledLog) -> None:
    """The old log is not touched then."""
    end = old.end()
    view = restored_to_end(old)
    compacted_snapshot = new.compacted_snapshot()
    compacted_snapshot.claim(timeout_ms=TIMEOUT_MS)
    compacted_snapshot.replace(
        rows_of(view, -1), encode_marker(marker_of(view, log=new.identity)), timeout_ms=TIMEOUT_MS
    )
    refused(CallerError, "it has a snapshot already", old, new)
    new.append([b"x"], timeout_ms=TIMEOUT_MS)
    refused(CallerError, "it has records already", old, new)
    new.truncate(2, timeout_ms=TIMEOUT_MS)
    refused(CallerError, "it has records already", old, new)
    assert end == old.end()


def test_an_unfinished_copy_of_another_channel_is_refused(
    old: TroubledLog, new: TroubledLog, monkeypatch: pytest.MonkeyPatch, third: MemoryLog
) -> None:
    """A target is finished only with what it was begun with."""
    other = TroubledLog(name="memory:other")
    write(other, left_channel())
    write(old, channel_with(bundles=2))
    with monkeypatch.context() as dying:
        dying.setattr(
            type(new.compacted_snapshot()),
            "replace",
            lambda *_, **__: pytest.fail("the snapshot is not to be written"),
        )
        with pytest.raises(pytest.fail.Exception):
            copied(other, new)
    end = old.end()
    refused(CallerError, "of another channel", old, new)
    assert end == old.end()
    copied(old, third)
    refused(OperatorError, "two copies would issue the same tokens", old, new, again=True)
    refused(CallerError, "of another channel", old, new, again=True, other_is_lost=True)
    other.close()


def test_a_log_that_has_not_begun_is_not_copied(old: TroubledLog, new: TroubledLog) -> None:
    """Where there is nothing but garbage there is no channel, and nothing is appended to either
    log.
    """
    old.append([b"garbage"], timeout_ms=TIMEOUT_MS)
    refused(LogNotBegun, None, old, new)
    assert (1, 0) == (old.end(), new.end())


@pytest.mark.usefixtures("left")
def test_somebody_else_begins_the_target_meanwhile(old: TroubledLog, new: TroubledLog) -> None:
    """A broker that was pointed at the new log too early is noticed, and the copy not taken for
    one.
    """
    stranger = MemoryLog(name="memory:new")

    def begin(_: bytes) -> None:
        stranger.append(
            [encode(propose.genesis(Author(publisher="b"), cluster=CLUSTER))], timeout_ms=TIMEOUT_MS
        )

    new.trouble = begin
    refused(CallerError, "somebody began it while the copy was made", old, new)
    reader = restored(new)
    verdicts = [reader.feed(entry).verdict.accepted for entry in entries_of(new)]
    assert ([True, False], 0, {}) == (verdicts, reader.view.base, dict(reader.view.bundles))
    assert new.compacted_snapshot().load() is None
    stranger.close()


@pytest.mark.usefixtures("left")
def test_a_target_that_was_begun_leaves_the_old_log_open(
    old: TroubledLog, new: TroubledLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While brokers are listened for somebody may begin the new log; that is seen before the old
    one is closed.
    """
    monkeypatch.setattr(
        "equipoise.compaction.copying._Copier.declare_silent_dead",
        lambda _: new.append([b"garbage"], timeout_ms=TIMEOUT_MS) and (),
    )
    end = old.end()
    refused(CallerError, "nothing can be copied to", old, new)
    assert end == old.end()


@pytest.mark.usefixtures("left")
def test_who_followed_the_empty_log_does_not_fold_the_copy_from_nothing(
    old: TroubledLog, new: TroubledLog
) -> None:
    """A reader that was there before the copy does not come to another view than one that starts
    after it.
    """
    early = restored(new)
    copied(old, new)
    [genesis] = new.read(early.position, limit=10)
    with pytest.raises(BegunAbove):
        early.feed(genesis)
    assert old.end() == restored(new).view.base


@pytest.mark.usefixtures("left")
def test_a_log_that_was_cut_off_is_copied(old: TroubledLog, new: TroubledLog) -> None:
    """A compacted channel is copied from its snapshot on."""
    cut_off(old, horizon=4, below=5)
    check_copy(old, new, copied(old, new))


@pytest.mark.usefixtures("left")
def test_a_copy_is_copied(old: TroubledLog, new: TroubledLog, third: MemoryLog) -> None:
    """Back to the first kind of log, or on to a third: offsets rise each time."""
    first = copied(old, new)
    second = copied(new, third)
    check_copy(new, third, second)
    assert second.base > first.base + 1


@pytest.mark.usefixtures("left")
def test_who_sleeps_through_a_copy_stops_when_it_wakes(old: TroubledLog, new: TroubledLog) -> None:
    """A reader of the old log, of whatever version, folds nothing behind the record that closed
    it.
    """
    sleeper = Reader(log=old.name)
    for entry in entries_of(old):
        sleeper.feed(entry)
    copied(old, new)
    old.append([encode(joined("a", sleeper.view, instance_id="awake"))], timeout_ms=TIMEOUT_MS)
    closing, late = old.read(sleeper.position, limit=10)
    for entry in (closing, late, late):
        with pytest.raises(LogClosed):
            sleeper.feed(entry)
    assert closing.offset == sleeper.view.offset


def test_a_copy_has_a_deadline(old: TroubledLog, new: TroubledLog) -> None:
    """Leases that are longer than there is time end it, before anything is closed."""
    write(old, channel_with("a"))
    with pytest.raises(DeadlineExceeded):
        copy(old, new, publisher="admin:ops", deadline=Deadline.after(timeout_ms=300))
    assert restored_to_end(old).live


def backed_up(old: Log, new: Log) -> Copied:
    """Make a backup of a log."""
    return back_up(old, new, deadline=Deadline.after(timeout_ms=TIMEOUT_MS), ahead=1_000)


def test_a_backup_has_the_view_of_a_log_that_goes_on(old: TroubledLog, new: TroubledLog) -> None:
    channel = working_channel()
    write(old, channel)
    done = backed_up(old, new)
    there, here = restored_to_end(old), restored_to_end(new)
    assert held(there) == held(here)
    assert there.brokers == here.brokers
    assert there.offset + 1_000 == done.base == here.base
    channel.accept(propose.renewed(channel.author("a"), channel.broker("a")))
    write(old, channel)
    assert channel.view.digest() == restored_to_end(old).digest()


def test_a_backup_begins_above_all_that_was_issued(new: TroubledLog) -> None:
    """Also where nothing stands any more, as after a power failure."""
    with closing(GapLog()) as old:
        write(old, left_channel())
        old.leap(old.end() + 5_000)
        assert old.end() + 1_000 == backed_up(old, new).base


@pytest.mark.usefixtures("left")
def test_a_log_with_a_damaged_snapshot_is_backed_up(old: TroubledLog, new: TroubledLog) -> None:
    """Also if its beginning is gone, so that no broker would start on it."""
    view = restored_to_end(old)
    compacted(old, retain=Retention(unit="offsets", amount=4))
    image = image_of(old)
    old.compacted_snapshot().claim(timeout_ms=TIMEOUT_MS)
    old.compacted_snapshot().replace(
        [SnapshotRow("broker:a", b"{}")], image.marker, timeout_ms=TIMEOUT_MS
    )
    with pytest.raises(ChannelIncomplete):
        restored(old)
    backed_up(old, new)
    assert held(view) == held(restored_to_end(new))


def test_what_cannot_be_backed_up_is_refused(
    old: TroubledLog, new: TroubledLog, third: MemoryLog
) -> None:
    with pytest.raises(LogNotBegun):
        backed_up(old, new)
    write(old, left_channel())
    copied(old, new)
    with pytest.raises(LogClosed):
        backed_up(old, third)
    write(third, left_channel())
    with pytest.raises(CallerError, match="it has records already"):
        backed_up(third, new)
