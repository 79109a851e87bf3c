"""Run transactions on the file of an SQLite log: wait for locks, bound the WAL, detect a replaced
file, translate errors.
"""

from __future__ import annotations

import contextlib
import enum
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from equipoise.channel.core.errors import (
    Bug,
    EquipoiseError,
    LogDamaged,
    LogNotBegun,
    LogReplaced,
    LogStorageFull,
    LogUnavailable,
)
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.sqlite.file import FileId, connect, is_disk_full, sync_folder, with_id
from equipoise.channel.sqlite.format import create, holds_log, is_of_other_boot, skip_ahead

OPEN_MS_MAX: Final = 5_000
"""How long opening waits for other processes, which hold the file for milliseconds to create or
recover it."""

READ_MS_MAX: Final = 1_000
"""How long a read waits while another process recovers the WAL of a killed one."""

RETRY_MS_MIN: Final = 0.25
RETRY_MS_MAX: Final = 1.0
"""The random sleep between two attempts at the write lock.

An append holds the lock for 0.1 ms to 40 ms. An attempt costs 5 microseconds, so waiting for a
stopped writer takes 1 % of a core.
"""

WAL_PAGES: Final = 1_000
"""Pages in the WAL after which a commit moves them into the database: SQLite's default, 1 ms to 10
ms of work."""

WAL_BYTES_KEPT: Final = WAL_PAGES * 4_096
"""The size that a larger WAL is cut to when it starts over."""

WAL_BYTES_MAX: Final = 4 * WAL_BYTES_KEPT
"""The size of the WAL at which an append blocks other writers until the WAL can start over."""

WAL_LOOK_MS: Final = 250
"""How often the size of the WAL is checked.

Not at each call: after a stat the next write must record its exact time, which makes that commit a
fifth slower. At 100 MB/s the WAL grows by 25 MB meanwhile.
"""

_SETTINGS: Final = (
    "PRAGMA fullfsync = ON",  # Where fsync alone does not reach the disk (macOS).
    f"PRAGMA wal_autocheckpoint = {WAL_PAGES}",
    f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}",
)

_DOUBTFUL: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_MISREAD: Final = (*_DOUBTFUL, sqlite3.SQLITE_IOERR)

_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)

Result = TypeVar("Result")


class Synchronous(enum.Enum):
    """What an append waits for. Either way it survives the death of every process."""

    FULL = "FULL"
    """The disk has the data: it survives a power failure."""
    NORMAL = "NORMAL"
    """The operating system has the data: a power failure may undo the newest appends, always a
    suffix of the log."""


class Bounds(NamedTuple):
    """The bounds of the log.

    * `start`: the first readable offset.
    * `end`: the last offset issued or skipped.
    * `appended_ms`: the time of the newest append.
    * `newest`: the offset of the newest entry, or None if there is none.
    """

    start: int
    end: int
    appended_ms: int
    newest: int | None


class SqliteStorage:
    """A connection to the file of one log, for one thread at a time."""

    def __init__(
        self, path: Path, *, name: str, synchronous: Synchronous, boot: str, create: bool
    ) -> None:
        """Open the file at `path`; `create` makes an empty one a log. `name` is the log's URL, for
        messages.

        Raises `LogNotBegun`, `LogDamaged`, `LogUnavailable`, `LogStorageFull`.
        """
        self.name = name
        self._path = path
        self._synchronous = synchronous
        self._wal_bytes = 0
        self._wal_look_ns = 0  # The first call checks, for a writer that makes only one.
        try:
            self.connection = connect(path, create=create)
        except sqlite3.Error as error:
            raise self._translated(error, in_doubt=False) from error
        try:
            self.identity = self.retry(
                lambda: self._prepare(boot, may_create=create), timeout_ms=OPEN_MS_MAX
            )
            self._files = with_id(path), with_id(Path(f"{path}-shm"))
            self._wal = with_id(Path(f"{path}-wal"))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @contextlib.contextmanager
    def transaction(self, begin: str, *, timeout_ms: int) -> Iterator[Bounds]:
        """Run the block in a transaction that the statement `begin` starts. Commit, or roll back on
        any error.

        SQLite's errors are translated. Only an error of COMMIT leaves in doubt whether the
        transaction took place.
        """
        bounds = self.retry(lambda: self._begin(begin), timeout_ms=timeout_ms)
        committing = False
        try:
            yield bounds
            self.check_files()
            committing = True
            self.connection.execute("COMMIT")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._roll_back()
            raise self._failed(error, in_doubt=committing and begin != "BEGIN") from error
        except BaseException:
            self._roll_back()
            raise

    def step(self, change: Callable[[], Result], *, timeout_ms: int) -> Result:
        """Make one of many changes in its own transaction, then leave the write lock free for as
        long as it was held.
        """
        with self.transaction("BEGIN IMMEDIATE", timeout_ms=timeout_ms):
            held_ns = -time.monotonic_ns()
            changed = change()
        held_ns += time.monotonic_ns()
        self.bound_wal()
        time.sleep(held_ns / 1_000_000_000)
        return changed

    @contextlib.contextmanager
    def lazily(self) -> Iterator[None]:
        """Do not wait for the disk in the block's transactions.

        Use it for steps whose loss in a power failure is harmless (always the newest ones), because
        a later durable commit includes them or they are repeated. This shortens the time that the
        write lock is held. Other connections still wait for the disk.
        """
        try:
            self.retry(lambda: self._set_synchronous(Synchronous.NORMAL), timeout_ms=READ_MS_MAX)
            yield
        finally:
            self.retry(lambda: self._set_synchronous(self._synchronous), timeout_ms=READ_MS_MAX)

    def retry(self, attempt: Callable[[], Result], *, timeout_ms: int) -> Result:
        """Return the result of `attempt`, retried while another process holds a lock, and once
        after an error of reading.
        """
        give_up_ns = time.monotonic_ns() + timeout_ms * 1_000_000
        reads_again = False
        while True:
            try:
                return attempt()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                self._roll_back()
                if _primary_code(error) not in _BUSY:
                    failure = self._failed(error, in_doubt=False)
                    if reads_again or not isinstance(failure, LogUnavailable):
                        raise failure from error
                    reads_again = True
                elif time.monotonic_ns() >= give_up_ns:
                    problem = (
                        f"another process held its lock for {timeout_ms} ms; if a process is"
                        " stopped, resume or end it"
                    )
                    raise LogUnavailable(log=self.name, problem=problem, in_doubt=False) from error
            except BaseException:
                self._roll_back()
                raise
            # It keeps writers out of step.
            time.sleep(random.uniform(RETRY_MS_MIN, RETRY_MS_MAX) / 1_000)  # noqa: S311

    def reopen(self) -> None:
        """Go on with a fresh connection, which has read no page yet. If that fails, keep the old
        one.
        """
        with contextlib.suppress(sqlite3.Error):
            fresh = connect(self._path, create=False)
            try:
                self._set_up(fresh, self._synchronous)
            except BaseException:
                fresh.close()
                raise
            # Only now: the last connection to be closed removes the WAL.
            self.connection.close()
            self.connection = fresh

    def problem(self) -> str | None:
        """Let SQLite check all pages. Return the first problem; None if the file is whole. Raises
        SQLite's error if it cannot be read.
        """
        try:
            [(found,)] = self.connection.execute("PRAGMA quick_check(1)").fetchall()
        except sqlite3.Error as error:
            if _primary_code(error) not in _DOUBTFUL:
                raise
            return str(error)
        return None if found == b"ok" else " ".join(found.decode("utf-8", "replace").split())

    def bounds(self) -> Bounds:
        """Return the bounds of the log, in the caller's transaction or in an own one."""
        query = (
            "SELECT start_offset, end_offset, appended_ms, (SELECT max(offset) FROM entries)"
            " FROM log"
        )
        rows = self.connection.execute(query).fetchall()
        match rows:
            case [(int(start), int(end), int(appended_ms), int() | None as newest)] if (
                FIRST_OFFSET <= start <= end + 1
            ):
                return Bounds(start, end, appended_ms, newest)
        raise LogDamaged(log=self.name, problem=f"its table of bounds contains {rows!r:.100}")

    def check_files(self) -> None:
        """Raise `OperatorError` unless the paths still lead to the open files.

        Otherwise a writer would go on in a file that nobody else sees, and there would be two logs
        with a set of brokers each.
        """
        for path, file_id in self._files:
            self._check_file(path, file_id)
        now_ns = time.monotonic_ns()
        if now_ns >= self._wal_look_ns:
            self._wal_look_ns = now_ns + WAL_LOOK_MS * 1_000_000
            self._wal_bytes = self._check_file(*self._wal).st_size

    def bound_wal(self) -> None:
        """Make the WAL start over if it was too large at the last check. If a reader is in the way,
        retry after the next check.
        """
        if self._wal_bytes < WAL_BYTES_MAX:
            return
        self._wal_bytes = 0
        with contextlib.suppress(sqlite3.Error):  # The append stands, even if this fails.
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _prepare(self, boot: str, *, may_create: bool) -> str:
        """Prepare the connection, and the file if it is new, old, or the machine was restarted.
        Return the log's identity.

        1. Refuse a foreign or missing log before anything is written.
        2. Apply the settings of the connection and the file.
        3. Create the tables, or skip ahead. Check again under the write lock, since
           another process may do the same. Wait for the disk under every setting: a second power
           failure must not undo what guards against the first.

        Opening a log that needs none of this takes no lock.
        """
        is_there = self._is_there()  # 1.
        if not is_there and not may_create:
            raise LogNotBegun(log=self.name, problem=f"{self._path} is empty")
        [(journal_mode,)] = self.connection.execute("PRAGMA journal_mode = WAL").fetchall()  # 2.
        if journal_mode != b"wal":
            raise LogDamaged(log=self.name, problem=f"SQLite cannot use a WAL on {self._path}")
        self._set_up(self.connection, Synchronous.FULL)
        if not is_there or is_of_other_boot(self.connection, boot):  # 3.
            self.connection.execute("BEGIN IMMEDIATE")
            self._make_up(boot)
            self.connection.execute("COMMIT")
            sync_folder(self._path)
        self._set_synchronous(self._synchronous)
        self.bounds()
        [(identity,)] = self.connection.execute("SELECT identity FROM log").fetchall()
        if type(identity) is not bytes:
            raise LogDamaged(log=self.name, problem=f"its identity is {identity!r}")
        return identity.decode("ascii", "replace")

    def _make_up(self, boot: str) -> None:
        if not self._is_there():
            create(self.connection, boot=boot)
        elif is_of_other_boot(self.connection, boot):
            skip_ahead(self.connection, boot)

    def _is_there(self) -> bool:
        return holds_log(self.connection, self._path, log=self.name)

    @staticmethod
    def _set_up(connection: sqlite3.Connection, synchronous: Synchronous) -> None:
        for setting in (f"PRAGMA synchronous = {synchronous.value}", *_SETTINGS):
            connection.execute(setting).fetchall()

    def _set_synchronous(self, synchronous: Synchronous) -> None:
        self.connection.execute(f"PRAGMA synchronous = {synchronous.value}").fetchall()

    def _begin(self, begin: str) -> Bounds:
        self.connection.execute(begin)
        return self.bounds()  # A read transaction takes its lock only here.

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # The error that led here is more informative.
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def _check_file(self, path: Path, file_id: FileId) -> os.stat_result:
        try:
            status = path.stat()
        except OSError as error:
            raise LogReplaced(log=self.name, path=str(path)) from error
        if (status.st_dev, status.st_ino) != file_id:
            raise LogReplaced(log=self.name, path=str(path))
        return status

    def _failed(
        self, error: sqlite3.Error | UnicodeDecodeError, *, in_doubt: bool
    ) -> EquipoiseError:
        """Translate an error of SQLite, and read with a fresh connection from now on if a page
        could not be read.

        One such error proves nothing: the disk, the memory or another program may have failed for a
        moment. Only SQLite's own check of the whole file does. It takes about a second per GB, and
        a broker that is late for it fences itself.
        """
        code = _primary_code(error)
        if code in _MISREAD:
            self.reopen()
        if code not in _DOUBTFUL:
            return self._translated(error, in_doubt=in_doubt)
        try:
            problem = self.problem()
        except sqlite3.Error as unread:
            return self._translated(unread, in_doubt=in_doubt)
        if problem is not None:
            return LogDamaged(
                log=self.name,
                problem=f"{error}, and SQLite's check of {self._path} finds: {problem}",
            )
        whole = (
            f"{error}, but SQLite's check of {self._path} finds it whole: look for errors of its"
            " disk"
        )
        return LogUnavailable(log=self.name, problem=whole, in_doubt=in_doubt)

    def _translated(
        self, error: sqlite3.Error | UnicodeDecodeError, *, in_doubt: bool
    ) -> EquipoiseError:
        """Translate an error of SQLite. `in_doubt`: the transaction may have taken place.

        SQLITE_FULL leaves no doubt: the frame that makes a transaction valid was not written.
        """
        match _primary_code(error):
            case None if isinstance(error, UnicodeDecodeError):
                return LogDamaged(log=self.name, problem="its schema holds text that is not UTF-8")
            case None:
                return Bug(f"the log {self.name} was misused: {error}; please report it")
            case sqlite3.SQLITE_FULL:
                return LogStorageFull(log=self.name)
            case sqlite3.SQLITE_IOERR if not in_doubt and is_disk_full(self._path):
                return LogStorageFull(log=self.name)
            case (
                sqlite3.SQLITE_IOERR
                | sqlite3.SQLITE_BUSY
                | sqlite3.SQLITE_LOCKED
                | sqlite3.SQLITE_PROTOCOL
            ):
                return LogUnavailable(log=self.name, problem=str(error), in_doubt=in_doubt)
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
                problem = (
                    f"{error}: this user must be able to write to {self._path}, its -wal and -shm,"
                    " and their folder"
                )
                return LogDamaged(log=self.name, problem=problem)
            case _:
                return LogDamaged(log=self.name, problem=str(error))


def _primary_code(error: sqlite3.Error | UnicodeDecodeError) -> int | None:
    """Return SQLite's primary result code, or None for an error that the Python module raised."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
