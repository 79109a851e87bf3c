"""Read the history snapshot of a log: the view from which all that is left of the log can be folded.

`compaction.history_snapshot` moves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from equipoise.channel.core.errors import CompactedSnapshotDamaged, LogAccessDenied, LogDamaged, UnfitTopic
from equipoise.channel.core.log import Log
from equipoise.channel.core.snapshot_store import LOADS_MAX, Check, Progress, unchecked, unwatched
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.snapshot_rows import Marker, decode_marker, view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySnapshot:
    """A log's history snapshot: `marker` and `view` if the log leads on from it, and the `problem` if it is damaged.

    `rows` are its rows, even if it cannot be used. A history snapshot below the log's beginning is unusable, but not damaged.
    """

    rows: Mapping[str, bytes] = field(default_factory=dict)
    marker: Marker | None = None
    view: View | None = None
    problem: str | None = None


def history_snapshot_of(log: Log, *, check: Check = unchecked, progress: Progress = unwatched) -> HistorySnapshot:
    """Return the history snapshot of a log.

    Raises what `check`, `Log.start` and `SnapshotStore.load` raise, except damage and missing rights.
    """
    history_snapshot = HistorySnapshot()
    for _ in range(LOADS_MAX):
        # Before the load: a history snapshot moves before the log is cut, so one below this start is obsolete.
        start = log.start()
        try:
            image = log.history_snapshot().load(check=check, progress=progress)
            if image is None:
                return HistorySnapshot()
            history_snapshot = HistorySnapshot(rows=image.rows)
            marker = decode_marker(image.marker)
            if marker.log != log.identity or marker.position < start:
                return history_snapshot
            view = view_of(image, check=check)
        except (CompactedSnapshotDamaged, LogDamaged) as error:
            history_snapshot = HistorySnapshot(rows=history_snapshot.rows, problem=error.problem)
            continue
        except (LogAccessDenied, UnfitTopic) as error:  # Only the compactor needs it. A reader of the past can do without.
            return HistorySnapshot(problem=str(error))
        if marker.position >= log.start():
            return HistorySnapshot(rows=image.rows, marker=marker, view=view)
    return history_snapshot
