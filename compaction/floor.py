"""The floor: the view just below where a log begins, kept so that what retention leaves on the log can be told, and not only read.

May live here: how a compaction moves the floor up to where it is going to cut the log. How a reader finds it is told in
`channel.snapshots.restore`.

What holds of a floor
* The log begins at the floor's position or below: nobody cuts it above, and nobody puts the floor lower. So from the floor on every
  record is there. One that a cut has passed nevertheless is none any more: then the twin told all that was left.
* While the log has its beginning and is no copy, zero is its floor, and none is written. Where the cut is at the horizon of the
  twin, the twin is the floor.
* Of a log whose past nobody kept, as a copy, or one that an earlier version cut, the present twin becomes the floor before it is
  replaced: the story then goes on from there. So it does where a record that only the past needs is damaged.

How it is moved
1. The floor is looked at. One that stands at the cut, or above, is left alone: another compactor died after it had moved it.
2. It is claimed, and looked at again: until then another compactor may have moved it.
3. The view at the cut is folded, from the highest view there is below: the twin's, the floor's, zero.
4. Its rows that the floor does not hold, tombstones for the keys that are gone, and the marker are written in one transaction.
5. The floor is read back, and must be byte for byte what was meant.

Where no record stands just below the cut, the floor's position is lower than that, and so becomes the cut; nothing stays for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.channel.core.errors import LogDamaged
from equipoise.channel.core.log import FIRST_OFFSET, READ_ENTRIES_MAX
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.twin import TwinImage, TwinRow
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.floor import Floor, floor_of
from equipoise.channel.snapshots.restore import Restoration
from equipoise.channel.snapshots.twin_rows import Marker, encode_marker, marker_of, rows_of, view_of
from equipoise.channel.snapshots.whole import is_told_from_zero
from equipoise.compaction.writing import FLOOR, Scribe, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorMove:
    """One move of the floor of the log that `scribe` writes for; `begun` is the twin as this compaction found it."""

    scribe: Scribe
    cluster: str | None
    begun: Restoration
    dry_run: bool

    def up_to(self, cut: int, marker: Marker) -> int:
        """Move the floor to the position `cut`, unless it is not needed; the position below which the log may then be cut.

        `marker` is that of the twin to be. Raises what `Scribe.write`, `Reader.feed` and the ports raise, and `LogTruncated` where
        another compactor cut the log meanwhile.
        """
        log = self.scribe.log
        from_zero = is_told_from_zero(log)
        if cut == marker.position or (from_zero and cut == FIRST_OFFSET):
            return cut
        floor = self._look()  # 1.
        if _reaches(floor, cut) or (floor.marker is None and not from_zero and self.begun.marker == marker):
            return cut
        if not self.dry_run:
            log.floor().claim(timeout_ms=self.scribe.timeout_ms)  # 2.
            self.scribe.step(Step.FLOOR_CLAIMED)
            floor = self._look()
            if _reaches(floor, cut):
                return cut
        view = self._view_at(cut, floor, from_zero=from_zero)  # 3.
        self.scribe.step(Step.FLOOR_FOLDED)
        if view.genesis is None:  # Nothing of the channel stands below the cut.
            return log.start()
        if not self.dry_run:
            self._write(floor, view)
        return min(cut, _position_after(view))

    def _look(self) -> Floor:
        return floor_of(self.scribe.log, check=self.scribe.check)

    def _view_at(self, cut: int, floor: Floor, *, from_zero: bool) -> View:
        """The view from which a reader goes on at `cut`; above it, if that is the lowest that there is."""
        try:
            return self._folded_to(cut, floor, from_zero=from_zero)
        except LogDamaged:
            present = self._present()
            if present is None:
                raise
            return present

    def _folded_to(self, cut: int, floor: Floor, *, from_zero: bool) -> View:
        log = self.scribe.log
        reader = Reader(log=log.name, cluster=self.cluster, view=self._highest_below(cut, floor, from_zero=from_zero))
        while reader.position < cut and (entries := log.read(reader.position, limit=READ_ENTRIES_MAX)):
            self.scribe.check()
            for entry in entries:
                if entry.offset >= cut:
                    return reader.view
                reader.feed(entry)
        return reader.view

    def _highest_below(self, cut: int, floor: Floor, *, from_zero: bool) -> View | None:
        """The view to begin with, or None for zero."""
        marker = self.begun.marker
        lowest = floor.view is None and not from_zero
        return self._present() if marker is not None and (lowest or marker.position <= cut) else floor.view

    def _present(self) -> View | None:
        """The view of the twin as it was found, if it could be used."""
        marker, rows = self.begun.marker, self.begun.rows
        return None if marker is None else view_of(TwinImage(marker=encode_marker(marker), rows=rows), check=self.scribe.check)

    def _write(self, floor: Floor, view: View) -> None:
        """Steps 4 and 5."""
        log = self.scribe.log
        rows = {key: data for key, data in rows_of(view, -1) if data is not None}
        changed = [TwinRow(key, data) for key, data in rows.items() if floor.rows.get(key) != data]
        gone = [TwinRow(key, None) for key in sorted(floor.rows.keys() - rows.keys())]
        meant = TwinImage(marker=encode_marker(marker_of(view, log=log.identity)), rows=rows)
        self.scribe.write(log.floor(), [*changed, *gone], meant, writing=FLOOR)


def _reaches(floor: Floor, cut: int) -> bool:
    return floor.marker is not None and floor.marker.position >= cut


def _position_after(view: View) -> int:
    return view.offset - view.base + 1
