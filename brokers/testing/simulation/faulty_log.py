"""The log of a run: one total order, and a reference reader that folds every record once, as it comes to stand on it.

May live here: what stands on the log. Its faults are on the way to it (`courier`) and on the way from it (`host`); of its
own it has but gaps between offsets.
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

# What SQLite leaves out on the first open after a restart of its machine.
_LEAP: Final = 1_000_000


class Witness(Protocol):
    """Who is told of every record."""

    def folded(self, folded: Folded, view: View) -> None:
        """It has folded a record into `view`."""
        ...


class FaultyLog:
    """The log. `entries` are all its records in order; whoever wants to read on asks to be called with `on_append`.

    Those before the index `first` were truncated: only the reference reader, and who checks, still knows them. A broker that
    wants one of them has to begin with `restored`.
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
        """Call `reader` whenever there is something new to read."""
        self._readers.append(reader)

    def keep_snapshot(self, image: CompactedSnapshot, horizon: int) -> None:
        """Keep the snapshot of all entries before the index `horizon`."""
        self._compacted_snapshot = (horizon, image)

    def truncate(self, first: int) -> None:
        """Cut off the entries before an index, which the snapshot covers."""
        self.first = max(self.first, first)

    def restored(self) -> tuple[int, View | None]:
        """Where who has nothing that leads on begins: the index of the next entry, and the view of all before; None is empty."""
        if self._compacted_snapshot is None:
            return 0, None
        horizon, image = self._compacted_snapshot
        return horizon, view_of(image)

    def append(self, data: bytes) -> None:
        """Put a record on the log."""
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
