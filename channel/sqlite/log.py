"""Implement `Log` on one SQLite file, shared by all processes of one machine.

Theory of operation:

* WAL mode: readers and writers do not block each other. Each append is one write transaction (BEGIN
  IMMEDIATE). Each read is one short read transaction, since an open one keeps the WAL from starting
  over.
* We wait for the write lock with our own short random sleeps. SQLite's busy handler sleeps longer
  each time, so that four writers starve one another for seconds.
* The writer takes offsets from the table `log`, in the transaction that inserts the entries, so
  offsets follow the order of commits. SQLite's row ids would be reused after truncation.
* The writer that makes the WAL `WAL_PAGES` long moves it into the database after its commit, while
  others go on. If the WAL still grows to `WAL_BYTES_MAX` (writers that never pause), a writer
  blocks the others until the WAL starts over. A process that is stopped during a read keeps the WAL
  growing.
* On the first open after a restart of the machine, offsets skip ahead: with `Synchronous.NORMAL` a
  power failure may undo appends whose offsets were seen, and a fencing token must never be issued
  twice.
* In a process that has the log open, open the database file only through SQLite. Closing another
  descriptor drops SQLite's locks, since POSIX locks belong to the process.
* A commit wakes the readers in all processes: writers open and close a small file beside the
  database, which readers watch with inotify. SQLite has no such notification. Watching its WAL
  wakes a reader before the commit is visible, and polling it each millisecond costs 5 % of a core.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final
from zlib import crc32

from equipoise.channel.core.errors import LogDamaged, invalid_log_url
from equipoise.channel.core.log import (
    READ_BYTES_MAX,
    READ_ENTRIES_MAX,
    Entry,
    check_batch,
    check_position,
)
from equipoise.channel.sqlite.file import usable_path
from equipoise.channel.sqlite.format import HISTORY
from equipoise.channel.sqlite.snapshot_store import SqliteSnapshotStore
from equipoise.channel.sqlite.storage import READ_MS_MAX, SqliteStorage, Synchronous
from equipoise.channel.system import private_files
from equipoise.channel.system.clocks import ahead_by, next_ms, position_by
from equipoise.channel.system.file_system import MOUNT_TABLE, refuse_network_file_system
from equipoise.channel.system.process_lock import BOOT_ID, this_boot

POLL_MS: Final = 5
"""How often a reader checks without inotify (macOS, or a user with all of Linux's 128 instances in
use).

200 checks a second are about 1 % of a core, and show a commit after 2.5 ms on average.
"""

_IN_CLOSE_WRITE: Final = 0x00000008
_IN_MOVE_SELF: Final = 0x00000800
# Watch descriptor, mask, cookie, length of the name (0 for a watch on a file).
_EVENT: Final = struct.Struct("iIII")
_EVENTS_BYTES: Final = 256 * _EVENT.size


class Notifier:
    """Notifies all processes that watch one path.

    One thread calls `listen`, `sleep` and `close`; any thread calls `ring` and `wake`. Call
    `listen`, then check the condition, then `sleep` if it does not hold. A notification after
    `listen` ends the following sleep, so none is missed.
    """

    def __init__(self, path: str, *, use_inotify: bool = sys.platform == "linux") -> None:
        """`path` is the notifier's file, created when first needed."""
        self._path = path
        self._woken_read, self._woken_write = os.pipe()
        # Guards the next two fields, so that `wake` never writes to a closed pipe.
        self._lock = threading.Lock()
        self._open = True
        self._woken = False  # True exactly while there is a byte in the pipe.
        self._inotify = _inotify_init() if use_inotify else None
        self._watching = False
        self._poll = select.poll()
        for descriptor in (self._woken_read, self._inotify):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    def ring(self) -> None:
        """Wake the readers of all processes.

        Opening and closing the file is an event; unlike a write it leaves no dirty inode for the
        next fsync. A failed notification is ignored: readers check now and then, and a commit must
        not fail for it.
        """
        with contextlib.suppress(OSError):
            os.close(
                os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, private_files.MODE)
            )

    def wake(self) -> None:
        """End the sleep of this notifier's own reader, now or when it next begins."""
        with self._lock:
            if self._open and not self._woken:
                self._woken = True
                os.write(self._woken_write, b"\0")

    def listen(self) -> bool:
        """Discard past notifications. Return whether `wake` was called."""
        if self._inotify is not None and not (self._watching and self._hear()):
            self._watching = self._watch()
        with self._lock:
            woken, self._woken = self._woken, False
            if woken:
                os.read(self._woken_read, 1)
        return woken

    def sleep(self, timeout_ms: int) -> bool:
        """Wait for a notification or `wake`, at most `timeout_ms`, or `POLL_MS` without inotify.
        Return whether one came.
        """
        return bool(self._poll.poll(timeout_ms if self._watching else min(timeout_ms, POLL_MS)))

    def close(self) -> None:
        """Close all descriptors. `wake` then does nothing."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            for descriptor in (self._woken_read, self._woken_write, self._inotify):
                if descriptor is not None:
                    os.close(descriptor)

    def _hear(self) -> bool:
        """Read all events. Return False if one is not a notification: the file may be gone."""
        assert self._inotify is not None
        only_rings = True
        while True:
            try:
                events = os.read(self._inotify, _EVENTS_BYTES)
            except BlockingIOError:
                return only_rings
            only_rings = only_rings and all(
                mask == _IN_CLOSE_WRITE for _, mask, _, _ in _EVENT.iter_unpack(events)
            )

    def _watch(self) -> bool:
        """Watch the file, creating it if needed. Return whether that worked."""
        assert self._inotify is not None
        self.ring()
        mask = _IN_CLOSE_WRITE | _IN_MOVE_SELF
        return int(_libc.inotify_add_watch(self._inotify, os.fsencode(self._path), mask)) >= 0


_libc = ctypes.CDLL(None, use_errno=True)


def _inotify_init() -> int | None:
    """Return a new inotify descriptor, or None if the system has none left."""
    if not hasattr(_libc, "inotify_init1"):
        return None
    descriptor = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    return descriptor if descriptor >= 0 else None


RECHECK_MS: Final = 250
"""How long a waiting reader trusts the notifier before it checks the file.

This is the delay if a writer is killed between its commit and its notification. Four checks a
second of 40 microseconds are no load.
"""

TRUNCATE_STEP_ENTRIES: Final = 200
"""Entries removed per transaction: about 12 pages, at most 1 ms of the write lock. The lock is then
free for as long."""


class SqliteLog:
    """A handle on the log in one SQLite file. See `Log` for the contract."""

    def __init__(
        self,
        path: str,
        *,
        name: str,
        synchronous: Synchronous = Synchronous.FULL,
        create: bool = True,
        boot_id: Path = BOOT_ID,
        mount_table: Path = MOUNT_TABLE,
        use_inotify: bool = sys.platform == "linux",
    ) -> None:
        """Open the log at `path`; `create` makes a missing one. `name` is its URL, for messages.

        `boot_id` and `mount_table` are Linux files about the machine (see `file` and
        `file_system`).

        Raises `CallerError`, `LogNotBegun`, `OperatorError` (a hard link, a network file system),
        `LogDamaged`, `LogUnavailable`, `LogStorageFull`.
        """
        self.name = name
        real_path = usable_path(path, url=name, create=create)
        refuse_network_file_system(real_path, mount_table=mount_table)
        # Without it, offsets cannot skip ahead after a restart, so only `Synchronous.FULL` is safe.
        boot = this_boot(boot_id)
        if synchronous is Synchronous.NORMAL and not boot:
            raise invalid_log_url(
                url=name,
                problem="synchronous=normal needs a system that identifies its boot, as Linux does",
            )
        self._storage = SqliteStorage(
            real_path, name=name, synchronous=synchronous, boot=boot, create=create
        )
        self.identity = self._storage.identity
        self._notifier = Notifier(f"{real_path}-bell", use_inotify=use_inotify)
        self._compacted_snapshot = SqliteSnapshotStore(self._storage)
        self._history_snapshot = SqliteSnapshotStore(self._storage, table=HISTORY)

    def append(self, batch: Sequence[bytes], *, timeout_ms: int) -> Sequence[int]:
        """See `Log.append`. The batch is appended as a whole and contiguously, which is more than
        the contract requires.
        """
        check_batch(self.name, batch)
        if not batch:
            return ()
        with self._storage.transaction("BEGIN IMMEDIATE", timeout_ms=timeout_ms) as bounds:
            first = bounds.end + 1
            now_ms = next_ms(bounds.appended_ms)
            rows = [
                (offset, data, checksum_of(offset, data), now_ms)
                for offset, data in enumerate(batch, first)
            ]
            execute = self._storage.connection.executemany
            execute(
                "INSERT INTO entries (offset, data, checksum, appended_ms) VALUES (?, ?, ?, ?)",
                rows,
            )
            self._storage.connection.execute(
                "UPDATE log SET end_offset = ?, appended_ms = ?", (bounds.end + len(rows), now_ms)
            )
        self._notifier.ring()
        self._storage.bound_wal()
        return range(first, first + len(rows))

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        """See `Log.read`."""
        assert limit > 0, "a read of no entries cannot tell the end from a limit"
        try:
            return self._read(position, limit=limit)
        except LogDamaged:  # Perhaps only what was read of it.
            self._storage.reopen()
            return self._read(position, limit=limit)

    def _read(self, position: int, *, limit: int) -> Sequence[Entry]:
        entries: list[Entry] = []
        entries_bytes = 0
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            check_position(self.name, position, start=bounds.start, end=bounds.end)
            query = (
                "SELECT offset, data, checksum FROM entries WHERE offset >= ? ORDER BY offset"
                " LIMIT ?"
            )
            with contextlib.closing(
                self._storage.connection.execute(query, (position, min(limit, READ_ENTRIES_MAX)))
            ) as rows:
                for offset, data, checksum in rows:
                    if type(data) is not bytes or checksum_of(offset, data) != checksum:
                        raise LogDamaged(
                            log=self.name,
                            problem=f"the entry at offset {offset} does not match its checksum",
                            offset=offset,
                        )
                    # A damaged page may lead back; following it would loop for ever.
                    if offset < position:
                        raise LogDamaged(
                            log=self.name,
                            problem=f"the entry at offset {offset} is out of order",
                            offset=offset,
                        )
                    position = offset + 1
                    entries.append(Entry(offset, data))
                    entries_bytes += len(data)
                    if entries_bytes > READ_BYTES_MAX:
                        break
        return entries

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        """See `Log.wait`."""
        give_up_ns = time.monotonic_ns() + timeout_ms * 1_000_000
        while True:
            # Before the check, so that a commit after the check ends the sleep.
            woken = self._notifier.listen()
            if self._is_there(position):
                return True
            remaining_ms = -((time.monotonic_ns() - give_up_ns) // 1_000_000)
            if woken or remaining_ms <= 0:
                return False
            self._notifier.sleep(min(remaining_ms, RECHECK_MS))

    def _is_there(self, position: int) -> bool:
        """Return whether there is an entry at or above `position`. The end does not show it: after
        a restart it lies above a gap.
        """
        # One statement is one transaction. Every reader does this twice per append, and each
        # statement releases the GIL.
        bounds = self._storage.retry(self._storage.bounds, timeout_ms=READ_MS_MAX)
        self._storage.check_files()
        check_position(self.name, position, start=bounds.start, end=bounds.end)
        return bounds.newest is not None and bounds.newest >= position

    def wake(self) -> None:
        """See `Log.wake`."""
        self._notifier.wake()

    def start(self) -> int:
        """See `Log.start`."""
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            return bounds.start

    def end(self) -> int:
        """See `Log.end`."""
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            return bounds.end

    def position_at(self, time_ms: int) -> int:
        """See `Log.position_at`."""
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            low = position_by(self._first_timed, time_ms, low=bounds.start, high=bounds.end + 1)
            [(offset,)] = self._storage.connection.execute(
                "SELECT min(offset) FROM entries WHERE offset >= ?", (low,)
            ).fetchall()
            return bounds.end + 1 if offset is None else int(offset)

    def ahead(self, position: int) -> int | None:
        """See `Log.ahead`."""
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            return ahead_by(self._first_timed, max(position, bounds.start), below=bounds.end + 1)

    def _first_timed(
        self, position: int, below: int, from_ms: int, to_ms: int
    ) -> tuple[int, int] | None:
        """See `FirstTimed`. Also finds a time that is not a number, and raises `LogDamaged`."""
        query = (
            "SELECT offset, appended_ms FROM entries WHERE offset >= ? AND offset < ? AND"
            " (appended_ms BETWEEN ? AND ? OR typeof(appended_ms) != 'integer') ORDER BY offset"
            " LIMIT 1"
        )
        match self._storage.connection.execute(query, (position, below, from_ms, to_ms)).fetchall():
            case []:
                return None
            case [(int(offset), int(appended_ms))] if offset >= position:
                return offset, appended_ms
        raise LogDamaged(
            log=self.name,
            problem=f"the entry at or after offset {position} has no time or is out of order",
            offset=position,
        )

    def compacted_snapshot(self) -> SqliteSnapshotStore:
        """See `Log.compacted_snapshot`."""
        return self._compacted_snapshot

    def history_snapshot(self) -> SqliteSnapshotStore:
        """See `Log.history_snapshot`."""
        return self._history_snapshot

    def truncate(self, below: int, *, timeout_ms: int) -> None:
        """See `Log.truncate`. Raises `start` durably first, then removes entries in steps, so that
        appends pass in between.

        A power failure may restore removed entries. Nothing reads below `start`, and the next
        truncation removes them.
        """
        with self._storage.transaction("BEGIN IMMEDIATE", timeout_ms=timeout_ms) as bounds:
            start = max(below, bounds.start)
            check_position(self.name, start, start=bounds.start, end=bounds.end)
            self._storage.connection.execute("UPDATE log SET start_offset = ?", (start,))
        with self._storage.lazily():
            while (
                self._storage.step(partial(self._remove_some, start), timeout_ms=timeout_ms)
                == TRUNCATE_STEP_ENTRIES
            ):
                pass

    def _remove_some(self, below: int) -> int:
        """Remove up to `TRUNCATE_STEP_ENTRIES` entries below `below`, the oldest first. Return how
        many were removed.
        """
        first = "SELECT offset FROM entries WHERE offset < ? ORDER BY offset LIMIT ?"
        query = f"DELETE FROM entries WHERE offset IN ({first})"  # noqa: S608 - no input in it
        return self._storage.connection.execute(query, (below, TRUNCATE_STEP_ENTRIES)).rowcount

    def check_storage(self) -> None:
        """Let SQLite check all its pages: with a damaged page, a read may silently omit entries.

        Raises `LogDamaged` with the first problem, and what `read` raises.
        """
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX):
            problem = self._storage.problem()
        if problem is not None:
            raise LogDamaged(log=self.name, problem=problem)

    def close(self) -> None:
        """See `Log.close`."""
        self._notifier.close()
        self._storage.close()


def checksum_of(offset: int, data: bytes) -> int:
    """Return a checksum of an entry's offset and bytes, since SQLite does not detect changed bytes
    on the disk.
    """
    return crc32(data, offset & 0xFFFFFFFF)
