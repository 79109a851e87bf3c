"""The log of a simulation: with gaps between offsets, and truncation."""

from __future__ import annotations

from collections.abc import Callable

from equipoise.brokers.testing.agent_host import SharedLog
from equipoise.channel.core.log import CompactedSnapshot
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View
from equipoise.channel.snapshots.snapshot_rows import view_of


class FaultyLog(SharedLog):
    """Entries before the index `first` are truncated: only the reference reader and the checkers
    still use them. A broker that needs one starts from `restored`.

    `on_append` registers readers.
    """

    def __init__(
        self,
        *,
        name: str,
        cluster: str,
        folded: Callable[[Folded, View], None],
        gap: Callable[[], int] = lambda: 0,
    ) -> None:
        """`gap` returns the offsets to skip before the next record."""
        super().__init__(name=name, cluster=cluster, folded=folded)
        self.first = 0
        self._gap = gap
        self._compacted_snapshot: tuple[int, CompactedSnapshot] | None = None
        self._readers: list[Callable[[], None]] = []

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
        """Append a record, behind a gap."""
        self.skip(self._gap())
        super().append(data)
        for reader in self._readers:
            reader()
