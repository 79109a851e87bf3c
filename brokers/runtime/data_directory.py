"""Own a broker's data directory: its lock, its files, and the thread that writes them."""

from __future__ import annotations

import asyncio
import fcntl
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from zlib import crc32

from equipoise.brokers.errors import data_directory_unusable
from equipoise.channel.core.errors import Bug, EquipoiseError, OperatorError, Overloaded
from equipoise.channel.system import forked
from equipoise.channel.system.clocks import Deadline
from equipoise.channel.system.file_system import refuse_network_file_system
from equipoise.channel.system.process_lock import LockedFile, hold, is_held

INSTANCE_IDS_MAX: Final = 65_536
"""Instance ids kept: 18 hours of one failed attempt to join per second. Then the oldest half is
dropped, at the cost of waiting for a lease to expire."""

_LOCK: Final = "lock"
_MARK: Final = "mark"
_SNAPSHOT: Final = "snapshot"

# The lock file begins with the id of the process that holds it, of at most ten digits. The instance
# ids follow: an id in a file that nobody holds proves that the process that wrote it has ended,
# also if the path changed.
_PID_BYTES: Final = 20
_LOCK_BYTES_MAX: Final = 8 * 1_024 * 1_024  # `INSTANCE_IDS_MAX`, each of 32 digits, take 2 MiB.


# A mark is written over the older one of two, so that a power cut leaves the newer one. A page
# each, because disks write whole pages.
_MARK_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMark:
    """How far a broker has read which log: the log's identity, the logical `offset`, and the
    storage's own (`physical`).
    """

    log: str
    offset: int
    physical: int


class DataDirectory:
    """A broker's data directory, locked until `close`. Also a context manager.

    Methods block on the disk; call them from one thread at a time. Each raises
    `OperatorError` if the disk fails, or if the lock file was deleted or replaced. `lock` is where
    other processes of this machine see whether the directory is held; None: nowhere.
    """

    def __init__(self, path: Path) -> None:
        """Lock the directory. Create it if needed.

        Raise `OperatorError` if another process holds it or locks cannot be trusted, and
        `OperatorError`.
        """
        self.path = path
        with _typed(path):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_network_file_system(path / _LOCK)
            self._lock: int | None = _locked(path, flags=os.O_RDWR | os.O_CREAT)
            try:
                self.lock = hold(self._lock, path / _LOCK)
                pid, instance_ids = _read_lock(self._lock)
                # In a dict, because the oldest are dropped first.
                self._instance_ids = dict.fromkeys(instance_ids)
                if pid is None:
                    _sync_folder(path)  # The file may be new.
                _write_at(self._lock, b"%-19d\n" % os.getpid(), 0)
                self._marks = _read_marks(path)
            except BaseException:
                self.close()
                raise

    @property
    def instance_ids(self) -> frozenset[str]:
        """All instance ids: a dead process may have joined with any of them."""
        return frozenset(self._instance_ids)

    @property
    def mark(self) -> LogMark | None:
        """How far the log was read at least; None if the directory is new."""
        return max(
            (mark for mark in self._marks if mark is not None),
            key=lambda mark: mark.offset,
            default=None,
        )

    def write_mark(self, mark: LogMark) -> None:
        """Write and fsync a mark, unless the directory has a later one. A replay reads again what
        earlier runs have read.
        """
        newest = self.mark
        if newest is not None and mark.offset <= newest.offset:
            return
        text = f"{mark.log} {mark.offset} {mark.physical}".encode("ascii")
        line = b"%s %08x\n" % (text, crc32(text))
        if len(line) > _MARK_BYTES:
            raise Bug(f"the mark of the log {mark.log} does not fit into {_MARK_BYTES} bytes")
        with self._changing():
            older = (
                self._marks.index(None)
                if newest is None or None in self._marks
                else 1 - self._marks.index(newest)
            )
            is_new = not (self.path / _MARK).exists()
            _write(self.path / _MARK, line, position=older * _MARK_BYTES)
            if is_new:
                _sync_folder(self.path)
            self._marks[older] = mark
            os.utime(self._held)  # What cleans a temporary folder takes old files.

    def write_instance_id(self, instance_id: str) -> None:
        """Write and fsync an instance id, a word of printable ASCII."""
        if not _is_instance_id(instance_id):
            raise Bug(f"{instance_id!r} is no instance id: it must be a word of printable ASCII")
        with self._changing():
            if len(self._instance_ids) >= INSTANCE_IDS_MAX:
                self._replace_instance_ids(tuple(self._instance_ids)[INSTANCE_IDS_MAX // 2 :])
            # The leading newline ends a line that a power cut has torn.
            _write_at(
                self._held, b"\n%s\n" % instance_id.encode("ascii"), os.fstat(self._held).st_size
            )
            self._instance_ids[instance_id] = None

    def forget_instance_ids(self, keep: str) -> None:
        """Forget all instance ids but `keep`, which has been read back."""
        if self._instance_ids.keys() != {keep}:
            with self._changing():
                self._replace_instance_ids((keep,))

    def save_snapshot(self, snapshot: bytes, mark: LogMark) -> None:
        """Replace the snapshot, which was taken at `mark`. The mark comes first, so that no
        snapshot is ahead of it.
        """
        self.write_mark(mark)
        with self._changing():
            self._replace(_SNAPSHOT, b"%s\n%s" % (mark.log.encode(), snapshot))

    def load_snapshot(self, *, log_identity: str) -> bytes | None:
        """Return the last snapshot; None if there is none, or if it is of another log."""
        with _typed(self.path):
            try:
                identity, _, snapshot = (self.path / _SNAPSHOT).read_bytes().partition(b"\n")
            except FileNotFoundError:
                return None
        return snapshot if identity == log_identity.encode() else None

    def close(self) -> None:
        """Release the directory. Afterwards call nothing but this."""
        if self._lock is not None:
            forked.close_file(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Check that we hold the lock. An instance id in another broker's directory would let it
        declare us dead.
        """
        held = self._held
        with _typed(self.path):
            _check_is_at(self.path, held)
            yield

    def _replace_instance_ids(self, instance_ids: Sequence[str]) -> None:
        """Write them over the others, in place, because the file is locked. If that is cut short,
        some are lost, and the next process waits for the lease; none is there that was not.
        """
        data = b"".join(b"%s\n" % instance_id.encode("ascii") for instance_id in instance_ids)
        _write_at(self._held, data, _PID_BYTES)
        os.ftruncate(self._held, _PID_BYTES + len(data))
        self._instance_ids = dict.fromkeys(instance_ids)

    @property
    def _held(self) -> int:
        if self._lock is None:
            raise Bug(f"the data directory {self.path} was used after it was closed")
        return self._lock

    def _replace(self, name: str, data: bytes) -> None:
        """Replace a file: after a power cut it is the old or the new one, never a mixture."""
        new = self.path / f"{name}.new"
        _write(new, data, flags=os.O_TRUNC)
        new.replace(self.path / name)
        _sync_folder(self.path)


def instance_ids_of_dead(path: Path) -> frozenset[str]:
    """Return the instance ids of a dead process, which prove its death to the channel.

    Raise `OperatorError` if it lives or its lock proves nothing, and `OperatorError` if no
    broker used the directory. A process that starts later is safe: it joins with a new id.
    """
    with _typed(path):
        refuse_network_file_system(path / _LOCK)
        try:
            lock = _locked(path, flags=os.O_RDWR)
        except FileNotFoundError:
            raise ValueError("no broker has used it") from None
        try:
            _, instance_ids = _read_lock(lock)
            return frozenset(instance_ids)
        finally:
            forked.close_file(lock)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look at a lock file shows: the process that it names, and whether the process that was
    looked for has ended.
    """

    pid: int | None = None
    has_ended: bool = False


def look_at(lock: LockedFile, instance_id: str) -> Look:
    """Look whether the process of this machine that joined with `instance_id` and this lock has
    ended. Take no lock.

    Raises OSError.
    """
    file = lock.open()
    if file is None:
        return Look()
    try:
        # The instance id shows that this is the file of that process, also where two kernels show
        # one boot id, as in some sandboxes.
        pid, instance_ids = _read_lock(file)
        return Look(pid=pid, has_ended=instance_id in instance_ids and not is_held(file))
    finally:
        os.close(file)


@contextmanager
def _typed(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a path with a null character.
        raise data_directory_unusable(path=str(path), problem=str(error)) from error


def _locked(path: Path, *, flags: int) -> int:
    """Lock the directory and return the descriptor; closing it releases the lock.

    This lock (flock) is on every system. Like that of `process_lock`, which others look at, it is
    of the open file, and `forked` keeps both from children, so they end with the process.
    """
    lock = forked.open_file(path / _LOCK, flags, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _living_pid_in(lock)
            holder = "another process" if pid is None else f"process {pid}"
            problem = f"the data directory {path} is held by {holder}: its broker is still running"
            raise OperatorError(f"{problem}; stop it, or name another directory") from None
        _check_is_at(path, lock)
    except BaseException:
        forked.close_file(lock)
        raise
    return lock


def _check_is_at(path: Path, lock: int) -> None:
    """Raise `OperatorError` unless the held lock is the file that others find."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock), (path / _LOCK).stat()):
            return
    raise data_directory_unusable(
        path=str(path), problem="its lock file was deleted or replaced while it was held"
    )


def _living_pid_in(lock: int) -> int | None:
    """Return the process that the file names, if it lives: the holder may not have written its own
    yet.
    """
    pid, _ = _read_lock(lock)
    try:
        if pid is not None:
            os.kill(pid, 0)
    except PermissionError:  # It lives, and is another user's.
        return pid
    except (OSError, OverflowError):
        return None
    return pid


def _read_lock(file: int) -> tuple[int | None, list[str]]:
    """Return the process id and the instance ids in a lock file, without a line torn by a power
    cut.
    """
    data = os.pread(file, _LOCK_BYTES_MAX, 0)
    pid = data[:_PID_BYTES].strip()
    # Text after the last newline was never fsynced: no record carries it.
    lines = data[_PID_BYTES:].decode("ascii", "replace").split("\n")[:-1]
    instance_ids = [line for line in lines if _is_instance_id(line)]
    return int(pid) if pid.isdigit() and int(pid) else None, instance_ids


def _read_marks(path: Path) -> list[LogMark | None]:
    """Return both marks. None stands for one that was not written, or not to its end: no token was
    used on the strength of it.
    """
    try:
        data = (path / _MARK).read_bytes()
    except FileNotFoundError:
        return [None, None]
    return [_mark_in(data[:_MARK_BYTES]), _mark_in(data[_MARK_BYTES:])]


def _mark_in(data: bytes) -> LogMark | None:
    text, _, checksum = data.partition(b"\n")[0].rpartition(b" ")
    if checksum != b"%08x" % crc32(text):
        return None
    match text.decode("ascii", "replace").split(" "):
        case [log, offset, physical] if offset.isdigit() and physical.isdigit():
            return LogMark(log=log, offset=int(offset), physical=int(physical))
    return None


def _is_instance_id(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _write(path: Path, data: bytes, *, flags: int = 0, position: int = 0) -> None:
    """Write and fsync."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    try:
        _write_at(file, data, position)
    finally:
        os.close(file)


def _write_at(file: int, data: bytes, position: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(file, data[written:], position + written)
    os.fsync(file)


def _sync_folder(path: Path) -> None:
    """Make the names in a folder as durable as the files."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


QUEUED_MAX: Final = 64
"""Writes that wait for the disk: about a minute of a hanging disk. (Attempts to join are a renewal
interval apart, snapshots 20,000 records.) More are refused, and the callers retry."""

Write = Callable[[DataDirectory], None]
Done = Callable[[EquipoiseError | None], None]


class DirectoryThread:
    """Carry out writes one at a time, in order. Call the methods on the loop that created it.

    The thread owns the directory and unlocks it only after the last write: another process may take
    unlocked content for final.
    """

    def __init__(self, directory: DataDirectory) -> None:
        """Start the thread. Call within the host's loop."""
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._queue: queue.SimpleQueue[tuple[Write, Done] | None] = queue.SimpleQueue()
        # A daemon: a disk that never answers must not keep the process alive.
        threading.Thread(
            target=self._run, name=f"data directory {directory.path}", daemon=True
        ).start()

    def write(self, write: Write, done: Done) -> None:
        """Queue a write without blocking. `done` is called on the loop, later, with the error or
        None.

        If the queue is full, the error is `Overloaded`.
        """
        if self._queue.qsize() >= QUEUED_MAX:
            refusal = Overloaded(
                what=f"the queue of writes to the data directory {self._directory.path}",
                limit=QUEUED_MAX,
            )
            self._loop.call_soon(done, refusal)
        else:
            self._queue.put((write, done))

    async def stop(self, deadline: Deadline) -> None:
        """Finish the queued writes and release the directory. Afterwards call only this.

        Raise `DeadlineExceeded` if the disk is slower. The directory stays locked until the thread
        is done.
        """
        self._queue.put(None)
        await deadline.wait(
            asyncio.shield(self._ended),
            what=f"the last write to the data directory {self._directory.path}",
        )

    # --- in the thread ---

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            write, done = item
            self._post(done, self._outcome(write))
        self._directory.close()
        self._post(self._end)

    def _outcome(self, write: Write) -> EquipoiseError | None:
        try:
            write(self._directory)
        except EquipoiseError as error:
            return error
        # A thread that dies silently is a broker that never joins.
        except Exception as error:  # noqa: BLE001
            bug = Bug(
                f"writing to the data directory {self._directory.path} met {type(error).__name__}:"
                f" {error}; please report it"
            )
            bug.__cause__ = error
            return bug
        return None

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        """Call on the loop, unless it has ended. Queued writes are still done."""
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            return

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
