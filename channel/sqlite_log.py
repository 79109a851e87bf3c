"""The `Log` in one SQLite file, shared by all processes of one machine.

May live here: `SqliteLog` and what SQLite needs to be a log: transactions that many processes contend for, the file's
identity, its WAL's size, and the translation of its errors. How a reader is woken is told in `sqlite_bell`.

Theory of operation:

* WAL mode. Readers never block writers nor the reverse. One write transaction per append, taken by BEGIN IMMEDIATE;
  a read transaction per read, ended at once, since an open one keeps the WAL from starting over.
* Waiting for the write lock is done here, by short random sleeps: behind SQLite's own busy handler, which sleeps longer
  each time, four writers starve one another for seconds.
* Offsets are chosen by the writer from the table `log`, in the transaction that inserts the entries, so they follow the
  order of commits. A row id given by SQLite would be used again after truncation.
* The WAL is moved into the database by the writer that made it `WAL_PAGES` long, after its commit. Readers and writers
  may go on meanwhile. Only if it grew to `WAL_BYTES_MAX` nevertheless (writers that never pause) are they held
  until it starts over. While a process is stopped within a read, the WAL cannot start over and grows with what is
  appended.
* On the first open after the machine started, offsets skip ahead: with `Synchronous.NORMAL` a power cut may take back
  appends whose offsets were seen, and a fencing token must never be issued twice.
* Never open the database file by other means than SQLite in a process that has the log open: closing such a descriptor
  drops the locks that SQLite holds on it (POSIX locks belong to the process).
"""

from __future__ import annotations

import contextlib
import enum
import os
import random
import sqlite3
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from zlib import crc32

from channel.errors import Bug, EquipoiseError, InvalidLogUrl, LogDamaged, LogNotBegun, LogReplaced, LogStorageFull, LogUnavailable
from channel.file_system import MOUNT_TABLE, refuse_network_file_system
from channel.log import FIRST_OFFSET, READ_BYTES_MAX, READ_ENTRIES_MAX, Entry, check_batch, check_position
from channel.sqlite_bell import Bell
from channel.sqlite_file import BOOT_ID, FileId, connect, is_disk_full, sync_folder, this_boot, usable_path, with_id

APPLICATION_ID: Final = 0x45515053  # "EQPS"
FORMAT: Final = 1

SKIP_AFTER_RESTART: Final = 1_000_000
"""Offsets left out on the first open after a machine's restart. It must be more than a power cut can take back, which is
what the WAL holds that was never forced to the disk: 16 MiB, or 160,000 records of 100 bytes."""

RECHECK_MS: Final = 250
"""How long a waiting reader trusts the bell before it looks for itself: what a writer costs that is killed between its
commit and its ring. Four looks a second of about 40 microseconds each are no load."""

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

TRUNCATE_STEP_ENTRIES: Final = 1_000
"""Entries removed per transaction: about 60 pages, and some milliseconds of the write lock."""

_TABLES: Final = (
    "CREATE TABLE entries (offset INTEGER PRIMARY KEY, data BLOB NOT NULL, checksum INTEGER NOT NULL)",
    "CREATE TABLE log (identity TEXT NOT NULL, start_offset INTEGER NOT NULL, end_offset INTEGER NOT NULL, boot TEXT NOT NULL)",
)
_SCHEMA: Final = (
    *_TABLES,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
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


class _Bounds(NamedTuple):
    """The first offset that can be read, the last that was issued (or skipped), and that of the newest entry, if there is one."""

    start: int
    end: int
    newest: int | None


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
        """Open the log at `path`, and make it if it is not there and `create` says so; `name` is its URL, for messages.

        `boot_id` and `mount_table` are files of Linux that tell about the machine, see `sqlite_file` and `file_system`.

        Raises `InvalidLogUrl`, `LogNotBegun`, `NetworkFileSystem`, `LogDamaged`, `LogUnavailable`, `LogStorageFull`.
        """
        self.name = name
        self._path = usable_path(path, url=name, create=create)
        refuse_network_file_system(self._path, mount_table=mount_table)
        boot = this_boot(boot_id)
        if synchronous is Synchronous.NORMAL and not boot:
            raise InvalidLogUrl(url=name, problem="synchronous=normal needs a system that tells when it was started, as Linux does")
        self._wal_bytes = 0
        self._wal_look_ns = 0  # The first call looks, for a writer that makes no second one.
        try:
            self._connection = connect(self._path, create=create)
        except sqlite3.Error as error:
            raise self._translated(error, in_doubt=False) from error
        self._bell = Bell(f"{self._path}-bell", use_inotify=use_inotify)
        try:
            self.identity = self._retry(lambda: self._prepare(synchronous, boot, create=create), timeout_ms=OPEN_MS_MAX)
            self._files = with_id(self._path), with_id(Path(f"{self._path}-shm"))
            self._wal = with_id(Path(f"{self._path}-wal"))
        except BaseException:
            self.close()
            raise

    def append(self, batch: Sequence[bytes], *, timeout_ms: int) -> Sequence[int]:
        """See `Log.append`."""
        check_batch(self.name, batch)
        if not batch:
            return ()
        with self._transaction("BEGIN IMMEDIATE", timeout_ms=timeout_ms) as bounds:
            first = bounds.end + 1
            rows = [(offset, data, _checksum(offset, data)) for offset, data in enumerate(batch, first)]
            self._connection.executemany("INSERT INTO entries (offset, data, checksum) VALUES (?, ?, ?)", rows)
            self._connection.execute("UPDATE log SET end_offset = ?", (bounds.end + len(rows),))
        self._bell.ring()
        self._bound_wal()
        return range(first, first + len(rows))

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        """See `Log.read`."""
        assert limit > 0, "a read of no entries cannot tell the end from a limit"
        entries: list[Entry] = []
        entries_bytes = 0
        with self._transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            check_position(self.name, position, start=bounds.start, end=bounds.end)
            query = "SELECT offset, data, checksum FROM entries WHERE offset >= ? ORDER BY offset LIMIT ?"
            with contextlib.closing(self._connection.execute(query, (position, min(limit, READ_ENTRIES_MAX)))) as rows:
                for offset, data, checksum in rows:
                    if type(data) is not bytes or _checksum(offset, data) != checksum:
                        raise LogDamaged(log=self.name, problem=f"the entry at offset {offset} does not match its checksum", offset=offset)
                    if offset < position:  # A damaged page leads astray; a reader that followed would go round for ever.
                        raise LogDamaged(log=self.name, problem=f"the entry at offset {offset} stands out of order", offset=offset)
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
            woken = self._bell.listen()  # Before the look, so that a commit after the look rings into the sleep.
            if self._is_there(position):
                return True
            remaining_ms = -((time.monotonic_ns() - give_up_ns) // 1_000_000)
            if woken or remaining_ms <= 0:
                return False
            self._bell.sleep(min(remaining_ms, RECHECK_MS))

    def _is_there(self, position: int) -> bool:
        """Whether an entry stands at `position` or above. The end does not tell: after a restart it lies above a gap."""
        # One statement, a transaction by itself: every reader asks twice for each append, and each one hands the GIL around.
        bounds = self._retry(self._bounds, timeout_ms=READ_MS_MAX)
        self._check_files()
        check_position(self.name, position, start=bounds.start, end=bounds.end)
        return bounds.newest is not None and bounds.newest >= position

    def wake(self) -> None:
        """See `Log.wake`."""
        self._bell.wake()

    def start(self) -> int:
        """See `Log.start`."""
        with self._transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            return bounds.start

    def end(self) -> int:
        """See `Log.end`."""
        with self._transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            return bounds.end

    def truncate(self, below: int, *, timeout_ms: int) -> None:
        """See `Log.truncate`. `start` is raised first and entries removed in steps, so that appends pass in between."""
        with self._transaction("BEGIN IMMEDIATE", timeout_ms=timeout_ms) as bounds:
            start = max(below, bounds.start)
            check_position(self.name, start, start=bounds.start, end=bounds.end)
            self._connection.execute("UPDATE log SET start_offset = ?", (start,))
        step = "SELECT offset FROM entries WHERE offset < ? ORDER BY offset LIMIT ?"
        removed = TRUNCATE_STEP_ENTRIES
        while removed == TRUNCATE_STEP_ENTRIES:
            with self._transaction("BEGIN IMMEDIATE", timeout_ms=timeout_ms):
                delete = self._connection.execute(f"DELETE FROM entries WHERE offset IN ({step})", (start, TRUNCATE_STEP_ENTRIES))  # noqa: S608 - no input in it
                removed = delete.rowcount

    def check_storage(self) -> None:
        """Have SQLite look at all its pages: where one is damaged, a read may leave out entries and notice nothing.

        Raises `LogDamaged` with the first problem, and what `read` raises.
        """
        with self._transaction("BEGIN", timeout_ms=READ_MS_MAX):
            [(problem,)] = self._connection.execute("PRAGMA quick_check(1)").fetchall()
        if problem != b"ok":
            raise LogDamaged(log=self.name, problem=" ".join(problem.decode("utf-8", "replace").split()))

    def close(self) -> None:
        """See `Log.close`."""
        self._bell.close()
        self._connection.close()

    def _prepare(self, synchronous: Synchronous, boot: str, *, create: bool) -> str:
        """Make the connection ready, and the file too if it is new or the machine was restarted; the log's identity.

        1. Refuse what is not ours, or is not to be made, before anything is written to it. 2. Switch the settings on that
        live in the connection and the file. 3. Make the tables, or skip ahead, if that is due: looked up again once the write
        lock is held, since another process may do the same. An open of a log that is in order takes no lock.
        """
        is_new = self._found_new()  # 1.
        if is_new and not create:
            raise LogNotBegun(log=self.name, problem=f"{self._path} is empty")
        [(journal_mode,)] = self._connection.execute("PRAGMA journal_mode = WAL").fetchall()  # 2.
        if journal_mode != b"wal":
            raise LogDamaged(log=self.name, problem=f"SQLite cannot use a WAL on {self._path}")
        for setting in (f"PRAGMA synchronous = {synchronous.value}", *_SETTINGS):
            self._connection.execute(setting).fetchall()
        if is_new or self._is_of_other_boot(boot):  # 3.
            self._connection.execute("BEGIN IMMEDIATE")
            if self._is_new():
                self._create(boot)
            elif self._is_of_other_boot(boot):
                self._connection.execute("UPDATE log SET boot = ?, end_offset = end_offset + ?", (boot, SKIP_AFTER_RESTART))
            self._connection.execute("COMMIT")
            sync_folder(self._path)
        self._bounds()
        [(identity,)] = self._connection.execute("SELECT identity FROM log").fetchall()
        if type(identity) is not bytes:
            raise LogDamaged(log=self.name, problem=f"its identity says {identity!r}")
        return identity.decode("ascii", "replace")

    def _found_new(self) -> bool:
        """As `_is_new`, of one instant: another process may be making the log between two looks."""
        self._connection.execute("BEGIN")
        try:
            return self._is_new()
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _is_new(self) -> bool:
        """Whether the file holds nothing at all; raises `LogDamaged` if it holds something that is no log of ours."""
        [(application_id,)] = self._connection.execute("PRAGMA application_id").fetchall()
        tables = self._connection.execute("SELECT sql FROM sqlite_master ORDER BY rowid").fetchall()
        if application_id == 0 and not tables:
            return True
        if application_id != APPLICATION_ID:
            raise LogDamaged(log=self.name, problem=f"{self._path} is an SQLite database of another program")
        [(file_format,)] = self._connection.execute("PRAGMA user_version").fetchall()
        if file_format != FORMAT:
            raise LogDamaged(log=self.name, problem=f"{self._path} has format {file_format}, and this version reads format {FORMAT}")
        if tables != [(statement.encode(),) for statement in _TABLES]:
            raise LogDamaged(log=self.name, problem=f"the tables in {self._path} are not as they were made")
        return False

    def _create(self, boot: str) -> None:
        for statement in _SCHEMA:
            self._connection.execute(statement)
        self._connection.execute("INSERT INTO log VALUES (?, ?, ?, ?)", (uuid.uuid4().hex, FIRST_OFFSET, FIRST_OFFSET - 1, boot))

    def _is_of_other_boot(self, boot: str) -> bool:
        [(known,)] = self._connection.execute("SELECT count(*) FROM log WHERE boot = ?", (boot,)).fetchall()
        return not known

    @contextlib.contextmanager
    def _transaction(self, begin: str, *, timeout_ms: int) -> Iterator[_Bounds]:
        """Run the block in a transaction that `begin` begins, and end it; whatever is raised, none is left open.

        All errors of SQLite leave it as ours. Only that of a COMMIT leaves doubt whether the transaction took place.
        """
        bounds = self._retry(lambda: self._begin(begin), timeout_ms=timeout_ms)
        committing = False
        try:
            yield bounds
            self._check_files()
            committing = True
            self._connection.execute("COMMIT")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._roll_back()
            raise self._translated(error, in_doubt=committing and begin != "BEGIN") from error
        except BaseException:
            self._roll_back()
            raise

    def _retry(self, attempt: Callable[[], Result], *, timeout_ms: int) -> Result:
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

    def _begin(self, begin: str) -> _Bounds:
        self._connection.execute(begin)
        return self._bounds()  # A reading transaction takes its lock only here.

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # The error that led here says more.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _bounds(self) -> _Bounds:
        rows = self._connection.execute("SELECT start_offset, end_offset, (SELECT max(offset) FROM entries) FROM log").fetchall()
        match rows:
            case [(int(start), int(end), int() | None as newest)] if FIRST_OFFSET <= start <= end + 1:
                return _Bounds(start, end, newest)
        raise LogDamaged(log=self.name, problem=f"its table of bounds says {rows!r:.100}")

    def _check_files(self) -> None:
        """Raise `LogReplaced` unless the paths still lead to the files that are open.

        Otherwise a writer would go on in a file that nobody else sees, and there would be two logs with a set of brokers each.
        """
        for path, file_id in self._files:
            self._check_file(path, file_id)
        now_ns = time.monotonic_ns()
        if now_ns >= self._wal_look_ns:
            self._wal_look_ns = now_ns + WAL_LOOK_MS * 1_000_000
            self._wal_bytes = self._check_file(*self._wal).st_size

    def _check_file(self, path: Path, file_id: FileId) -> os.stat_result:
        try:
            status = path.stat()
        except OSError as error:
            raise LogReplaced(log=self.name, path=str(path)) from error
        if (status.st_dev, status.st_ino) != file_id:
            raise LogReplaced(log=self.name, path=str(path))
        return status

    def _bound_wal(self) -> None:
        """Make a WAL that was too large when last looked at start over; if somebody is in the way, after the next look."""
        if self._wal_bytes < WAL_BYTES_MAX:
            return
        self._wal_bytes = 0
        with contextlib.suppress(sqlite3.Error):  # What was appended stands, whatever becomes of the WAL.
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

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


def _checksum(offset: int, data: bytes) -> int:
    """Of an entry's place and its bytes: the database itself would not notice a byte that changed on the disk."""
    return crc32(data, offset & 0xFFFFFFFF)
