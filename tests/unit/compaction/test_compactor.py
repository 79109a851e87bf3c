"""Test a compaction step by step: what it writes, removes and refuses."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from equipoise.channel.core import propose
from equipoise.channel.core.errors import (
    ChannelIncomplete,
    LogTruncated,
    LogWentBack,
    OperatorError,
    SnapshotFenced,
)
from equipoise.channel.core.log import SnapshotRow
from equipoise.compaction.compactor import Step, compact
from equipoise.compaction.retention import Retention, parse_retention
from tests.channels.compacting import (
    NOTHING,
    TIMEOUT_MS,
    all_of,
    all_rows,
    compacted,
    image_of,
    in_an_hour,
    marker_in,
    renewed,
    restored_to_end,
    write_snapshot,
    written,
)
from tests.channels.folding import Channel, channel_with
from tests.channels.gap_log import GapLog

ONE_OFFSET = Retention(unit="offsets", amount=1)


@pytest.fixture
def one_broker(log: GapLog) -> Channel:
    """A channel of one broker, on the log."""
    return written(log, channel_with("a:1"))


def test_a_log_becomes_short(log: GapLog) -> None:
    """All is in the snapshot, nothing is left on the log, and the view is what it was."""
    channel = written(log, channel_with("a:1", "b:1", bundles=4))
    done = compacted(log)
    assert (4, 9, 9, 0, 1, 5, 4) == (
        done.records,
        done.keys,
        done.rows,
        done.tombstones,
        done.start_before,
        done.start,
        done.end,
    )
    assert (channel.view.offset, channel.view.digest()) == (done.horizon, done.digest)
    assert [] == list(log.read(log.start(), limit=10))
    assert all_of(channel.view) == all_of(restored_to_end(log))


@pytest.mark.usefixtures("one_broker")
def test_a_second_one_finds_nothing_to_do(log: GapLog) -> None:
    """Compacting a log that has just been compacted writes and removes nothing, and says so."""
    first, before = compacted(log), image_of(log)
    second = compacted(log)
    assert before is image_of(log)
    assert replace(first, records=0, rows=0, start_before=first.start) == second


def test_only_what_changed_is_written(log: GapLog) -> None:
    """The next compaction writes the keys that were changed since, and tombstones for those that
    went.
    """
    channel = written(log, channel_with("a:1", "b:1", bundles=4))
    compacted(log)
    channel.own("a:1")
    channel.accept(
        propose.start_split(channel.admin(), channel.bundle(), algorithm="x", positions=(7,))
    )
    channel.accept(propose.split(channel.author("a:1"), channel.bundle(), cuts=(7,)))
    written(log, channel)
    done = compacted(log)
    assert (4, 2, 1) == (done.records, done.rows, done.tombstones)
    assert all_rows(channel.view) == image_of(log).rows


@pytest.mark.usefixtures("one_broker")
def test_a_dry_run_changes_nothing(log: GapLog, other: GapLog) -> None:
    """A dry run says what a compaction would say, fences nobody, writes nothing and removes
    nothing.
    """
    log.compacted_snapshot().claim(timeout_ms=TIMEOUT_MS)
    would = compacted(other, dry_run=True)
    assert (1, None) == (log.start(), log.compacted_snapshot().load())
    log.compacted_snapshot().replace([], b"not fenced", timeout_ms=TIMEOUT_MS)
    assert replace(compacted(other), dry_run=True) == would


def test_a_log_that_nobody_has_begun_is_left_alone(log: GapLog) -> None:
    """Without a genesis there is nothing to hold, and what stands there stays."""
    log.put((1, b"garbage"))
    assert (None, None, 1, 1) == (
        compacted(log).horizon,
        compacted(log).digest,
        compacted(log).start,
        log.start(),
    )
    assert log.compacted_snapshot().load() is None


@pytest.mark.parametrize("text", ["10 offsets", "64MiB", "3h", "600B"])
def test_a_retention_keeps_the_newest(log: GapLog, text: str) -> None:
    """What the retention asks for stays on the log, and what the compaction before kept for it goes
    when it may.
    """
    written(log, renewed(channel_with("a:1", bundles=16), 20))
    done = compacted(log, retain=parse_retention(text))
    left = [entry.data for entry in log.read(log.start(), limit=100)]
    assert (
        {"10 offsets": 10, "64MiB": log.end(), "3h": log.end(), "600B": log.end()}[text]
        == len(left)
        == log.end() - done.start + 1
    )
    assert 1 == compacted(log, retain=replace(NOTHING, amount=1)).end - log.start() + 1


def test_a_size_keeps_as_many_bytes(log: GapLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """By size the log is cut at the checkpoint from which at least so many bytes are left, and
    those are remembered.
    """
    monkeypatch.setattr("equipoise.compaction.compactor.RECORDS_BETWEEN", 5)
    channel = written(log, channel_with("a:1"))
    for _ in range(3):
        written(log, renewed(channel, 17))
        compacted(log, retain=Retention(unit="bytes", amount=2_000))
        left = [len(entry.data) for entry in log.read(log.start(), limit=100)]
        assert 2_000 <= sum(left) < 2_000 + 6 * max(left)


def test_steps_are_told_in_order(log: GapLog) -> None:
    """A whole compaction takes every step once, in the order in which they are listed; one that
    keeps nothing needs no history snapshot.
    """
    channel = written(log, channel_with("a:1"))
    told: list[str] = []
    compacted(log, retain=ONE_OFFSET, step=told.append)
    assert list(Step) == told
    written(log, renewed(channel, 1))
    told.clear()
    compacted(log, step=told.append)
    assert [step for step in Step if not step.startswith("history")] == told


@pytest.mark.parametrize("step", list(Step))
def test_two_at_once_do_no_harm(log: GapLog, other: GapLog, step: Step) -> None:
    """Whenever another compactor comes and goes, with more to write even, one is fenced or finds
    nothing to do.
    """
    channel = written(log, channel_with("a:1", "b:1", bundles=4))

    def overtake(told: str) -> None:
        if told == step:
            channel.own("a:1")
            written(other, channel)
            compacted(other)

    # Who was overtaken after its claim cannot write, and says that another one does.
    is_fenced = step == Step.ENCODED
    with pytest.raises(SnapshotFenced) if is_fenced else suppress(SnapshotFenced, LogTruncated):
        compacted(log, retain=ONE_OFFSET, step=overtake)
    assert (all_rows(channel.view), channel.view.offset) == (
        image_of(log).rows,
        marker_in(log).horizon,
    )
    assert all_of(channel.view) == all_of(restored_to_end(log))


def parted(channel: Channel, broker: str) -> None:
    """Let a broker say that its view is another one."""
    verdict = channel.put(
        propose.renewed(channel.author(broker), replace(channel.broker(broker), digest_after=1))
    )
    assert verdict.diverged


@pytest.mark.parametrize("dies", [False, True])
def test_a_view_that_somebody_parted_from_is_not_written(log: GapLog, *, dies: bool) -> None:
    """While a broker says that its view is another, nothing is written and nothing is removed, and
    it is named. If it has died, it is in the way until another one, alive, has agreed.
    """
    channel = channel_with("a:1", "b:1")
    parted(channel, "a:1")
    if dies:
        channel.die("a:1")
    else:
        renewed(channel, 1, broker="b:1")
    written(log, channel)
    with pytest.raises(OperatorError, match=f"{log.name} is not.* broker a:1 reported at offset"):
        compacted(log)
    assert (1, None) == (log.start(), log.compacted_snapshot().load())
    written(log, renewed(channel, 1, broker="b:1" if dies else "a:1"))
    assert channel.view.offset == compacted(log).horizon


@pytest.mark.usefixtures("one_broker")
def test_what_is_not_read_back_as_it_was_meant_removes_nothing(
    log: GapLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that does not hold what was written to it is found out before the log is cut."""
    compacted_snapshot = log.compacted_snapshot()
    replace_rows = compacted_snapshot.replace

    def lose_one(rows: Iterable[SnapshotRow], marker: bytes, *, timeout_ms: int) -> None:
        replace_rows(
            [row for row in rows if row.key != "broker:a:1"], marker, timeout_ms=timeout_ms
        )

    monkeypatch.setattr(compacted_snapshot, "replace", lose_one)
    with pytest.raises(OperatorError, match="is not what was written"):
        compacted(log)
    assert 1 == log.start()


@pytest.mark.usefixtures("one_broker")
def test_a_truncation_that_did_nothing_is_told(
    log: GapLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that does not begin where it was cut is not called compacted."""
    monkeypatch.setattr(log, "truncate", lambda below, *, timeout_ms: None)
    with pytest.raises(OperatorError, match="was to begin at offset 4 and begins at 1"):
        compacted(log)


def test_a_damaged_snapshot_is_written_anew(log: GapLog) -> None:
    """While the log is whole a damaged snapshot is replaced whole: its keys too, whose rows nobody
    needs.
    """
    channel = written(log, channel_with("a:1"))
    write_snapshot(log, channel.view)
    log.compacted_snapshot().replace(
        [SnapshotRow("broker:ghost", b"{}")], image_of(log).marker, timeout_ms=TIMEOUT_MS
    )
    done = compacted(log)
    assert (5, 1) == (done.rows, done.tombstones)
    assert all_rows(channel.view) == image_of(log).rows


@pytest.mark.usefixtures("one_broker")
def test_a_channel_that_is_incomplete_is_left_alone(log: GapLog) -> None:
    """Where the beginning is gone without a snapshot, nothing is written that would make it look
    whole.
    """
    log.truncate(2, timeout_ms=TIMEOUT_MS)
    with pytest.raises(ChannelIncomplete):
        compacted(log)
    assert log.compacted_snapshot().load() is None


@pytest.mark.usefixtures("one_broker")
def test_the_log_of_another_cluster_is_refused(log: GapLog) -> None:
    """With a cluster named, no other one's log is touched, whether it has a snapshot or not."""
    for _ in range(2):
        with pytest.raises(OperatorError, match="belongs to cluster"):
            compact(log, retain=NOTHING, timeout_ms=TIMEOUT_MS, cluster="mine", now_ms=in_an_hour)
        assert 1 == log.start()
        compact(
            log,
            retain=parse_retention("9 offsets"),
            timeout_ms=TIMEOUT_MS,
            cluster="test",
            now_ms=in_an_hour,
        )


def test_a_log_that_lost_its_end_is_refused(log: GapLog) -> None:
    """A snapshot that is ahead of its log shows that records are gone, which no compaction may
    paper over.
    """
    channel = channel_with("a:1", "b:1")
    log.put(*channel.entries[:2])
    write_snapshot(log, channel.view)
    with pytest.raises(LogWentBack):
        compacted(log)


def test_an_end_in_a_gap_is_an_end(log: GapLog) -> None:
    """Offsets that were skipped at the end are no records, and cost the next reader nothing."""
    channel = written(log, channel_with("a:1"))
    log.leap(50_000)
    done = compacted(log)
    assert (3, 4, 50_000) == (done.horizon, done.start, done.end)
    log.put((50_001, channel.entries[0][1]))
    assert 50_001 == restored_to_end(log).offset


@pytest.mark.usefixtures("one_broker")
def test_a_check_ends_it(log: GapLog) -> None:
    """What `check` raises ends a compaction, which has written nothing by then."""

    def too_late() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        compact(log, retain=NOTHING, timeout_ms=TIMEOUT_MS, check=too_late)
    assert log.compacted_snapshot().load() is None


def test_progress_counts_the_records(log: GapLog) -> None:
    """The records that are folded are counted, up to as many as there are."""
    written(log, channel_with("a:1", "b:1"))
    told: list[tuple[int, int | None]] = []
    compact(
        log,
        retain=NOTHING,
        timeout_ms=TIMEOUT_MS,
        progress=lambda done, total: told.append((done, total)),
    )
    assert (4, 4) == told[-1]


def test_a_clock_that_is_ahead_does_not_cut_what_was_just_written(
    log: GapLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest ten minutes are those of the clock that gave the entries their times, whatever
    time this machine has.
    """
    written(log, channel_with("a:1", bundles=4))
    later_ns = in_an_hour() * 1_000_000
    monkeypatch.setattr(
        "equipoise.compaction.compactor.time", SimpleNamespace(time_ns=lambda: later_ns)
    )
    assert 1 == compact(log, retain=NOTHING, timeout_ms=TIMEOUT_MS).start
