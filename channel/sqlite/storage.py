"""The file of an SQLite log in use: its connection, the transactions that many processes contend for, and what goes wrong.

May live here: `SqliteStorage`, on which the log, its snapshot and its history snapshot stand, and what they need of SQLite: waiting for
the write lock, the file's identity while it is open, its WAL's size, and the translation of its errors. What stands in the file is told in
`sqlite_format`, where the file may be in `sqlite_file`.
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

from equipoise.channel.core.errors import Bug, EquipoiseError, LogDamaged, LogNotBegun, LogReplaced, LogStorageFull, LogUnavailable
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.sqlite.file import FileId, connect, is_disk_full, sync_folder, with_id
from equipoise.channel.sqlite.format import FORMAT, bring_up, create, found_format, is_of_other_boot, skip_ahead

OPEN_MS_MAX: Final = 5_000
"""How long opening waits for other processes: they hold the file for milliseconds, to make or to recover it."""

READ_MS_MAX: Final = 1_000
"""How long a read waits while SQLite lets nobody in: another process recovers the WAL of one that was killed."""

RETRY_MS_MIN: Final = 0.25
RETRY_MS_MAX: Final = 1.0
"""The sleep between two attempts at the write lock, drawn at random. An append holds it for 0.1 ms to 40 ms; an attempt
costs 5 microseconds, so that a writer which waits for a stopped one burns 1 % of a core."""

WAL_PAGES: Final = 1_000
"""Pages in the WAL from which on a commit moves them into the database: SQLite's default, 1 ms to 10 ms of work."""

WAL_BYTES_KEPT: Final = WAL_PAGES * 4_096
"""What a WAL that grew larger is cut to when it starts over."""

WAL_BYTES_MAX: Final = 4 * WAL_BYTES_KEPT
"""Size of the WAL from which on an append holds the other writers until it can start over."""

WAL_LOOK_MS: Final = 250
"""How often the WAL's file is looked at. Not at each call: a file whose times were asked for must note the exact time of
its next write, which makes that commit a fifth slower. Meanwhile, at 100 MB/s, it grows by 25 MB."""

_SETTINGS: Final = (
    "PRAGMA fullfsync = ON",  # Where fsync alone does not reach the disk (macOS).
    f"PRAGMA wal_autocheckpoint = {WAL_PAGES}",
    f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}",
)

_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)

Result = TypeVar("Result")


class Synchronous(enum.Enum):
    """What an append waits for. In either case it survives the death of every process."""

    FULL = "FULL"
    """Until the disk has it: it survives a power cut."""
    NORMAL = "NORMAL"
    """Until the operating system has it: a power cut may take back the newest appends, always a suffix of the log."""


class Bounds(NamedTuple):
    """The first offset that can be read, the last that was issued (or skipped), the time of the newest append, and its offset.

    The latter is None when there is no entry.
    """

    start: int
    end: int
    appended_ms: int
    newest: int | None


class SqliteStorage:
    """A connection to the file of one log. Used by one thread at a time."""

    def __init__(self, path: Path, *, name: str, synchronous: Synchronous, boot: str, create: bool) -> None:
        """Open the file at `path`, and make it a log if it is empty and `create` says so; `name` is the log's URL, for messages.

        Raises `LogNotBegun`, `LogDamaged`, `LogUnavailable`, `LogStorageFull`.
        """
        self.name = name
        self._path = path
        self._synchronous = synchronous
        self._wal_bytes = 0
        self._wal_look_ns = 0  # The first call looks, for a writer that makes no second one.
        try:
            self.connection = connect(path, create=create)
        except sqlite3.Error as error:
            raise self._translated(error, in_doubt=False) from error
        try:
            self.identity = self.retry(lambda: self._prepare(boot, may_create=create), timeout_ms=OPEN_MS_MAX)
            self._files = with_id(path), with_id(Path(f"{path}-shm"))
            self._wal = with_id(Path(f"{path}-wal"))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self.connection.close()

    @contextlib.contextmanager
    def transaction(self, begin: str, *, timeout_ms: int) -> Iterator[Bounds]:
        """Run the block in a transaction that `begin` begins, and end it; whatever is raised, none is left open.

        All errors of SQLite leave it as ours. Only that of a COMMIT leaves doubt whether the transaction took place.
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
            raise self._translated(error, in_doubt=committing and begin != "BEGIN") from error
        except BaseException:
            self._roll_back()
            raise

    def step(self, change: Callable[[], Result], *, timeout_ms: int) -> Result:
        """Make one of many changes in a transaction of its own, and leave the write lock to others for as long as that took."""
        with self.transaction("BEGIN IMMEDIATE", timeout_ms=timeout_ms):
            held_ns = -time.monotonic_ns()
            changed = change()
        held_ns += time.monotonic_ns()
        self.bound_wal()
        time.sleep(held_ns / 1_000_000_000)
        return changed

    @contextlib.contextmanager
    def lazily(self) -> Iterator[None]:
        """Let the transactions of the block wait for the operating system only, whatever the log's appends wait for.

        For steps that may be lost in a power cut, always the newest of them: because the next durable commit, which takes all
        before it along, is what counts, or because whoever comes next does again what is not done. The write lock is so held
        for a fraction of the time. Other connections, and what they append meanwhile, wait for the disk as ever.
        """
        try:
            self.retry(lambda: self._set_synchronous(Synchronous.NORMAL), timeout_ms=READ_MS_MAX)
            yield
        finally:
            self.retry(lambda: self._set_synchronous(self._synchronous), timeout_ms=READ_MS_MAX)

    def retry(self, attempt: Callable[[], Result], *, timeout_ms: int) -> Result:
        """What `attempt` returns, once no other process is in its way."""
        give_up_ns = time.monotonic_ns() + timeout_ms * 1_000_000
        while True:
            try:
                return attempt()
            except (sqlite3.Error, UnicodeDecodeError) as error:
                self._roll_back()
                if _primary_code(error) not in _BUSY:
                    raise self._translated(error, in_doubt=False) from error
                if time.monotonic_ns() >= give_up_ns:
                    problem = f"another process held its lock for all of {timeout_ms} ms; one that is stopped must be resumed or ended"
                    raise LogUnavailable(log=self.name, problem=problem, in_doubt=False) from error
            except BaseException:
                self._roll_back()
                raise
            time.sleep(random.uniform(RETRY_MS_MIN, RETRY_MS_MAX) / 1_000)  # noqa: S311 - it keeps writers out of step

    def bounds(self) -> Bounds:
        """The bounds of the log, in the caller's transaction or in one of their own."""
        query = "SELECT start_offset, end_offset, appended_ms, (SELECT max(offset) FROM entries) FROM log"
        rows = self.connection.execute(query).fetchall()
        match rows:
            case [(int(start), int(end), int(appended_ms), int() | None as newest)] if FIRST_OFFSET <= start <= end + 1:
                return Bounds(start, end, appended_ms, newest)
        raise LogDamaged(log=self.name, problem=f"its table of bounds says {rows!r:.100}")

    def check_files(self) -> None:
        """Raise `LogReplaced` unless the paths still lead to the files that are open.

        Otherwise a writer would go on in a file that nobody else sees, and there would be two logs with a set of brokers each.
        """
        for path, file_id in self._files:
            self._check_file(path, file_id)
        now_ns = time.monotonic_ns()
        if now_ns >= self._wal_look_ns:
            self._wal_look_ns = now_ns + WAL_LOOK_MS * 1_000_000
            self._wal_bytes = self._check_file(*self._wal).st_size

    def bound_wal(self) -> None:
        """Make a WAL that was too large when last looked at start over; if somebody is in the way, after the next look."""
        if self._wal_bytes < WAL_BYTES_MAX:
            return
        self._wal_bytes = 0
        with contextlib.suppress(sqlite3.Error):  # What was appended stands, whatever becomes of the WAL.
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _prepare(self, boot: str, *, may_create: bool) -> str:
        """Make the connection ready, and the file too if it is new, old, or the machine was restarted; the log's identity.

        1. Refuse what is not ours, or is not to be made, before anything is written to it. 2. Switch the settings on that
        live in the connection and the file. 3. Make the tables, bring them up, or skip ahead, if that is due: looked up again
        once the write lock is held, since another process may do the same. An open of a log that is in order takes no lock.
        """
        file_format = self._format()  # 1.
        if not file_format and not may_create:
            raise LogNotBegun(log=self.name, problem=f"{self._path} is empty")
        [(journal_mode,)] = self.connection.execute("PRAGMA journal_mode = WAL").fetchall()  # 2.
        if journal_mode != b"wal":
            raise LogDamaged(log=self.name, problem=f"SQLite cannot use a WAL on {self._path}")
        self._set_synchronous(self._synchronous)
        for setting in _SETTINGS:
            self.connection.execute(setting).fetchall()
        if file_format < FORMAT or is_of_other_boot(self.connection, boot):  # 3.
            self.connection.execute("BEGIN IMMEDIATE")
            self._make_up(boot)
            self.connection.execute("COMMIT")
            sync_folder(self._path)
        self.bounds()
        [(identity,)] = self.connection.execute("SELECT identity FROM log").fetchall()
        if type(identity) is not bytes:
            raise LogDamaged(log=self.name, problem=f"its identity says {identity!r}")
        return identity.decode("ascii", "replace")

    def _make_up(self, boot: str) -> None:
        file_format = self._format()
        if not file_format:
            create(self.connection, boot=boot)
            return
        if file_format < FORMAT:
            bring_up(self.connection)
        if is_of_other_boot(self.connection, boot):
            skip_ahead(self.connection, boot)

    def _format(self) -> int:
        return found_format(self.connection, self._path, log=self.name)

    def _set_synchronous(self, synchronous: Synchronous) -> None:
        self.connection.execute(f"PRAGMA synchronous = {synchronous.value}").fetchall()

    def _begin(self, begin: str) -> Bounds:
        self.connection.execute(begin)
        return self.bounds()  # A reading transaction takes its lock only here.

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # The error that led here says more.
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

    def _translated(self, error: sqlite3.Error | UnicodeDecodeError, *, in_doubt: bool) -> EquipoiseError:
        """Our error for one of SQLite. `in_doubt` says whether it came where a transaction may have taken place.

        SQLITE_FULL leaves no doubt even there: the frame that makes a transaction valid was not written.
        """
        match _primary_code(error):
            case None if isinstance(error, UnicodeDecodeError):
                return LogDamaged(log=self.name, problem="SQLite quotes from it what is no text")
            case None:
                return Bug(f"the log {self.name} was misused: {error}; please report it")
            case sqlite3.SQLITE_FULL:
                return LogStorageFull(log=self.name)
            case sqlite3.SQLITE_IOERR if not in_doubt and is_disk_full(self._path):
                return LogStorageFull(log=self.name)
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
                return LogUnavailable(log=self.name, problem=str(error), in_doubt=in_doubt)
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
                problem = f"{error}: this user must be able to write to {self._path}, its -wal and -shm, and their folder"
                return LogDamaged(log=self.name, problem=problem)
            case _:
                return LogDamaged(log=self.name, problem=str(error))


def _primary_code(error: sqlite3.Error | UnicodeDecodeError) -> int | None:
    """The primary result code of SQLite, or None for an error that the Python module raised itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
