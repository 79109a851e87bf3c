"""Keep a `Log` with its snapshots in memory, shared by name between the threads of one process, for
tests and in-process clusters.

A log lives as long as a handle on it is open, so that consecutive tests with the same name do not
share data.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

from equipoise.channel.core.errors import SnapshotFenced
from equipoise.channel.core.log import (
    FIRST_OFFSET,
    READ_BYTES_MAX,
    READ_ENTRIES_MAX,
    Check,
    CompactedSnapshot,
    Entry,
    Progress,
    SnapshotRow,
    check_batch,
    check_position,
    replaced,
    unchecked,
    unwatched,
)
from equipoise.channel.core.side_log import Document, Kept, SideTopic
from equipoise.channel.system.clocks import ahead_by, next_ms, position_by

_NO_CLAIM: Final = -1
"""Never the newest claim."""


class SnapshotStorage:
    """The state that all handles of one name share. Hold `lock` to touch any field. An image is
    never changed.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.claim = 0
        self.image: CompactedSnapshot | None = None


class MemorySnapshotStore:
    """The snapshot in `storage`. See `SnapshotStore` for the contract."""

    def __init__(self, storage: SnapshotStorage, *, name: str) -> None:
        """`name` is the log's URL, for messages."""
        self._storage = storage
        self._name = name
        self._claim = _NO_CLAIM

    # Nobody holds this snapshot for long.
    def claim(self, *, timeout_ms: int) -> None:  # noqa: ARG002
        """See `SnapshotStore.claim`."""
        storage = self._storage
        with storage.lock:
            storage.claim += 1
            self._claim = storage.claim

    def load(
        self, *, check: Check = unchecked, progress: Progress = unwatched
    ) -> CompactedSnapshot | None:
        """See `SnapshotStore.load`."""
        check()
        with self._storage.lock:
            image = self._storage.image
        if image is not None:
            progress(len(image.rows), len(image.rows))
        return image

    # As `claim`.
    def replace(self, rows: Iterable[SnapshotRow], marker: bytes, *, timeout_ms: int) -> None:  # noqa: ARG002
        """See `SnapshotStore.replace`."""
        claim, self._claim = self._claim, _NO_CLAIM
        changes = list(rows)
        storage = self._storage
        with storage.lock:
            if storage.claim != claim:
                raise SnapshotFenced(log=self._name)
            before = {} if storage.image is None else storage.image.rows
            storage.image = CompactedSnapshot(marker=marker, rows=replaced(before, changes))
        self._claim = claim


class _Storage:
    """The state that all handles of one name share. Access it only while `changed` is held."""

    def __init__(self) -> None:
        self.identity = uuid.uuid4().hex
        self.changed = threading.Condition()
        self.start = FIRST_OFFSET
        # The record at offset `start + i` is at index i: this log has no gaps.
        self.records: list[bytes] = []
        self.appended_ms: list[int] = []  # When each record was appended.
        self.compacted_snapshot = SnapshotStorage()
        self.history_snapshot = SnapshotStorage()

    @property
    def end(self) -> int:
        """The offset of the last record, even if it is truncated."""
        return self.start + len(self.records) - 1


_storages: WeakValueDictionary[str, _Storage] = WeakValueDictionary()
_storages_lock = threading.Lock()


class MemoryLog:
    """A handle on the in-memory log `name`, which the first handle creates. See `Log` for the
    contract.
    """

    def __init__(self, *, name: str) -> None:
        """`name` is the URL, such as `memory:test`."""
        self.name = name
        self._woken = False
        with _storages_lock:
            self._storage = _storages.setdefault(name, _Storage())
        self.identity = self._storage.identity
        self._compacted_snapshot = MemorySnapshotStore(self._storage.compacted_snapshot, name=name)
        self._history_snapshot = MemorySnapshotStore(self._storage.history_snapshot, name=name)

    # This log is never locked for long.
    def append(self, batch: Sequence[bytes], *, timeout_ms: int) -> Sequence[int]:  # noqa: ARG002
        """See `Log.append`."""
        check_batch(self.name, batch)
        storage = self._storage
        with storage.changed:
            first = storage.end + 1
            now_ms = next_ms(storage.appended_ms[-1] if storage.appended_ms else 0)
            storage.records.extend(map(bytes, batch))
            storage.appended_ms.extend([now_ms] * len(batch))
            storage.changed.notify_all()
        return range(first, first + len(batch))

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        """See `Log.read`."""
        assert limit > 0, "a read of no entries cannot tell the end from a limit"
        storage = self._storage
        with storage.changed:
            check_position(self.name, position, start=storage.start, end=storage.end)
            first = position - storage.start
            records = storage.records[first : first + min(limit, READ_ENTRIES_MAX)]
        entries: list[Entry] = []
        entries_bytes = 0
        for offset, data in enumerate(records, position):
            if entries_bytes > READ_BYTES_MAX:
                break
            entries_bytes += len(data)
            entries.append(Entry(offset, data))
        return entries

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        """See `Log.wait`."""
        storage = self._storage
        with storage.changed:
            storage.changed.wait_for(
                lambda: self._woken or self._is_there(position), timeout_ms / 1_000
            )
            self._woken = False
            return self._is_there(position)

    def _is_there(self, position: int) -> bool:
        """Return whether there is an entry at or above `position`. The caller holds `changed`."""
        check_position(self.name, position, start=self._storage.start, end=self._storage.end)
        return position <= self._storage.end

    def wake(self) -> None:
        """See `Log.wake`."""
        storage = self._storage
        with storage.changed:
            self._woken = True
            storage.changed.notify_all()

    def start(self) -> int:
        """See `Log.start`."""
        with self._storage.changed:
            return self._storage.start

    def end(self) -> int:
        """See `Log.end`."""
        with self._storage.changed:
            return self._storage.end

    def position_at(self, time_ms: int) -> int:
        """See `Log.position_at`."""
        storage = self._storage
        with storage.changed:
            return position_by(self._first_timed, time_ms, low=storage.start, high=storage.end + 1)

    def ahead(self, position: int) -> int | None:
        """See `Log.ahead`."""
        storage = self._storage
        with storage.changed:
            return ahead_by(self._first_timed, max(position, storage.start), below=storage.end + 1)

    def _first_timed(
        self, position: int, below: int, from_ms: int, to_ms: int
    ) -> tuple[int, int] | None:
        """See `FirstTimed`. The caller holds `changed`."""
        start = self._storage.start
        times_ms = enumerate(
            islice(self._storage.appended_ms, position - start, below - start), position
        )
        return next(
            ((offset, at_ms) for offset, at_ms in times_ms if from_ms <= at_ms <= to_ms), None
        )

    def compacted_snapshot(self) -> MemorySnapshotStore:
        """See `Log.compacted_snapshot`."""
        return self._compacted_snapshot

    def history_snapshot(self) -> MemorySnapshotStore:
        """See `Log.history_snapshot`."""
        return self._history_snapshot

    # This log is never locked for long.
    def truncate(self, below: int, *, timeout_ms: int) -> None:  # noqa: ARG002
        """See `Log.truncate`."""
        storage = self._storage
        with storage.changed:
            if below <= storage.start:
                return
            check_position(self.name, below, start=storage.start, end=storage.end)
            del storage.records[: below - storage.start]
            del storage.appended_ms[: below - storage.start]
            storage.start = below

    def close(self) -> None:
        """See `Log.close`. Gives the handle storage of its own, so that the shared storage is freed
        with the last handle.
        """
        self._storage = _Storage()


SIDE_DOCUMENTS_MAX: Final = 2_000
"""Documents of one topic that memory keeps at most: an hour of rounds of the balancer at the
default interval, or two load reports of each of 1,000 brokers."""


class _SideStorage:
    """The state that all handles of one name and topic share. Hold `lock` to touch any field."""

    def __init__(self, rows_max: int) -> None:
        self.lock = threading.Lock()
        self.kept: deque[Kept] = deque(maxlen=min(rows_max, SIDE_DOCUMENTS_MAX))
        self.end = FIRST_OFFSET


_side_storages: WeakValueDictionary[tuple[str, str], _SideStorage] = WeakValueDictionary()


class MemorySideLog:
    """A handle on one topic beside the in-memory log `name`, which lives as long as a handle on it.
    See `SideLog`.
    """

    place: Final = "in the memory of this process"

    def __init__(self, name: str, topic: SideTopic) -> None:
        with _storages_lock:
            self._storage = _side_storages.setdefault(
                (name, topic.name), _SideStorage(topic.rows_max)
            )

    def append(self, documents: Sequence[Document]) -> None:
        """See `SideLog.append`."""
        now_ms = time.time_ns() // 1_000_000
        with self._storage.lock:
            for each in documents:
                self._storage.kept.append(Kept(self._storage.end, now_ms, each.key, each.value))
                self._storage.end += 1

    def read(self, position: int, *, limit: int) -> Sequence[Kept]:
        """See `SideLog.read`."""
        with self._storage.lock:
            first = self._storage.end - len(self._storage.kept)
            skipped = position - first if first <= position <= self._storage.end else 0
            return list(islice(self._storage.kept, skipped, skipped + limit))

    def bounds(self) -> tuple[int, int]:
        """See `SideLog.bounds`."""
        with self._storage.lock:
            return self._storage.end - len(self._storage.kept), self._storage.end

    def position_at(self, time_ms: int) -> int:
        """See `SideLog.position_at`."""
        with self._storage.lock:
            positions = (each.position for each in self._storage.kept if each.at_ms >= time_ms)
            return next(positions, self._storage.end)

    def close(self) -> None:
        """See `SideLog.close`."""
