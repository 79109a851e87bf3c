"""Save and restore a broker's view in its data directory."""

from __future__ import annotations

import logging
from typing import Final

from equipoise.brokers.runtime.data_directory import DataDirectory, DirectoryThread
from equipoise.channel.core.errors import EquipoiseError, LogUnavailable, SnapshotDamaged
from equipoise.channel.core.log import Log
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.snapshot import from_bytes, still
from equipoise.channel.core.snapshot_store import Progress, unwatched
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import restored

_logger: Final = logging.getLogger(__name__)

# Folding 20,000 records takes 0.2 s at a start. Encoding 1,000 bundles takes 2 ms, 100,000 take 80 ms and 8 MB, in the directory's thread;
# the copy blocks the loop for 2 ms.
_RECORDS_BETWEEN: Final = 20_000

_READ_ENTRIES: Final = 4_096


class Snapshots:
    """The snapshots of one log, identified by its `identity`, in one data directory."""

    def __init__(self, directory: DataDirectory, *, log: str, cluster: str) -> None:
        """`log` is the identity of the log that is open now. Snapshots of other logs are not used."""
        self._directory = directory
        self._log = log
        self._cluster = cluster
        self._records = 0
        self._is_writing = False

    def reader(self, log: Log, *, progress: Progress = unwatched) -> Reader | None:
        """Return a reader from this broker's snapshot if it fits `log`, else from the channel's snapshot or the beginning.

        If the log is away, use this broker's snapshot unchecked (the first reads find a misfit); without one return None. Blocks; call it
        in a thread. `progress` counts the channel's snapshot rows. Raise the errors of `restored`, except `LogUnavailable`.
        """
        # A snapshot ahead of the log must not be hidden: the first read raises `LogWentBack`, because tokens would fall.
        own = self._load()
        try:
            return restored(log, cluster=self._cluster, own=own, progress=progress)
        except LogUnavailable as error:
            _logger.warning("waiting for the log: %s", error)
            return None if own is None else Reader(log=log.name, cluster=self._cluster, view=own)

    def _load(self) -> View | None:
        data = self._directory.load_snapshot(log_identity=self._log)
        try:
            return None if data is None else from_bytes(data)
        except SnapshotDamaged as error:
            _logger.warning("%s", error)
            return None

    def folded(self, view: View, thread: DirectoryThread) -> None:
        """Count one record. Save a snapshot when enough were folded since the last."""
        self._records += 1
        if self._records >= _RECORDS_BETWEEN and not self._is_writing:
            self.save(view, thread)

    def save(self, view: View, thread: DirectoryThread) -> None:
        """Save a snapshot of the current view. `thread` encodes and writes it."""
        self._records = 0
        self._is_writing = True
        copy = still(view)
        thread.write(lambda directory: directory.save_snapshot(copy.to_bytes(), log_identity=self._log), self._saved)

    def _saved(self, error: EquipoiseError | None) -> None:
        self._is_writing = False
        if error is not None:
            _logger.warning("no snapshot written, the next start folds more records: %s", error)

    def refold(self, url: str, offset: int) -> int | None:
        """Fold the log up to `offset` with a handle of its own. Return the digest; None if it cannot be known.

        Start at the channel's snapshot: another process folded it, and brokers agreed with it. Blocks; call it in a thread.
        """
        log = open_log(url, create=False)
        try:
            reader = restored(log, cluster=self._cluster)
            if reader.view.offset == offset:
                return reader.view.digest()
            while reader.view.offset < offset:
                entries = log.read(reader.position, limit=_READ_ENTRIES)
                if not entries:
                    return None
                for entry in entries:
                    if reader.feed(entry).offset == offset:
                        return reader.view.digest()
        except LogUnavailable:
            return None
        finally:
            log.close()
        return None
