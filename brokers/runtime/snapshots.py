"""Save a broker's view and its position in the log in its data directory, and restore them for a
log that goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from equipoise.brokers.agent.effects import ForgetInstanceIds, WriteInstanceId, WriteMark
from equipoise.brokers.agent.events import Event, InstanceIdWritten, MarkWritten
from equipoise.brokers.runtime.config import WorkerConfig
from equipoise.brokers.runtime.data_directory import DataDirectory, DirectoryThread, LogMark
from equipoise.channel.core.errors import (
    Bug,
    EquipoiseError,
    LogNotBegun,
    LogTruncated,
    LogUnavailable,
    LogWentBack,
    OperatorError,
    SnapshotDamaged,
    without_password,
)
from equipoise.channel.core.log import Log, Progress, unwatched
from equipoise.channel.core.reader import Reader
from equipoise.channel.core.records import TEXT_CHARACTERS_MAX
from equipoise.channel.core.snapshot import from_bytes, still
from equipoise.channel.core.view import View
from equipoise.channel.log.open_log import log_path, open_log, opened_in_thread
from equipoise.channel.snapshots.restore import restored
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.private_files import writable_by_all

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
        " URL. If no copy is newer, copy the one that is left to a new log (equipoise channel copy"
        " --leave-open). To begin anew, with token 1, delete the data directories of all brokers"
    )


def reader_on(
    directory: DataDirectory, log: Log, *, cluster: str, progress: Progress = unwatched
) -> Reader:
    """Return a reader from the broker's snapshot in its directory if it fits `log`, else from the
    channel's snapshot or the beginning.

    Blocks; call it in a thread. `progress` counts the channel's snapshot rows. Raise the errors of
    `restored`, and `OperatorError` if the log does not go on from where this broker has read it.
    """
    mark = directory.mark
    continues = mark is not None and log.identity == mark.log
    if mark is not None and continues:
        _check_reaches(directory, log, mark)
    own = _saved_view(directory, log.identity)
    reader = restored(log, cluster=cluster, own=own, progress=progress)
    # And no copy of the channel, which goes on above it.
    if mark is not None and not continues and reader.view.base < mark.offset:
        raise _lost_log(directory, log.name, found="it is another log")
    return reader


def _check_reaches(directory: DataDirectory, log: Log, mark: LogMark) -> None:
    try:
        log.read(mark.physical + 1, limit=1)
    except LogTruncated:
        return
    except LogWentBack as error:
        found = f"it ends at offset {error.end}, as an older copy does"
        raise _lost_log(directory, log.name, found=found) from error


def _saved_view(directory: DataDirectory, log_identity: str) -> View | None:
    data = directory.load_snapshot(log_identity=log_identity)
    try:
        return None if data is None else from_bytes(data)
    except SnapshotDamaged as error:
        _logger.warning("%s", error)
        return None


def refold(url: str, offset: int, *, cluster: str) -> int | None:
    """Fold the log up to `offset` with a handle of its own. Return the digest; None if it cannot be
    known.

    Start at the channel's snapshot: another process folded it, and brokers agreed with it. Blocks;
    call it in a thread.
    """
    log = open_log(url, create=False)
    try:
        reader = restored(log, cluster=cluster)
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


_INTERVAL_NS: Final = 2_000_000_000
"""Interval of progress lines, for an operator who waits."""

_ESTIMATED_AFTER_NS: Final = 500_000_000
"""Before this a rate means nothing: the first read may wait for the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is left of a long task: its name, records (or rows) and seconds, if known."""

    what: str
    records: int | None
    seconds: float | None

    def __str__(self) -> str:
        """Return it as text for people."""
        records = "" if self.records is None else f": {self.records:,} left"
        seconds = "" if self.seconds is None else f", about {self.seconds:.0f} s"
        return f"it is still {self.what}{records}{seconds}"


class ReplayProgress:
    """One broker's progress to the end of the log. Report from one thread at a time."""

    def __init__(self, *, broker: str, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """`broker` is a field of each line; `now_ns` is a clock that only rises."""
        self._broker = broker
        self._now_ns = now_ns
        self._what: str | None = None
        self._began_ns = self._logged_ns = 0
        self._done = 0
        self._left: int | None = None

    @property
    def left(self) -> Left | None:
        """What is left; None if nothing is in progress."""
        if self._what is None:
            return None
        took_ns = self._now_ns() - self._began_ns
        is_known = self._left is not None and self._done > 0 and took_ns >= _ESTIMATED_AFTER_NS
        seconds = (
            self._left * took_ns / self._done / 1e9 if is_known and self._left is not None else None
        )
        return Left(what=self._what, records=self._left, seconds=seconds)

    def restored(self, done: int, total: int | None) -> None:
        """Note that `done` of `total` rows of the channel's snapshot are loaded."""
        self._go_on(
            "loading the channel's snapshot", done, None if total is None else max(total - done, 0)
        )

    def read(self, records: int, left: int) -> None:
        """Note that `records` more records of the log are folded, and about `left` remain."""
        done = self._done if self._what == _READING else 0
        self._go_on(_READING, done + records, left)

    def ended(self) -> None:
        """Note that the end is reached."""
        self._what = None

    def _go_on(self, what: str, done: int, left: int | None) -> None:
        now_ns = self._now_ns()
        if what != self._what:
            self._what, self._began_ns, self._logged_ns = what, now_ns, now_ns
        self._done, self._left = done, left
        if now_ns - self._logged_ns >= _INTERVAL_NS:
            self._logged_ns = now_ns
            way = self.left
            assert way is not None, "it is under way"
            seconds = None if way.seconds is None else round(way.seconds, 1)
            _logger.info(
                what,
                extra={"broker": self._broker, "done": done, "left": left, "seconds_left": seconds},
            )


_READING: Final = "reading the channel"


class ReplayCheck:
    """The comparison of one broker's view with its log."""

    def __init__(
        self,
        refold: Callable[[int], int | None],
        *,
        broker: str,
        fail: Callable[[EquipoiseError], None],
    ) -> None:
        """`refold` returns the digest of the log's fold at an offset, in a thread. `fail` ends the
        broker.
        """
        self._refold = refold
        self._broker = broker
        self._fail = fail
        self._task: asyncio.Task[None] | None = None

    def begin(self, view: View) -> bool:
        """Start to compare the current `view` with the log. Return False if a comparison is already
        running.
        """
        if self._task is not None:
            return False
        self._task = asyncio.get_running_loop().create_task(
            self._compare(view.offset, view.digest())
        )
        return True

    def cancel(self) -> None:
        """Cancel the comparison. A thread that reads the log runs to its end."""
        if self._task is not None:
            self._task.cancel()

    async def _compare(self, offset: int, digest: int) -> None:
        other = None
        try:
            other = await asyncio.to_thread(self._refold, offset)
        except EquipoiseError as error:
            _logger.warning(
                "replay check failed: the log could not be folded: %s",
                error,
                extra={"broker": self._broker},
            )
        except Exception:
            _logger.exception(
                "replay check failed: the log could not be folded", extra={"broker": self._broker}
            )
        finally:
            self._task = None  # The next alarm starts another check in any case.
        if other is not None and other != digest:
            problem = (
                f"the view of broker {self._broker} at offset {offset} is not what the log folds to"
            )
            self._fail(
                Bug(f"{problem}; it stops serving, start it again, and report this with the log")
            )


class LocalState:
    """What one broker keeps on its disk: how far it has read the log, its instance ids, and a
    snapshot of its view. A thread writes it, in order.
    """

    problem: EquipoiseError | None = None  # Of the last write.

    def __init__(self, config: WorkerConfig, *, fail: Callable[[EquipoiseError], None]) -> None:
        """Lock the data directory. `fail` ends the broker.

        Raise `OperatorError`, also if another process holds it.
        """
        self._config = config
        self._fail = fail
        self._records = 0
        self._is_saving = False
        self._directory = DataDirectory(config.data_dir)
        self.instance_ids = self._directory.instance_ids

    @property
    def lock(self) -> str | None:
        """Where other brokers of this machine see whether this process lives, for `joined`."""
        lock = self._directory.lock
        if lock is None or not self._config.prove_deaths:
            return None
        # A name that is no text comes back as another one.
        text = str(lock).encode(errors="replace").decode()
        return text if len(text) <= TEXT_CHARACTERS_MAX else None

    async def open_log(self, progress: Progress) -> tuple[Log, Reader]:
        """Open the log. Return it, and a reader from where this broker left it.

        Raise the errors of `open_marked` and of `reader_on`.
        """
        config, directory = self._config, self._directory
        log = await opened_in_thread(partial(open_marked, config.log_url, directory))
        try:
            await asyncio.to_thread(_warn_of_modes, config)
            self._log = log.identity
            return log, await asyncio.to_thread(
                reader_on, directory, log, cluster=config.cluster, progress=progress
            )
        except BaseException:
            log.close()
            raise

    def close(self) -> None:
        """Release the directory, of a broker that has not begun."""
        self._directory.close()

    def begin(self) -> None:
        """Let a thread write from now on. It owns the directory."""
        self.replay_check = ReplayCheck(
            partial(refold, self._config.log_url, cluster=self._config.cluster),
            broker=self._config.id,
            fail=self._fail,
        )
        self._thread = DirectoryThread(self._directory)

    def carry_out(self, effect: DiskEffect, done: Written) -> None:
        """Write in order: a `joined` is sent after its instance id is on disk.

        Call `done` with the error or None, and the event that follows. A failing disk delays
        joining; a member only raises an alarm.
        """
        if isinstance(effect, WriteMark):
            mark = self._mark(effect.offset, base=effect.base)
            self._write(
                lambda directory: directory.write_mark(mark),
                partial(done, then=MarkWritten(offset=effect.offset)),
            )
        elif isinstance(effect, WriteInstanceId):
            instance_id = effect.instance_id
            self._write(
                lambda directory: directory.write_instance_id(instance_id),
                partial(done, then=InstanceIdWritten(instance_id=instance_id)),
            )
        else:
            keep = effect.keep
            self._write(lambda directory: directory.forget_instance_ids(keep), done)

    def _write(
        self, write: Callable[[DataDirectory], None], done: Callable[[EquipoiseError | None], None]
    ) -> None:
        def written(error: EquipoiseError | None) -> None:
            self.problem = error
            done(error)

        self._thread.write(write, written)

    def _mark(self, offset: int, *, base: int) -> LogMark:
        return LogMark(log=self._log, offset=offset, physical=offset - base)

    def folded(self, view: View) -> None:
        """Note that one more record is folded. Save a snapshot now and then."""
        self._records += 1
        if self._records >= _RECORDS_BETWEEN and not self._is_saving:
            self.save(view)

    def save(self, view: View) -> None:
        """Save a snapshot of the current view. The thread encodes and writes it."""
        self._records = 0
        self._is_saving = True
        copy, mark = still(view), self._mark(view.offset, base=view.base)
        self._thread.write(
            lambda directory: directory.save_snapshot(copy.to_bytes(), mark), self._saved
        )

    def _saved(self, error: EquipoiseError | None) -> None:
        self._is_saving = False
        if error is not None:
            _logger.warning("no snapshot written, the next start folds more records: %s", error)

    async def stop(self, deadline: Deadline) -> None:
        """See `DirectoryThread.stop`."""
        await self._thread.stop(deadline)


DiskEffect = WriteMark | WriteInstanceId | ForgetInstanceIds


class Written(Protocol):
    """Takes the error of a write, or the event that follows."""

    def __call__(self, error: EquipoiseError | None, *, then: Event | None = None) -> None:
        """See above."""
        ...


def _warn_of_modes(config: WorkerConfig) -> None:
    path = log_path(config.log_url)
    for exposed, mode in writable_by_all(None if path is None else Path(path), config.data_dir):
        fields = {"broker": config.id, "path": str(exposed), "mode": f"{mode:04o}"}
        _logger.warning(
            "every user of this machine may write to this path; run chmod o-w on it", extra=fields
        )
