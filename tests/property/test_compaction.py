"""Compare the view of a compacted log with the fold of the whole history."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core.codec import decode
from equipoise.channel.core.errors import CompactionRefused
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.snapshot_store import CompactedSnapshot
from equipoise.channel.core.view import View, apply
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.snapshots.snapshot_rows import encode_marker, marker_of, view_of
from equipoise.compaction.compactor import Compacted
from equipoise.compaction.retention import Retention
from tests.channels.compacting import (
    NOTHING,
    all_of,
    all_rows,
    compacted,
    fold,
    image_of,
    marker_in,
    restored_to_end,
)
from tests.channels.gap_log import GapLog
from tests.channels.walk import Walk

RECORDS_MAX = 160


def compacted_or_parted(walk: Walk, log: GapLog, retain: Retention = NOTHING) -> Compacted | None:
    """What a compaction came to; None if it was refused, because a renewal of the walk bears a
    digest that was never its view's.
    """
    try:
        return compacted(log, retain=retain)
    except CompactionRefused:
        view = View()
        assert any(apply(view, offset, decode(data)).diverged for offset, data in walk.entries)
        return None


seeds = st.integers(0, 2**32)
lengths = st.lists(st.integers(0, RECORDS_MAX // 4), min_size=1, max_size=8)
retentions = st.builds(
    Retention, unit=st.sampled_from(["offsets", "bytes", "ms"]), amount=st.integers(0, 4_000)
)


@settings(max_examples=60, deadline=None)
@given(seed=seeds, lengths=lengths, retain=retentions)
def test_what_is_left_comes_to_the_same_view(
    seed: int, lengths: list[int], retain: Retention
) -> None:
    """`fold(snapshot, channel[H:]) == fold(channel[0:])`, after each of several compactions, and
    with records after the last.
    """
    walk, log = Walk(seed), GapLog()
    for length in lengths:
        log.put(*(walk.step() for _ in range(length)))
        assert all_of(fold(walk.entries)) == all_of(restored_to_end(log))
        done = compacted_or_parted(walk, log, retain)
        if done is None:
            break
        assert all_of(fold(walk.entries)) == all_of(restored_to_end(log))
        assert log.start() == done.start <= log.end() + 1
    log.close()


@settings(max_examples=60, deadline=None)
@given(seed=seeds, lengths=lengths)
def test_a_snapshot_written_bit_by_bit_is_one_written_at_once(
    seed: int, lengths: list[int]
) -> None:
    """Compaction by compaction a snapshot holds the rows, and says the digest, of one that is
    written from zero each time.
    """
    walk, log = Walk(seed), GapLog()
    for length in lengths:
        log.put(*(walk.step() for _ in range(length)))
        done = compacted_or_parted(walk, log)
        if done is None:
            break
        view = fold(walk.entries)
        if view.genesis is None:
            assert done.horizon is None
            assert log.compacted_snapshot().load() is None
            continue
        assert all_rows(view) == image_of(log).rows
        assert (view.offset, view.digest()) == (marker_in(log).horizon, marker_in(log).digest)
        assert sum(len(data) for _, data in walk.entries) == marker_in(log).bytes_below
    log.close()


@settings(max_examples=40, deadline=None)
@given(seed=seeds, length=st.integers(1, RECORDS_MAX))
def test_rows_hold_what_a_snapshot_holds(seed: int, length: int) -> None:
    """A view comes back from rows and marker as it comes back from a snapshot, whatever it has been
    through.
    """
    walk = Walk(seed)
    view = fold(walk.step() for _ in range(length))
    if view.genesis is None:
        return
    image = CompactedSnapshot(
        marker=encode_marker(marker_of(view, log="a log")), rows=all_rows(view)
    )
    assert all_of(from_bytes(to_bytes(view))) == all_of(view_of(image))


@settings(max_examples=30, deadline=None)
@given(seed=seeds, lengths=lengths, reads=st.integers(0, RECORDS_MAX))
def test_a_snapshot_of_ones_own_goes_on_or_gives_way(
    seed: int, lengths: list[int], reads: int
) -> None:
    """A reader with a view from anywhere in the past goes on with it or with the snapshot, and
    comes to the same end.
    """
    walk, log = Walk(seed), GapLog()
    own: View | None = None
    for length in lengths:
        log.put(*(walk.step() for _ in range(length)))
        if own is None and len(walk.entries) >= reads:
            own = fold(walk.entries)
        if compacted_or_parted(walk, log) is None:
            break
        mine = None if own is None else from_bytes(to_bytes(own))
        reader = restored(log, own=mine)
        assert (reader.view is mine) == (
            mine is not None and mine.offset >= 0 and mine.offset + 1 >= log.start()
        )
        assert all_of(fold(walk.entries)) == all_of(restored_to_end(log, own=mine))
    log.close()
