"""Compacted logs against the fold of the whole history: the same view, and a history that can be
told, whoever compacts, dies or copies.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode
from equipoise.channel.core.errors import OperatorError
from equipoise.channel.core.snapshot import from_bytes, to_bytes
from equipoise.channel.core.view import View, apply
from equipoise.channel.snapshots.restore import earliest, restored
from equipoise.compaction.compactor import Step
from equipoise.compaction.retention import Retention
from tests.channels.compacted import compact as compact_without_history_snapshot
from tests.channels.compacting import (
    all_of,
    begin_copy,
    compacted,
    digests_of,
    fold,
    restored_to_end,
    told_by,
    untold,
)
from tests.channels.compaction_hunt import DiedError, compacted_or_parted, play
from tests.channels.folding import channel_with
from tests.channels.gap_log import GapLog
from tests.channels.walk import Walk

RECORDS_MAX = 40
BASE = 1_000
seeds = st.integers(0, 2**32)
retentions = st.builds(
    Retention, unit=st.sampled_from(["offsets", "bytes", "ms"]), amount=st.integers(0, 4_000)
)


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_compactors_that_die_and_overtake_one_another_lose_nothing(seed: int) -> None:
    """The mutants show what this finds."""
    play(seed)


@settings(max_examples=30, deadline=None)
@given(
    seed=seeds,
    lengths=st.lists(st.integers(0, RECORDS_MAX), min_size=1, max_size=8),
    reads=st.integers(0, 4 * RECORDS_MAX),
)
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


def compact_or_die(log: GapLog, retain: Retention, dies_at: Step | None) -> bool:
    """Compact, as far as it comes; whether it came to its end. It is refused where a renewal of the
    walk bears a digest of no view.
    """

    def step(told: str) -> None:
        if told == dies_at:
            raise DiedError

    try:
        compacted(log, retain=retain, step=step)
    except DiedError:
        return False
    except OperatorError as refusal:
        if refusal.code != "CompactionRefused":
            raise
        return False
    return True


@settings(max_examples=30, deadline=None)
@given(
    seed=seeds,
    lengths=st.lists(st.integers(1, RECORDS_MAX), min_size=3, max_size=6),
    cut_after=st.integers(0, 2),
    retain=retentions,
)
def test_a_log_that_was_cut_without_a_history_is_told_from_then_on(
    seed: int, lengths: list[int], cut_after: int, retain: Retention
) -> None:
    """Where a compactor without a history snapshot cut the log, its snapshot becomes the history
    snapshot, as long as possible.
    """
    walk, log = Walk(seed), GapLog()
    known_from = 0
    for number, length in enumerate(lengths):
        log.put(*(walk.step() for _ in range(length)))
        if number == cut_after and fold(walk.entries).genesis is not None:
            known_from = compact_without_history_snapshot(log).offset
        elif compact_or_die(log, retain, None):
            assert (
                earliest(log).view.offset == known_from
                if log.start() <= known_from + 1 and known_from
                else not untold(log)
            )
        assert told_by(log).items() <= digests_of(walk.entries).items() | {(-1, 0)}
    log.close()


@settings(max_examples=40, deadline=None)
@given(
    renewals=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    retain=retentions,
    dies_at=st.sampled_from([None, *Step]),
)
def test_a_copy_is_told_from_its_beginning(
    renewals: list[int], retain: Retention, dies_at: Step | None
) -> None:
    """A copy begins with its snapshot, which becomes the history snapshot when it is first
    replaced.
    """
    channel, log = channel_with("a:1"), GapLog()
    begin_copy(log, channel, base=BASE)
    digests = {BASE: channel.view.digest()}
    [genesis] = log.read(1, limit=1)
    apply(channel.view, BASE + genesis.offset, decode(genesis.data))
    digests[channel.view.offset] = channel.view.digest()
    for count in renewals:
        for _ in range(count):
            offset = channel.accept(propose.renewed(channel.author("a:1"), channel.broker("a:1")))
            log.put((offset - BASE, channel.entries[-1][1]))
            digests[offset] = channel.view.digest()
        is_whole = compact_or_die(log, retain, dies_at)
        assert told_by(log).items() <= digests.items()
        assert not untold(log) or not is_whole
        assert BASE in told_by(log) or log.start() > 1 or not is_whole
    log.close()
