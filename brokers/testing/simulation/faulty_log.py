"""Keep the simulated log: one total order, and a reference reader that folds each record when it is appended.

Its only fault is gaps between offsets. Faults of appending are in `courier`, faults of reading in `host`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from equipoise.brokers.testing.simulation.stage import Stage
from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.snapshot_store import CompactedSnapshot
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.snapshot_rows import view_of

_GAP: Final = (1, 20)

# What SQLite skips on the first open after a restart of its machine.
_LEAP: Final = 1_000_000


class Witness(Protocol):
    """Receives every record."""

    def folded(self, folded: Folded, view: View) -> None:
        """Take a record that was just folded into `view`."""
        ...


class FaultyLog:
    """The log. `entries` are all its records in order; `on_append` registers readers.

    Entries before the index `first` are truncated: only the reference reader and the checkers still use them. A broker that needs one
    starts from `restored`.
    """

    def __init__(self, stage: Stage, *, cluster: str, witness: Witness) -> None:
        self.entries: list[Entry] = []
        self.reference = Reader(log="simulated", cluster=cluster)
        self._stage = stage
        self._witness = witness
        self.first = 0
        self._compacted_snapshot: tuple[int, CompactedSnapshot] | None = None
        self._readers: list[Callable[[], None]] = []
        self._next = FIRST_OFFSET

    @property
    def view(self) -> View:
        """The view of the reference reader, which has read everything."""
        return self.reference.view

    def on_append(self, reader: Callable[[], None]) -> None:
        """Call `reader` after every append."""
        self._readers.append(reader)

    def keep_snapshot(self, image: CompactedSnapshot, horizon: int) -> None:
        """Keep the snapshot of all entries before the index `horizon`."""
        self._compacted_snapshot = (horizon, image)

    def truncate(self, first: int) -> None:
        """Remove the entries before an index that the snapshot covers."""
        self.first = max(self.first, first)

    def restored(self) -> tuple[int, View | None]:
        """Return where a new reader starts: the index of the next entry, and the view of all before it (None: empty)."""
        if self._compacted_snapshot is None:
            return 0, None
        horizon, image = self._compacted_snapshot
        return horizon, view_of(image)

    def append(self, data: bytes) -> None:
        """Append a record to the log."""
        chance, faults = self._stage.chance, self._stage.faults
        if chance.happens(faults.gap_permille):
            self._next += chance.within(_GAP)
        if chance.happens(faults.leap_permille):
            self._next += _LEAP
        entry = Entry(self._next, data)
        self._next += 1
        self.entries.append(entry)
        folded = self.reference.feed(entry)
        self._stage.story.folded(folded)
        self._witness.folded(folded, self.view)
        for reader in self._readers:
            reader()
