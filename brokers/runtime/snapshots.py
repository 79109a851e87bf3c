"""Save a broker's view and its position in the log in its data directory, and restore them for a
log that goes on from there.
"""

from __future__ import annotations

import logging
from typing import Final

from equipoise.brokers.runtime.data_directory import DataDirectory, DirectoryThread, LogMark
from equipoise.channel.core.errors import (
    EquipoiseError,
    LogNotBegun,
    LogTruncated,
    LogUnavailable,
    LogWentBack,
    OperatorError,
    SnapshotDamaged,
    without_password,
)
from equipoise.channel.core.log import DESCENDS, Log
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.snapshot import from_bytes, still
from equipoise.channel.core.snapshot_store import Progress, unwatched
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import open_log
from equipoise.channel.snapshots.restore import restored

_logger: Final = logging.getLogger(__name__)

# Folding 20,000 records takes 0.2 s at a start. Encoding 1,000 bundles takes 2 ms, 100,000 take 80
# ms and 8 MB, in the directory's thread; the copy blocks the loop for 2 ms.
_RECORDS_BETWEEN: Final = 20_000

_READ_ENTRIES: Final = 4_096


def open_marked(url: str, directory: DataDirectory) -> Log:
    """Open the log. Make a missing one only for a broker that has read none: tokens of a second log
    would begin at 1 again.

    Raise the errors of `open_log`, and `OperatorError` if the log that this broker has read is
    gone.
    """
    try:
        return open_log(url, create=directory.mark is None)
    except LogNotBegun as error:
        raise _lost_log(directory, without_password(url), found=error.problem) from error


def _lost_log(directory: DataDirectory, log: str, *, found: str) -> OperatorError:
    mark = directory.mark
    assert mark is not None, "a broker that has read no log has lost none"
    return OperatorError(
        f"the log {log} does not go on from offset {mark.offset}, which the data directory"
        f" {directory.path} notes as read: {found}. Tokens up to there are in use, and would be"
        " issued again. Stop all brokers of the log, and put its newest copy back, or correct the"
        " URL. If no copy is newer, export the one that is left and import it into a new log"
        " (equipoise channel export, import). To begin anew, with token 1, delete the data"
        " directories of all brokers"
    )


class Snapshots:
    """The snapshots of one log, identified by its `identity`, in one data directory."""

    def __init__(self, directory: DataDirectory, *, log: str, cluster: str) -> None:
        """`log` is the identity of the log that is open now. Snapshots of other logs are not
        used.
        """
        self._directory = directory
        self._log = log
        self._cluster = cluster
        self._records = 0
        self._is_writing = False

    def reader(self, log: Log, *, progress: Progress = unwatched) -> Reader:
        """Return a reader from this broker's snapshot if it fits `log`, else from the channel's
        snapshot or the beginning.

        Blocks; call it in a thread. `progress` counts the channel's snapshot rows. Raise the errors
        of `restored`, and `OperatorError` if the log does not go on from where this broker has read
        it.
        """
        mark = self._directory.mark
        continues = mark is not None and f"{self._log}{DESCENDS}".startswith(
            f"{mark.log}{DESCENDS}"
        )
        if mark is not None and continues:
            self._check_reaches(log, mark)
        reader = restored(log, cluster=self._cluster, own=self._load(), progress=progress)
        # And no copy of the channel, which goes on above it.
        if mark is not None and not continues and reader.view.base < mark.offset:
            raise _lost_log(self._directory, log.name, found="it is another log")
        return reader

    def _check_reaches(self, log: Log, mark: LogMark) -> None:
        try:
            log.read(mark.physical + 1, limit=1)
        except LogTruncated:
            return
        except LogWentBack as error:
            raise _lost_log(
                self._directory,
                log.name,
                found=f"it ends at offset {error.end}, as an older copy does",
            ) from error

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
        mark = self.mark(view.offset, base=view.base)
        thread.write(lambda directory: directory.save_snapshot(copy.to_bytes(), mark), self._saved)

    def mark(self, offset: int, *, base: int) -> LogMark:
        """Return the mark of a logical offset, of a log with this base."""
        return LogMark(log=self._log, offset=offset, physical=offset - base)

    def _saved(self, error: EquipoiseError | None) -> None:
        self._is_writing = False
        if error is not None:
            _logger.warning("no snapshot written, the next start folds more records: %s", error)

    def refold(self, url: str, offset: int) -> int | None:
        """Fold the log up to `offset` with a handle of its own. Return the digest; None if it
        cannot be known.

        Start at the channel's snapshot: another process folded it, and brokers agreed with it.
        Blocks; call it in a thread.
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
