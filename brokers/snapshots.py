"""Snapshots of a broker's view in its data directory, so that a start need not fold the whole log.

May live here: when a snapshot is taken, when one may be used, and folding the log anew beside a live view.
"""

from __future__ import annotations

import logging
from typing import Final

from brokers.data_directory import DataDirectory
from channel.errors import DataDirectoryUnusable, LogUnavailable, SnapshotDamaged
from channel.log import Log
from channel.open_log import open_log
from channel.reader import Reader
from channel.snapshot import from_bytes, to_bytes
from channel.view import View

_logger: Final = logging.getLogger(__name__)

# Folding 20,000 records takes 0.2 s, so that a start reads at most that; writing a view of 1,000 bundles takes 3 ms.
_RECORDS_BETWEEN: Final = 20_000

_READ_ENTRIES: Final = 4_096


class Snapshots:
    """The snapshots of one log, identified by its `identity`, in one data directory."""

    def __init__(self, directory: DataDirectory, *, log: str, cluster: str) -> None:
        """`log` is the identity of the log that is open now; a snapshot of another one is not used."""
        self._directory = directory
        self._log = log
        self._cluster = cluster
        self._records = 0

    def reader(self, log: Log) -> Reader:
        """A reader that goes on from the snapshot, if there is one that fits `log`; from the beginning otherwise."""
        view = self._load()
        # A snapshot that is ahead of the log is not hidden: the first read raises `LogWentBack`, because tokens would fall.
        return Reader(log=log.name, cluster=self._cluster, view=view)

    def _load(self) -> View | None:
        if self._directory.log_identity != self._log:
            return None
        data = self._directory.load_snapshot()
        if data is None:
            return None
        try:
            return from_bytes(data)
        except SnapshotDamaged as error:
            _logger.warning("%s", error)
            return None

    def folded(self, view: View) -> None:
        """Count one record; write a snapshot when enough of them have been folded since the last."""
        self._records += 1
        if self._records >= _RECORDS_BETWEEN:
            self.save(view)

    def save(self, view: View) -> None:
        """Write a snapshot now."""
        self._records = 0
        try:
            self._directory.save_snapshot(to_bytes(view), log_identity=self._log)
        except (DataDirectoryUnusable, OSError) as error:
            _logger.warning("no snapshot was written, the next start folds more: %s", error)

    def refold(self, url: str, offset: int) -> int | None:
        """The digest to which the log folds at `offset`, from a handle of its own; None if it cannot be told.

        Blocks; for a thread.
        """
        log = open_log(url, create=False)
        try:
            reader = Reader(log=log.name, cluster=self._cluster)
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
