"""Check a log's compacted and history snapshots, and compare them with the log.

`channel.snapshots.snapshot_rows` defines their content.
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
    """A snapshot's marker and its view at the horizon, where readable, and its problem, if any."""

    marker: Marker | None = None
    view: View | None = None
    problem: str | None = None


def facts_of_snapshot(log: Log, *, check: Check) -> SnapshotFacts:
    """Return the facts of a log's compacted snapshot. Raises what `check` and `SnapshotStore.load` raise, except damage."""
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
    """Return the facts of a log's history snapshot; none if the log's beginning has passed it. Raises what `history_snapshot_of` raises."""
    history_snapshot = history_snapshot_of(log, check=check)
    return SnapshotFacts(marker=history_snapshot.marker, view=history_snapshot.view, problem=history_snapshot.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The state that the marker of a `kind` records, still to be compared with the fold."""

    kind: Kind
    marker: Marker

    def is_due(self, view: View) -> bool:
        """Return whether the view has reached the horizon."""
        return view.offset >= self.marker.horizon

    def broken_by(self, view: View) -> str | None:
        """Return the mismatch with the view at the horizon; None if there is none."""
        if view.offset > self.marker.horizon:
            return "nothing stands there on the log"
        if view.digest() != self.marker.digest:
            return f"it has digest {self.marker.digest}, and the log folds to digest {view.digest()}"
        return None
