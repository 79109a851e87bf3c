"""Read the history snapshot of a log, and decide whether the log can be folded without it.

The history snapshot is the view from which the rest of the log can be folded.
`compaction.history_snapshot` moves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from equipoise.channel.core.codec import decode
from equipoise.channel.core.errors import (
    CompactedSnapshotDamaged,
    LogAccessDenied,
    LogDamaged,
    UnfitTopic,
)
from equipoise.channel.core.log import FIRST_OFFSET, Log
from equipoise.channel.core.records import Genesis
from equipoise.channel.core.snapshot_store import LOADS_MAX, Check, Progress, unchecked, unwatched
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.snapshot_rows import Marker, decode_marker, view_of

PEEK_ENTRIES: Final = 100
"""Entries read at once to find the genesis of a log. It is the first entry, unless somebody wrote
garbage."""


def is_whole(log: Log) -> bool:
    """Return whether the log has its beginning and is not a copy, which begins with its snapshot.
    Raises what `Log.read` raises.

    A log without a genesis counts as whole. With a snapshot it may be a copy whose genesis is
    missing.
    """
    return log.start() == FIRST_OFFSET and not base_of(log)


def has_whole_channel(log: Log) -> bool:
    """Return whether the log holds the whole channel, undamaged up to its genesis. Raises what
    `Log.read` raises.
    """
    try:
        return log.start() == FIRST_OFFSET and base_of(log) == 0
    except LogDamaged:
        return False


def base_of(log: Log) -> int | None:
    """Return the base offset of a log that has its beginning: 0 if it is not a copy, None if it has
    no genesis.
    """
    position = FIRST_OFFSET
    while entries := log.read(position, limit=PEEK_ENTRIES):
        for entry in entries:
            record = decode(entry.data)
            if isinstance(record, Genesis):
                return record.base
        position = entries[-1].offset + 1
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSnapshot:
    """What a log has as a snapshot: its `marker` and `view`, where readable, and the `problem` if
    it is damaged.

    `rows` are its rows, even if it cannot be used.
    """

    rows: Mapping[str, bytes] = field(default_factory=dict)
    marker: Marker | None = None
    view: View | None = None
    problem: str | None = None


def history_snapshot_of(
    log: Log, *, check: Check = unchecked, progress: Progress = unwatched
) -> FoundSnapshot:
    """Return the history snapshot of a log. One that lies below the log's beginning is not damaged,
    but has no marker and no view.

    Raises what `check`, `Log.start` and `SnapshotStore.load` raise, except damage and missing
    rights.
    """
    history_snapshot = FoundSnapshot()
    for _ in range(LOADS_MAX):
        # Before the load: a history snapshot moves before the log is cut, so one below this start
        # is obsolete.
        start = log.start()
        try:
            image = log.history_snapshot().load(check=check, progress=progress)
            if image is None:
                return FoundSnapshot()
            history_snapshot = FoundSnapshot(rows=image.rows)
            marker = decode_marker(image.marker)
            if marker.log != log.identity or marker.position < start:
                return history_snapshot
            view = view_of(image, check=check)
        except (CompactedSnapshotDamaged, LogDamaged) as error:
            history_snapshot = FoundSnapshot(rows=history_snapshot.rows, problem=error.problem)
            continue
        except (LogAccessDenied, UnfitTopic) as error:
            # Only the compactor needs it. A reader of the past can do without.
            return FoundSnapshot(problem=str(error))
        if marker.position >= log.start():
            return FoundSnapshot(rows=image.rows, marker=marker, view=view)
    return history_snapshot
