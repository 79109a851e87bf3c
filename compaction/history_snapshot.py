"""Move the history snapshot, the view just below the log's beginning, from which the retained
records are folded.

`channel.snapshots.restore` is the reader's side.

Invariants
* The log begins at the history snapshot's position or below: nobody cuts above it or moves it down.
  So every record from it on exists. A history snapshot below the log's beginning is obsolete: the
  compacted snapshot covers all that is left.
* A log that has its beginning and is not a copy needs none: it is folded from zero. If the cut is
  at the compacted snapshot's horizon, that snapshot replaces it.
* A log without a kept past (a copy, or a log that was cut without it) takes its compacted snapshot,
  before that is replaced. So does a log with a damaged record that only the past needs.

How it is moved
1. Look at the history snapshot. If it stands at the cut or above, leave it: another compactor moved
   it and died.
2. Claim it and look again: another compactor may have moved it meanwhile.
3. Fold the view at the cut, from the highest view below: the compacted snapshot's, the history
   snapshot's, or zero.
4. Write the rows that differ, tombstones for removed keys, and the marker in one transaction.
5. Read it back: it must be equal byte for byte.

If no record stands just below the cut, the history snapshot's position is lower and becomes the
cut.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.channel.core.errors import LogDamaged
from equipoise.channel.core.log import (
    FIRST_OFFSET,
    READ_ENTRIES_MAX,
    CompactedSnapshot,
    SnapshotRow,
)
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.restore import Restoration
from equipoise.channel.snapshots.snapshot_rows import (
    FoundSnapshot,
    Marker,
    encode_marker,
    has_whole_channel,
    history_snapshot_of,
    marker_of,
    rows_of,
    view_of,
)
from equipoise.compaction.writing import HISTORY, Scribe, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySnapshotMove:
    """One move of the history snapshot of the log that `scribe` writes for. `begun` is the
    compacted snapshot as found.
    """

    scribe: Scribe
    cluster: str | None
    begun: Restoration
    dry_run: bool

    def up_to(self, cut: int, marker: Marker) -> int:
        """Move the history snapshot to position `cut`, if needed. Return the position below which
        the log may be cut.

        `marker` is the next compacted snapshot's. Raises what `Scribe.write`, `Reader.feed` and the
        ports raise, and `LogTruncated` if another compactor cut the log meanwhile.
        """
        log = self.scribe.log
        from_zero = has_whole_channel(log)
        if cut == marker.position or (from_zero and cut == FIRST_OFFSET):
            return cut
        history_snapshot = self._look()  # 1.
        if _reaches(history_snapshot, cut) or (
            history_snapshot.marker is None and not from_zero and self.begun.marker == marker
        ):
            return cut
        if not self.dry_run:
            log.history_snapshot().claim(timeout_ms=self.scribe.timeout_ms)  # 2.
            self.scribe.step(Step.HISTORY_CLAIMED)
            history_snapshot = self._look()
            if _reaches(history_snapshot, cut):
                return cut
        view = self._view_at(cut, history_snapshot, from_zero=from_zero)  # 3.
        self.scribe.step(Step.HISTORY_FOLDED)
        if view.genesis is None:  # Nothing of the channel stands below the cut.
            return log.start()
        if not self.dry_run:
            self._write(history_snapshot, view)
        return min(cut, _position_after(view))

    def _look(self) -> FoundSnapshot:
        return history_snapshot_of(self.scribe.log, check=self.scribe.check)

    def _view_at(self, cut: int, history_snapshot: FoundSnapshot, *, from_zero: bool) -> View:
        """Return the view from which a reader goes on at `cut`. If a record below is damaged,
        return the compacted snapshot's view.
        """
        try:
            return self._folded_to(cut, history_snapshot, from_zero=from_zero)
        except LogDamaged:
            present = self._present()
            if present is None:
                raise
            return present

    def _folded_to(self, cut: int, history_snapshot: FoundSnapshot, *, from_zero: bool) -> View:
        log = self.scribe.log
        reader = Reader(
            log=log.name,
            cluster=self.cluster,
            view=self._highest_below(cut, history_snapshot, from_zero=from_zero),
        )
        while reader.position < cut and (
            entries := log.read(reader.position, limit=READ_ENTRIES_MAX)
        ):
            self.scribe.check()
            for entry in entries:
                if entry.offset >= cut:
                    return reader.view
                reader.feed(entry)
        return reader.view

    def _highest_below(
        self, cut: int, history_snapshot: FoundSnapshot, *, from_zero: bool
    ) -> View | None:
        """Return the view to begin with, or None for zero."""
        marker = self.begun.marker
        lowest = history_snapshot.view is None and not from_zero
        return (
            self._present()
            if marker is not None and (lowest or marker.position <= cut)
            else history_snapshot.view
        )

    def _present(self) -> View | None:
        """Return the view of the compacted snapshot as found, if usable."""
        marker, rows = self.begun.marker, self.begun.rows
        return (
            None
            if marker is None
            else view_of(
                CompactedSnapshot(marker=encode_marker(marker), rows=rows), check=self.scribe.check
            )
        )

    def _write(self, history_snapshot: FoundSnapshot, view: View) -> None:
        """Run steps 4 and 5."""
        log = self.scribe.log
        rows = {key: data for key, data in rows_of(view, -1) if data is not None}
        changed = [
            SnapshotRow(key, data)
            for key, data in rows.items()
            if history_snapshot.rows.get(key) != data
        ]
        gone = [
            SnapshotRow(key, None) for key in sorted(history_snapshot.rows.keys() - rows.keys())
        ]
        meant = CompactedSnapshot(
            marker=encode_marker(marker_of(view, log=log.identity)), rows=rows
        )
        self.scribe.write(log.history_snapshot(), [*changed, *gone], meant, writing=HISTORY)


def _reaches(history_snapshot: FoundSnapshot, cut: int) -> bool:
    return history_snapshot.marker is not None and history_snapshot.marker.position >= cut


def _position_after(view: View) -> int:
    return view.offset - view.base + 1
