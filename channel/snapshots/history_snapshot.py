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
class FoundSnapshot:
    """What a log has as a snapshot: its `marker` and `view`, where readable, and the `problem` if it is damaged.

    `rows` are its rows, even if it cannot be used.
    """

    rows: Mapping[str, bytes] = field(default_factory=dict)
    marker: Marker | None = None
    view: View | None = None
    problem: str | None = None


def history_snapshot_of(log: Log, *, check: Check = unchecked, progress: Progress = unwatched) -> FoundSnapshot:
    """Return the history snapshot of a log. One that lies below the log's beginning is not damaged, but has no marker and no view.

    Raises what `check`, `Log.start` and `SnapshotStore.load` raise, except damage and missing rights.
    """
    history_snapshot = FoundSnapshot()
    for _ in range(LOADS_MAX):
        # Before the load: a history snapshot moves before the log is cut, so one below this start is obsolete.
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
        except (LogAccessDenied, UnfitTopic) as error:  # Only the compactor needs it. A reader of the past can do without.
            return FoundSnapshot(problem=str(error))
        if marker.position >= log.start():
            return FoundSnapshot(rows=image.rows, marker=marker, view=view)
    return history_snapshot
