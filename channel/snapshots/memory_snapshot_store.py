"""Keep a log's compacted or history snapshot in memory, shared by the handles of one name and dropped with the last one."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from equipoise.channel.core.errors import SnapshotFenced
from equipoise.channel.core.snapshot_store import Check, CompactedSnapshot, Progress, SnapshotRow, unchecked, unwatched

_NO_CLAIM: Final = -1
"""Never the newest claim."""


class SnapshotStorage:
    """The state that all handles of one name share. Hold `lock` to touch any field. An image is never changed."""

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

    def claim(self, *, timeout_ms: int) -> None:  # noqa: ARG002 - nobody holds this snapshot for long
        """See `SnapshotStore.claim`."""
        storage = self._storage
        with storage.lock:
            storage.claim += 1
            self._claim = storage.claim

    def load(self, *, check: Check = unchecked, progress: Progress = unwatched) -> CompactedSnapshot | None:
        """See `SnapshotStore.load`."""
        check()
        with self._storage.lock:
            image = self._storage.image
        if image is not None:
            progress(len(image.rows), len(image.rows))
        return image

    def replace(self, rows: Iterable[SnapshotRow], marker: bytes, *, timeout_ms: int) -> None:  # noqa: ARG002 - as `claim`
        """See `SnapshotStore.replace`."""
        claim, self._claim = self._claim, _NO_CLAIM
        changes = list(rows)
        storage = self._storage
        with storage.lock:
            if storage.claim != claim:
                raise SnapshotFenced(log=self._name)
            after = {} if storage.image is None else dict(storage.image.rows)
            for key, data in changes:
                if data is None:
                    after.pop(key, None)
                else:
                    after[key] = data
            storage.image = CompactedSnapshot(marker=marker, rows=after)
        self._claim = claim
