"""The history snapshot of a log, wherever that is compacted and whoever dies at it: what stays on
the log can be told, view for view.
"""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode
from equipoise.channel.core.errors import CompactionRefused
from equipoise.channel.core.view import apply
from equipoise.channel.snapshots.history_snapshot import history_snapshot_of
from equipoise.channel.snapshots.restore import earliest
from equipoise.compaction.retention import Retention
from equipoise.compaction.writing import Step
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
from tests.channels.folding import channel_with
from tests.channels.gap_log import GapLog
from tests.channels.walk import Walk

RECORDS_MAX = 40
BASE = 1_000


class DiedError(Exception):
    """What a compactor dies of."""


seeds = st.integers(0, 2**32)
retentions = st.one_of(
    st.builds(Retention, unit=st.just("offsets"), amount=st.integers(0, 2 * RECORDS_MAX)),
    st.builds(Retention, unit=st.just("bytes"), amount=st.integers(0, 8_000)),
)
rounds = st.lists(
    st.tuples(st.integers(0, RECORDS_MAX), retentions, st.sampled_from([None, None, *Step])),
    min_size=1,
    max_size=8,
)


def compact_or_die(log: GapLog, retain: Retention, dies_at: Step | None) -> bool:
    """Compact, as far as it comes; whether it came to its end. It is refused where a renewal of the
    walk bears a digest of no view.
    """

    def step(told: str) -> None:
        if told == dies_at:
            raise DiedError

    with suppress(DiedError, CompactionRefused):
        compacted(log, retain=retain, step=step)
        return True
    return False


@settings(max_examples=60, deadline=None)
@given(seed=seeds, rounds=rounds)
def test_all_that_stays_on_the_log_can_be_told(
    seed: int, rounds: list[tuple[int, Retention, Step | None]]
) -> None:
    """From the history snapshot on, the view after each record equals that of a fold from zero."""
    walk, log = Walk(seed), GapLog()
    for length, retain, dies_at in rounds:
        log.put(*(walk.step() for _ in range(length)))
        compact_or_die(log, retain, dies_at)
        assert told_by(log).items() <= digests_of(walk.entries).items() | {(-1, 0)}
        assert all_of(fold(walk.entries)) == all_of(restored_to_end(log))
        history_snapshot = history_snapshot_of(log)
        assert history_snapshot.problem is None
        assert history_snapshot.marker is None or history_snapshot.marker.position >= log.start()
        # One that died may not have cut yet what it was to cut, which needs not be told.
        between = not retain.amount or (
            history_snapshot.marker is not None
            and history_snapshot.marker.position == earliest(log).position
        )
        assert between or not untold(log)
    log.close()


@settings(max_examples=40, deadline=None)
@given(
    seed=seeds,
    lengths=st.lists(st.integers(0, RECORDS_MAX), min_size=1, max_size=8),
    retain=retentions,
)
def test_nothing_that_stays_is_untold(seed: int, lengths: list[int], retain: Retention) -> None:
    """As long as nobody dies, everything that one retention leaves on the log can be told, by all
    commands that look back.
    """
    walk, log = Walk(seed), GapLog()
    for length in lengths:
        log.put(*(walk.step() for _ in range(length)))
        compact_or_die(log, retain, None)
        assert [] == untold(log)
    log.close()


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
