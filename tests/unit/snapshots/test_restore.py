"""Where a reader begins: with its own snapshot, the snapshot, or the log; and when it refuses
to.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core import propose
from equipoise.channel.core.entries import Verdict
from equipoise.channel.core.errors import (
    ChannelIncomplete,
    CompactedSnapshotDamaged,
    LogWentBack,
    OperatorError,
)
from equipoise.channel.core.log import (
    LOADS_MAX,
    Check,
    CompactedSnapshot,
    Progress,
    SnapshotRow,
    unchecked,
    unwatched,
)
from equipoise.channel.log.memory_log import MemorySnapshotStore, SnapshotStorage
from equipoise.channel.snapshots.restore import earliest, restored
from equipoise.channel.snapshots.snapshot_rows import decode_marker, encode_marker, keys_of, view_of
from tests.channels.compacting import (
    TIMEOUT_MS,
    all_of,
    begin_copy,
    compacted,
    image_of,
    restored_to_end,
    write_snapshot,
    written,
)
from tests.channels.folding import channel_in, channel_with
from tests.channels.gap_log import GapLog


@pytest.fixture
def log() -> Iterator[GapLog]:
    """A log of its own."""
    with closing(GapLog()) as made:
        yield made


def spoil(log: GapLog, key: str = "") -> None:
    """Change one byte of a row of a log's snapshot, by default of the marker."""
    image = image_of(log)
    data = image.rows[key] if key else image.marker
    spoiled = data[:20] + bytes([data[20] ^ 1]) + data[21:]
    log.compacted_snapshot().claim(timeout_ms=TIMEOUT_MS)
    log.compacted_snapshot().replace(
        [SnapshotRow(key, spoiled)] if key else [],
        image.marker if key else spoiled,
        timeout_ms=TIMEOUT_MS,
    )


def test_a_snapshot_saves_the_fold(log: GapLog) -> None:
    """With a snapshot a reader begins after its horizon, also while the log still has its
    beginning.
    """
    channel = written(log, channel_with("a:1", "b:1", bundles=4))
    write_snapshot(log, channel.view)
    channel.own("a:1")
    written(log, channel)
    reader = restored(log)
    assert log.end() - 1 == reader.position
    assert all_of(channel.view) == all_of(restored_to_end(log))


def test_a_snapshot_ahead_of_the_log_is_not_hidden(log: GapLog) -> None:
    """A view that knows more than the log tells that the log went back."""
    channel = channel_with("a:1", "b:1")
    log.put(*channel.entries[:2])
    with pytest.raises(LogWentBack):
        restored(log, own=channel.view)


def test_a_snapshot_with_an_entry_that_a_power_failure_has_undone_is_not_used(log: GapLog) -> None:
    """The log then goes on above a gap, and the other brokers have not read the entry."""
    channel = channel_with("a:1", "b:1")
    log.put(*channel.entries[:-1])
    log.leap(channel.view.offset + 1_000)
    assert 1 == restored(log, own=channel.view).position


def test_a_compacted_snapshot_ahead_of_the_log_is_not_hidden(log: GapLog) -> None:
    """A snapshot that knows more than the log is used likewise: what the log lost must not be taken
    for undone.
    """
    channel = channel_with("a:1", "b:1")
    log.put(*channel.entries[:2])
    write_snapshot(log, channel.view)
    with pytest.raises(LogWentBack):
        log.read(restored(log).position, limit=1)


@pytest.mark.parametrize("key", ["", "genesis", "broker:a:1", "namespace:tenant/ns"])
def test_a_damaged_snapshot_of_a_whole_log_is_done_without(
    log: GapLog, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While the log has its beginning a damaged snapshot costs a fold from zero, and is told."""
    channel = written(log, channel_with("a:1"))
    write_snapshot(log, channel.view)
    spoil(log, key)
    with caplog.at_level(logging.WARNING):
        assert all_of(channel.view) == all_of(restored_to_end(log))
    assert "does not match its checksum" in caplog.text


def test_a_damaged_snapshot_of_a_log_that_was_cut_is_refused(log: GapLog) -> None:
    """Without its beginning a log is worth nothing without its snapshot: what is lost is told, and
    how to go on.
    """
    written(log, channel_with("a:1"))
    compacted(log)
    spoil(log, "genesis")
    for begin in (restored, earliest):
        with pytest.raises(
            ChannelIncomplete,
            match=r"from offset 1 to 3, and its snapshot cannot be used: its row 'genesis'.*copy",
        ) as caught:
            begin(log)
        assert (1, 3, False) == (caught.value.first, caught.value.last, caught.value.copied)


def test_a_log_that_was_cut_too_far_is_refused(log: GapLog) -> None:
    """A snapshot that ends before the log begins leaves a hole that nobody can fill."""
    channel = written(log, channel_with("a:1"))
    write_snapshot(log, channel.view)
    channel.create(namespace="t/more")
    channel.create(namespace="t/most")
    written(log, channel)
    log.truncate(5, timeout_ms=TIMEOUT_MS)
    with pytest.raises(
        ChannelIncomplete, match="it covers the records below offset 4, but the log begins at 5"
    ):
        restored(log)


def test_the_snapshot_of_a_former_log_is_not_believed(log: GapLog) -> None:
    """A snapshot that names another log than this one, of the same cluster even, is none of it."""
    channel = written(log, channel_with("a:1"))
    write_snapshot(log, channel.view)
    marker = replace(decode_marker(image_of(log).marker), log="a former log", horizon=2)
    log.compacted_snapshot().replace([], encode_marker(marker), timeout_ms=TIMEOUT_MS)
    assert 1 == restored(log).position
    log.truncate(3, timeout_ms=TIMEOUT_MS)
    with pytest.raises(ChannelIncomplete, match="it belongs to another log"):
        restored(log)


def test_the_snapshot_of_another_cluster_is_refused(log: GapLog) -> None:
    """A log whose snapshot is another cluster's is another cluster's."""
    written(log, channel_with("a:1"))
    compacted(log)
    with pytest.raises(OperatorError, match="belongs to cluster 'test', not 'mine'"):
        restored(log, cluster="mine")


def test_a_copy_begins_with_its_snapshot(log: GapLog) -> None:
    """The reader of a copy begins with what was copied, accepts the copy's genesis, once, and goes
    on above the old end.
    """
    channel = channel_in("owned")
    begin_copy(log, channel, base=1_000)
    log.append([log.read(1, limit=1)[0].data], timeout_ms=TIMEOUT_MS)
    reader = restored(log)
    before = all_of(reader.view)
    first, second = (reader.feed(entry).verdict for entry in log.read(reader.position, limit=10))
    assert Verdict() == first
    assert not second.accepted
    assert (1_001, 1_002, 1_000) == (reader.view.genesis, reader.view.offset, reader.view.base)
    assert before["bundles"] == reader.view.bundles


def test_a_copy_without_its_snapshot_is_refused(log: GapLog) -> None:
    """The records of a copy alone are not the channel, though the log has its beginning: what was
    copied is missing.
    """
    begin_copy(log, channel_with("a:1"), base=1_000)
    spoil(log)
    for begin in (restored, earliest):
        with pytest.raises(
            ChannelIncomplete,
            match="lacks the records that it was copied from, from offset 1 to 1000",
        ) as caught:
            begin(log)
        assert caught.value.copied


def test_a_copy_is_found_behind_any_garbage(log: GapLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much stands before the genesis of a copy, the log is none that can be folded from
    zero.
    """
    monkeypatch.setattr("equipoise.channel.snapshots.snapshot_rows.PEEK_ENTRIES", 2)
    log.append([b"garbage"] * 5, timeout_ms=TIMEOUT_MS)
    begin_copy(log, channel_with("a:1"), base=1_000)
    spoil(log)
    with pytest.raises(ChannelIncomplete, match="from offset 1 to 1000"):
        restored(log)


@pytest.mark.parametrize("key", ["", "broker:a:1"])
@pytest.mark.parametrize("garbage", [[], [b"garbage"]])
def test_a_damaged_snapshot_beside_a_log_without_a_genesis_is_refused(
    log: GapLog, key: str, garbage: list[bytes]
) -> None:
    """It may be all that is left of a copy: who began such a log anew would issue its tokens
    again.
    """
    write_snapshot(log, channel_with("a:1").view)
    log.append(garbage, timeout_ms=TIMEOUT_MS)
    spoil(log, key)
    for begin in (restored, earliest):
        with pytest.raises(ChannelIncomplete, match="from offset 1 on") as caught:
            begin(log)
        assert caught.value.last is None


def test_the_snapshot_of_a_former_log_keeps_nobody_from_a_new_one(log: GapLog) -> None:
    """A log that was made anew under an old name, whose snapshot was left behind, is a new one."""
    former = GapLog()
    write_snapshot(former, channel_with("a:1").view)
    image = image_of(former)
    former.close()
    log.compacted_snapshot().claim(timeout_ms=TIMEOUT_MS)
    log.compacted_snapshot().replace(
        [SnapshotRow(key, data) for key, data in image.rows.items()],
        image.marker,
        timeout_ms=TIMEOUT_MS,
    )
    assert (-1, 1) == (restored(log).view.offset, restored(log).position)


def test_who_asks_about_the_past_begins_with_the_log(log: GapLog) -> None:
    """`earliest` folds from zero as long as that is possible, and from the snapshot afterwards."""
    channel = written(log, channel_with("a:1"))
    write_snapshot(log, channel.view)
    assert 1 == earliest(log).position
    log.truncate(2, timeout_ms=TIMEOUT_MS)
    assert 4 == earliest(log).position


def _but_for_brokers(image: CompactedSnapshot) -> dict[str, bytes]:
    return {key: data for key, data in image.rows.items() if not key.startswith("broker:")}


class Cleaned(MemorySnapshotStore):
    """A snapshot from which the storage removes rows while it is read, so many times."""

    def __init__(self, image: CompactedSnapshot, *, times: int) -> None:
        super().__init__(SnapshotStorage(), name="memory:cleaned")
        self.image = image
        self.times = times
        self.loads = 0

    def load(
        self, *, check: Check = unchecked, progress: Progress = unwatched
    ) -> CompactedSnapshot | None:
        self.loads += 1
        gone = self.loads <= self.times
        return CompactedSnapshot(
            marker=self.image.marker, rows=_but_for_brokers(self.image) if gone else self.image.rows
        )


@pytest.mark.parametrize("times", [0, 1, LOADS_MAX - 1, LOADS_MAX])
def test_a_snapshot_is_read_again_a_few_times(
    log: GapLog, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that vanish while they are read are looked for again, so often and not oftener."""
    channel = written(log, channel_with("a:1"))
    compacted(log)
    compacted_snapshot = Cleaned(image_of(log), times=times)
    monkeypatch.setattr(log, "compacted_snapshot", lambda: compacted_snapshot)
    if times < LOADS_MAX:
        assert all_of(channel.view) == all_of(restored(log).view)
    else:
        with pytest.raises(ChannelIncomplete, match="its marker has digest"):
            restored(log)
    assert min(times + 1, LOADS_MAX) == compacted_snapshot.loads


def crowded() -> CompactedSnapshot:
    """The snapshot of a channel with something of everything."""
    channel, log = channel_in("splitting", "dead"), GapLog()
    channel.die("dead")
    channel.accept(
        propose.set_policy(
            channel.admin(),
            channel.view,
            name="limit",
            document={"n": 1, "text": "t", "strict": True},
        )
    )
    written(log, channel)
    write_snapshot(log, channel.view)
    image = image_of(log)
    log.close()
    return image


IMAGE = crowded()


@settings(max_examples=300, deadline=None)
@given(
    key=st.sampled_from(["", *sorted(IMAGE.rows)]),
    place=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
)
def test_no_flipped_bit_is_believed(key: str, place: float, bit: int) -> None:
    """Whichever bit of a row or of the marker is another, the snapshot is refused by a typed
    error.
    """
    data = IMAGE.rows[key] if key else IMAGE.marker
    at = int(place * len(data))
    flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    with pytest.raises(CompactedSnapshotDamaged):
        view_of(
            replace(IMAGE, rows={**IMAGE.rows, key: flipped})
            if key
            else replace(IMAGE, marker=flipped)
        )


@pytest.mark.parametrize("key", sorted(IMAGE.rows))
def test_no_missing_row_is_overlooked(key: str) -> None:
    """A snapshot that lost any of its rows is refused."""
    with pytest.raises(CompactedSnapshotDamaged):
        view_of(
            replace(IMAGE, rows={other: data for other, data in IMAGE.rows.items() if other != key})
        )


@pytest.mark.parametrize("key", ["junk", "made:up", "Bundle:a/b/0x0_0x1", ""])
def test_what_somebody_else_wrote_is_left_out(key: str) -> None:
    """A row under no key of ours is in nobody's way, and the next compaction finds it among those
    that are gone.
    """
    for data in (b"", b"junk", next(iter(IMAGE.rows.values()))):
        view = view_of(replace(IMAGE, rows={**IMAGE.rows, key: data}))
        assert all_of(view_of(IMAGE)) == all_of(view)
        assert key not in keys_of(view)


@settings(max_examples=100, deadline=None)
@given(
    key=st.sampled_from(sorted(IMAGE.rows)),
    data=st.binary(max_size=80),
    cut=st.floats(0, 1, exclude_max=True),
)
def test_no_garbage_is_believed(key: str, data: bytes, cut: float) -> None:
    """A row of any other bytes, one that was cut off, or one that stands under another key is
    refused.
    """
    row = IMAGE.rows[key]
    other = next(name for name in IMAGE.rows if name != key)
    for rows in ({key: data}, {key: row[: int(cut * len(row))]}, {other: row}):
        with pytest.raises(CompactedSnapshotDamaged):
            view_of(replace(IMAGE, rows={**IMAGE.rows, **rows}))
