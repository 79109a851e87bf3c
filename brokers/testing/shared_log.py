"""Keep the log of a simulated cluster in memory: one total order, and a reference reader that folds
each record at once.

Its only faults are gaps between offsets and truncation. The authors' links and the brokers' hosts
add the others.
"""

from __future__ import annotations

from collections.abc import Callable

from equipoise.channel.core.log import FIRST_OFFSET, Entry
from equipoise.channel.core.reader import Folded, Reader
from equipoise.channel.core.snapshot_store import CompactedSnapshot
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.snapshot_rows import view_of


class SharedLog:
    """The log. `entries` are all its records in order; `on_append` registers readers.

    Entries before the index `first` are truncated: only the reference reader and the checkers still
    use them. A broker that needs one starts from `restored`.
    """

    def __init__(
        self,
        *,
        name: str,
        cluster: str,
        folded: Callable[[Folded, View], None],
        gap: Callable[[], int] = lambda: 0,
    ) -> None:
        """`folded` takes each record that the reference reader has folded. `gap` returns the
        offsets to skip before the next record.
        """
        self.name = name
        self.cluster = cluster
        self.entries: list[Entry] = []
        self.first = 0
        self.reference = self.reader()
        self._folded = folded
        self._gap = gap
        self._compacted_snapshot: tuple[int, CompactedSnapshot] | None = None
        self._readers: list[Callable[[], None]] = []
        self._next = FIRST_OFFSET

    def reader(self, view: View | None = None) -> Reader:
        """Return a new reader that starts from `view` (None: from the beginning)."""
        return Reader(log=self.name, cluster=self.cluster, view=view)

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
        """Return where a new reader starts: the index of the next entry, and the view of all before
        it (None: empty).
        """
        if self._compacted_snapshot is None:
            return 0, None
        horizon, image = self._compacted_snapshot
        return horizon, view_of(image)

    def skip(self, offsets: int) -> None:
        """Leave a gap before the next record."""
        self._next += offsets

    def append(self, data: bytes) -> None:
        """Append a record."""
        self.skip(self._gap())
        entry = Entry(self._next, data)
        self._next += 1
        self.entries.append(entry)
        self._folded(self.reference.feed(entry), self.view)
        for reader in self._readers:
            reader()
