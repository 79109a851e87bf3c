"""Random channels that are compacted, by compactors that die and overtake one another, until
something is not as it must be. See tests.channels.hunting.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from equipoise.channel.core import propose
from equipoise.channel.core.codec import decode
from equipoise.channel.core.errors import LogTruncated, OperatorError, SnapshotFenced
from equipoise.channel.core.view import View, apply
from equipoise.channel.snapshots.restore import earliest
from equipoise.channel.snapshots.snapshot_rows import history_snapshot_of
from equipoise.compaction.compactor import Compacted, Step, compact
from equipoise.compaction.retention import Retention
from tests.channels.compacting import (
    NOTHING,
    TIMEOUT_MS,
    all_of,
    all_rows,
    compacted,
    digests_of,
    fold,
    image_of,
    marker_in,
    restored_to_end,
    told_by,
    untold,
)
from tests.channels.folding import channel_with
from tests.channels.gap_log import GapLog
from tests.channels.hunting import ViolationError, hunt, require
from tests.channels.walk import Walk

SCENARIO = "compactor"
RECORDS_MAX = 40


class DiedError(Exception):
    """What a compactor dies of."""


def play(seed: int) -> None:
    """One channel, compacted some times, each time perhaps by one that dies or is overtaken."""
    rng, walk, log = random.Random(seed), Walk(seed), GapLog()
    other = GapLog(name=log.name)
    retain = rng.choice(
        (
            Retention(unit="offsets", amount=rng.choice((0, 0, 5, RECORDS_MAX))),
            Retention(unit="bytes", amount=rng.randrange(8_000)),
        )
    )
    # As one that kept nothing leaves it: then nothing but the snapshot tells of what was.
    if rng.random() < 1 / 2:
        log.put(*(walk.step() for _ in range(rng.randrange(RECORDS_MAX))))
        compacted_or_parted(walk, log)
    for _ in range(rng.randrange(2, 7)):
        log.put(*(walk.step() for _ in range(rng.randrange(RECORDS_MAX))))
        with suppress(DiedError, SnapshotFenced, LogTruncated):
            is_done = compacted_or_parted(
                walk, log, retain=retain, step=_trouble(rng, walk, other, retain)
            )
            require(
                not is_done or not untold(log),
                "all that a compaction leaves can be told",
            )
        require(
            all_of(fold(walk.entries)) == all_of(restored_to_end(log)), "restore == fold from zero"
        )
        require(
            told_by(log).items() <= (digests_of(walk.entries) | {-1: 0}).items(),
            "what can be told is what a fold from zero tells",
        )
        history_snapshot = history_snapshot_of(log).marker
        # One that died may not have cut yet what it was to cut, which needs not be told.
        between = not retain.amount or (
            history_snapshot is not None and history_snapshot.position == earliest(log).position
        )
        require(between or not untold(log), "what stays on the log can be told")
    done = compacted_or_parted(walk, log)
    view = fold(walk.entries)
    if view.genesis is not None and done is not None:
        require(all_rows(view) == image_of(log).rows, "a snapshot holds each key as it is now")
        require(
            (view.offset, view.digest()) == (done.horizon, done.digest),
            "a snapshot reaches the end",
        )
        require(
            sum(len(data) for _, data in walk.entries) == marker_in(log).bytes_below,
            "a snapshot says how many bytes it stands for",
        )
    log.close()
    other.close()


def compacted_or_parted(
    walk: Walk,
    log: GapLog,
    *,
    retain: Retention = NOTHING,
    step: Callable[[str], None] = lambda _: None,
) -> Compacted | None:
    """What a compaction came to; None if it was refused, because a renewal of the walk bears a
    digest that was never its view's.
    """
    try:
        return compacted(log, retain=retain, step=step)
    except OperatorError as refusal:
        view = View()
        diverged = [apply(view, offset, decode(data)).diverged for offset, data in walk.entries]
        if refusal.code != "CompactionRefused" or not any(diverged):
            raise
        return None


def _trouble(
    rng: random.Random, walk: Walk, other: GapLog, retain: Retention
) -> Callable[[str], None]:
    """What happens to a compactor at one of its steps."""
    where = rng.choice((None, None, *Step))
    what = rng.choice(("dies", "is written past", "is overtaken"))

    def step(told: str) -> None:
        if told != where:
            return
        if what == "dies":
            raise DiedError
        other.put(*(walk.step() for _ in range(rng.randrange(RECORDS_MAX))))
        if what == "is overtaken":
            compacted_or_parted(walk, other, retain=retain)

    return step


def keep_what_must_stay() -> None:
    """The newest ten minutes stay, and so does everything while somebody's view is another."""
    channel, log = channel_with("a:1"), GapLog()
    log.put(*channel.entries)
    compact(log, retain=NOTHING, timeout_ms=TIMEOUT_MS)
    require(log.start() == 1, "the newest ten minutes stay")
    channel.put(
        propose.renewed(channel.author("a:1"), replace(channel.broker("a:1"), digest_after=1))
    )
    log.put(channel.entries[-1])
    try:
        compacted(log)
    except OperatorError as refusal:
        require(refusal.code == "CompactionRefused", str(refusal))
    else:
        raise ViolationError("a view that somebody parted from is not written")
    log.close()


def _play(seed: int) -> None:
    keep_what_must_stay()
    play(seed)


if __name__ == "__main__":
    sys.exit(hunt(SCENARIO, _play, no_error="no compactor fails"))
