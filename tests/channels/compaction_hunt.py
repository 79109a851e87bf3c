"""Random channels that are compacted, by compactors that die and overtake one another, until
something is not as it must be.

`python -m tests.channels.compaction_hunt --seeds N` prints the first violation and exits with 1, as
`python -m tests.simulation` does; tests.mutants runs it over a product in which
one rule of compaction is broken.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from equipoise.channel.core import propose
from equipoise.channel.core.errors import (
    CompactionRefused,
    EquipoiseError,
    LogTruncated,
    SnapshotFenced,
)
from equipoise.channel.snapshots.history_snapshot import history_snapshot_of
from equipoise.channel.snapshots.restore import earliest
from equipoise.compaction.compactor import compact
from equipoise.compaction.retention import Retention
from equipoise.compaction.writing import Step
from tests.channels.compacting import (
    NOTHING,
    TIMEOUT_MS,
    all_of,
    all_rows,
    compacted,
    digests_of,
    fold,
    image_of,
    restored_to_end,
    told_by,
    untold,
)
from tests.channels.folding import channel_with
from tests.channels.gap_log import GapLog
from tests.channels.walk import Walk

SCENARIO = "compactor"
RECORDS_MAX = 40


class ViolationError(Exception):
    """Something that must hold does not; its text says what."""


class DiedError(Exception):
    """What a compactor dies of."""


def require(holds: bool, what: str) -> None:
    """Complain unless it holds."""
    if not holds:
        raise ViolationError(what)


def play(seed: int) -> None:
    """One channel, compacted some times, each time perhaps by one that dies or is overtaken."""
    rng, walk, log = random.Random(seed), Walk(seed), GapLog()
    other = GapLog(name=log.name)
    retain = Retention(unit="offsets", amount=rng.choice((0, 0, 5, RECORDS_MAX)))
    # As one that kept nothing leaves it: then nothing but the snapshot tells of what was.
    if rng.random() < 1 / 2:
        log.put(*(walk.step() for _ in range(rng.randrange(RECORDS_MAX))))
        compacted(log)
    for _ in range(rng.randrange(2, 7)):
        log.put(*(walk.step() for _ in range(rng.randrange(RECORDS_MAX))))
        with suppress(DiedError, SnapshotFenced, LogTruncated):
            compacted(log, retain=retain, step=_trouble(rng, walk, other, retain))
            require(not untold(log), "all that a compaction leaves on the log can be told")
        require(
            all_of(fold(walk.entries)) == all_of(restored_to_end(log)), "restore == fold from zero"
        )
        require(
            told_by(log).items() <= digests_of(walk.entries).items(),
            "what can be told is what a fold from zero tells",
        )
        history_snapshot = history_snapshot_of(log).marker
        # One that died may not have cut yet what it was to cut, which needs not be told.
        between = not retain.amount or (
            history_snapshot is not None and history_snapshot.position == earliest(log).position
        )
        require(between or not untold(log), "what stays on the log can be told")
    done = compacted(log)
    view = fold(walk.entries)
    if view.genesis is not None:
        require(all_rows(view) == image_of(log).rows, "a snapshot holds each key as it is now")
        require(
            (view.offset, view.digest()) == (done.horizon, done.digest),
            "a snapshot reaches the end",
        )
    log.close()
    other.close()


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
            compacted(other, retain=retain)

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
    with suppress(CompactionRefused):
        compacted(log)
        raise ViolationError("a view that somebody parted from is not written")
    log.close()


def main() -> int:
    """Hunt, seed after seed."""
    parser = argparse.ArgumentParser(prog="tests.channels.compaction_hunt")
    parser.add_argument("--seeds", type=int, default=100)
    for seed in range(parser.parse_args().seeds):
        try:
            keep_what_must_stay()
            play(seed)
        except (ViolationError, EquipoiseError) as error:
            print(f"scenario {SCENARIO}, seed {seed};")
            print(
                "VIOLATION of"
                f" {error if isinstance(error, ViolationError) else f'no compactor fails: {type(error).__name__}: {error}'}"  # noqa: E501
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
