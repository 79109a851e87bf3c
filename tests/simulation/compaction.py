"""Compact the simulated log at random moments, and truncate it even below what readers have read.

The snapshot's rows, its marker and restored views come from the product's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from equipoise.channel.core.log import CompactedSnapshot
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.snapshot_rows import encode_marker, keys_of, marker_of, rows_of
from tests.simulation.clock import MICROSECONDS_PER_MS
from tests.simulation.faulty_log import FaultyLog
from tests.simulation.parts import Parts

# Of 1,000 compactions, how many remove all entries below the snapshot, so that any lagging reader
# must resync. Others keep some.
_ALL_PERMILLE: Final = 300


class Compactor:
    """Folds the log with its own lagging reader, and compacts it from time to time until `stop`."""

    def __init__(self, parts: Parts, log: FaultyLog) -> None:
        self._parts = parts
        self._log = log
        self._reader = log.reader()
        self._read = 0
        self._since = -1
        self._rows: Mapping[str, bytes] = {}
        self._stopped = False

    def begin(self) -> None:
        """Schedule the next compaction, if the scenario has any."""
        every_ms = self._parts.scenario.compact_every_ms
        if every_ms and not self._stopped:
            self._parts.schedule.after(
                self._parts.chance.about(every_ms) * MICROSECONDS_PER_MS, self._compact
            )

    def stop(self) -> None:
        """Stop compacting."""
        self._stopped = True

    def _compact(self) -> None:
        """Compact once: fold up to a random horizon, write the snapshot, and only then truncate."""
        log, chance = self._log, self._parts.chance
        horizon = chance.within((self._read, len(log.entries)))
        for entry in log.entries[self._read : horizon]:
            self._reader.feed(entry)
        self._read = horizon
        view = self._reader.view
        if view.genesis is not None and view.offset > self._since:
            log.keep_snapshot(self._image(view), horizon)
            cut = horizon if chance.happens(_ALL_PERMILLE) else chance.within((log.first, horizon))
            log.truncate(cut)
            self._parts.story.say(
                "compactor",
                "compacts up to offset {}, and leaves {} entries",
                view.offset,
                len(log.entries) - log.first,
            )
        if not self._stopped:
            self.begin()

    def _image(self, view: View) -> CompactedSnapshot:
        """Return the new snapshot: the previous one, with the rows that changed since."""
        rows = dict(self._rows)
        for row in rows_of(view, self._since, sorted(rows.keys() - keys_of(view))):
            if row.data is None:
                del rows[row.key]
            else:
                rows[row.key] = row.data
        self._rows, self._since = rows, view.offset
        return CompactedSnapshot(
            marker=encode_marker(marker_of(view, log=self._log.name)), rows=rows
        )
