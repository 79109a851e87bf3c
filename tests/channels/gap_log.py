"""A log in memory whose offsets may leap, as those of SQLite do after a restart, and those of Kafka
after each transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

from equipoise.channel.core.log import BATCH_ENTRIES_MAX, READ_ENTRIES_MAX, Entry, check_position
from equipoise.channel.log.memory_log import MemoryLog

_GAP = b"nothing stands here"
_numbers = count()


class GapLog(MemoryLog):
    """A log of its own, unless it is given the name of another one."""

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=f"memory:gaps-{next(_numbers)}" if name is None else name)

    def put(self, *entries: tuple[int, bytes]) -> None:
        """Append entries at offsets that rise from beyond the end."""
        for offset, data in entries:
            self.leap(offset - 1)
            assert [offset] == list(self.append([data], timeout_ms=0))

    def leap(self, end: int) -> None:
        """Issue offsets up to `end` at which nothing will stand."""
        while missing := end - self.end():
            self.append([_GAP] * min(missing, BATCH_ENTRIES_MAX), timeout_ms=0)

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        # Not by way of the log in memory, which would make an entry of each of the thousands of
        # offsets in a leap.
        storage = self._storage
        with storage.changed:
            check_position(self.name, position, start=storage.start, end=storage.end)
            records = storage.records[position - storage.start :]
        standing = (
            Entry(offset, data) for offset, data in enumerate(records, position) if data != _GAP
        )
        return list(islice(standing, min(limit, READ_ENTRIES_MAX)))
