"""Check a log's snapshot and history snapshot by themselves, and compare the log with them.

May live here: the looks that `channel.inspect.verify` takes at both. What they should hold is told in `channel.snapshots.snapshot_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.channel.core.errors import CompactedSnapshotDamaged, LogDamaged
from equipoise.channel.core.log import Log
from equipoise.channel.core.snapshot_store import Check
from equipoise.channel.core.view import View
from equipoise.channel.inspect.findings import Kind
from equipoise.channel.snapshots.history_snapshot import history_snapshot_of
from equipoise.channel.snapshots.snapshot_rows import Marker, check_log, decode_marker, view_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """What there is: a marker, if it can be read; the view at its horizon, if the rows give it; the problem, if there is one."""

    marker: Marker | None = None
    view: View | None = None
    problem: str | None = None


def facts_of_snapshot(log: Log, *, check: Check) -> SnapshotFacts:
    """What a log's snapshot is. Raises what `check` raises, and what `SnapshotStore.load` raises but for damage."""
    marker: Marker | None = None
    try:
        image = log.compacted_snapshot().load(check=check)
        if image is None:
            return SnapshotFacts()
        marker = decode_marker(image.marker)
        check_log(marker, log.identity)
        view = view_of(image, check=check)
    except (CompactedSnapshotDamaged, LogDamaged) as error:
        return SnapshotFacts(marker=marker, problem=error.problem)
    return SnapshotFacts(marker=marker, view=view)


def facts_of_history(log: Log, *, check: Check) -> SnapshotFacts:
    """What a log's history snapshot is; nothing, if the log's beginning has passed it. Raises what `history_snapshot_of` raises."""
    history_snapshot = history_snapshot_of(log, check=check)
    return SnapshotFacts(marker=history_snapshot.marker, view=history_snapshot.view, problem=history_snapshot.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the marker of a `kind` says the log comes to, which it is still to be compared with."""

    kind: Kind
    marker: Marker

    def is_due(self, view: View) -> bool:
        """Whether the view has come to the horizon."""
        return view.offset >= self.marker.horizon

    def broken_by(self, view: View) -> str | None:
        """What is wrong with it, once it is due; None if nothing is."""
        if view.offset > self.marker.horizon:
            return "nothing stands there on the log"
        if view.digest() != self.marker.digest:
            return f"it has digest {self.marker.digest}, and the log folds to digest {view.digest()}"
        return None
