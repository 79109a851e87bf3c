"""The history snapshot: the view just below the log's beginning, which gives the retained records their verdicts.

May live here: how a compaction moves the history snapshot up to where it is going to cut the log. How a reader finds it is told in
`channel.snapshots.restore`.

What holds of a history snapshot
* The log begins at the history snapshot's position or below: nobody cuts it above, and nobody puts the history snapshot lower. So from
the history snapshot on every
  record is there. One that a cut has passed nevertheless is none any more: then the snapshot told all that was left.
* While the log has its beginning and is no copy, zero is its history snapshot, and none is written. Where the cut is at the horizon of the
  snapshot, the snapshot is the history snapshot.
* Of a log whose past nobody kept, as a copy, or one that an earlier version cut, the present snapshot becomes the history snapshot before
it is
  replaced: the story then goes on from there. So it does where a record that only the past needs is damaged.

How it is moved
1. The history snapshot is looked at. One that stands at the cut, or above, is left alone: another compactor died after it had moved it.
2. It is claimed, and looked at again: until then another compactor may have moved it.
3. The view at the cut is folded, from the highest view there is below: the snapshot's, the history snapshot's, zero.
4. Its rows that the history snapshot does not hold, tombstones for the keys that are gone, and the marker are written in one transaction.
5. The history snapshot is read back, and must be byte for byte what was meant.

Where no record stands just below the cut, the history snapshot's position is lower than that, and so becomes the cut; nothing stays for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.channel.core.errors import LogDamaged
from equipoise.channel.core.log import FIRST_OFFSET, READ_ENTRIES_MAX
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.snapshot_store import CompactedSnapshot, SnapshotRow
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.history_snapshot import HistorySnapshot, history_snapshot_of
from equipoise.channel.snapshots.restore import Restoration
from equipoise.channel.snapshots.snapshot_rows import Marker, encode_marker, marker_of, rows_of, view_of
from equipoise.channel.snapshots.whole import is_told_from_zero
from equipoise.compaction.writing import HISTORY, Scribe, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySnapshotMove:
    """One move of the history snapshot of the log that `scribe` writes for; `begun` is the snapshot as this compaction found it."""

    scribe: Scribe
    cluster: str | None
    begun: Restoration
    dry_run: bool

    def up_to(self, cut: int, marker: Marker) -> int:
        """Move the history snapshot to the position `cut`, unless it is not needed; the position below which the log may then be cut.

        `marker` is that of the snapshot to be. Raises what `Scribe.write`, `Reader.feed` and the ports raise, and `LogTruncated` where
        another compactor cut the log meanwhile.
        """
        log = self.scribe.log
        from_zero = is_told_from_zero(log)
        if cut == marker.position or (from_zero and cut == FIRST_OFFSET):
            return cut
        history_snapshot = self._look()  # 1.
        if _reaches(history_snapshot, cut) or (history_snapshot.marker is None and not from_zero and self.begun.marker == marker):
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

    def _look(self) -> HistorySnapshot:
        return history_snapshot_of(self.scribe.log, check=self.scribe.check)

    def _view_at(self, cut: int, history_snapshot: HistorySnapshot, *, from_zero: bool) -> View:
        """The view from which a reader goes on at `cut`; above it, if that is the lowest that there is."""
        try:
            return self._folded_to(cut, history_snapshot, from_zero=from_zero)
        except LogDamaged:
            present = self._present()
            if present is None:
                raise
            return present

    def _folded_to(self, cut: int, history_snapshot: HistorySnapshot, *, from_zero: bool) -> View:
        log = self.scribe.log
        reader = Reader(log=log.name, cluster=self.cluster, view=self._highest_below(cut, history_snapshot, from_zero=from_zero))
        while reader.position < cut and (entries := log.read(reader.position, limit=READ_ENTRIES_MAX)):
            self.scribe.check()
            for entry in entries:
                if entry.offset >= cut:
                    return reader.view
                reader.feed(entry)
        return reader.view

    def _highest_below(self, cut: int, history_snapshot: HistorySnapshot, *, from_zero: bool) -> View | None:
        """The view to begin with, or None for zero."""
        marker = self.begun.marker
        lowest = history_snapshot.view is None and not from_zero
        return self._present() if marker is not None and (lowest or marker.position <= cut) else history_snapshot.view

    def _present(self) -> View | None:
        """The view of the snapshot as it was found, if it could be used."""
        marker, rows = self.begun.marker, self.begun.rows
        return None if marker is None else view_of(CompactedSnapshot(marker=encode_marker(marker), rows=rows), check=self.scribe.check)

    def _write(self, history_snapshot: HistorySnapshot, view: View) -> None:
        """Steps 4 and 5."""
        log = self.scribe.log
        rows = {key: data for key, data in rows_of(view, -1) if data is not None}
        changed = [SnapshotRow(key, data) for key, data in rows.items() if history_snapshot.rows.get(key) != data]
        gone = [SnapshotRow(key, None) for key in sorted(history_snapshot.rows.keys() - rows.keys())]
        meant = CompactedSnapshot(marker=encode_marker(marker_of(view, log=log.identity)), rows=rows)
        self.scribe.write(log.history_snapshot(), [*changed, *gone], meant, writing=HISTORY)


def _reaches(history_snapshot: HistorySnapshot, cut: int) -> bool:
    return history_snapshot.marker is not None and history_snapshot.marker.position >= cut


def _position_after(view: View) -> int:
    return view.offset - view.base + 1
