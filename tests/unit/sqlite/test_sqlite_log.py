"""What only the SQLite log can meet, and what it then says: a file that is full, locked, denied,
replaced; a restart; a long WAL.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from equipoise.channel.core.errors import (
    Bug,
    CallerError,
    LogDamaged,
    LogStorageFull,
    LogUnavailable,
    OperatorError,
)
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.sqlite import log as sqlite_log
from equipoise.channel.sqlite import storage as sqlite_storage
from equipoise.channel.sqlite.format import SKIP_AFTER_RESTART
from equipoise.channel.sqlite.log import TRUNCATE_STEP_ENTRIES, Notifier, SqliteLog
from equipoise.channel.sqlite.storage import (
    RETRY_MS_MAX,
    RETRY_MS_MIN,
    WAL_BYTES_KEPT,
    WAL_BYTES_MAX,
    Synchronous,
)
from tests.unit.sqlite.sqlite_files import (
    TIMEOUT_MS,
    URL,
    append,
    edit,
    file_size_limit,
    make,
    open_at,
)

NOBODY = 65_534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the log is."""
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[SqliteLog]:
    """A handle on a new log."""
    with closing(open_at(path)) as made:
        yield made


def append_silently(path: Path, offset: int) -> None:
    """Append an entry as a writer does that is killed before it rings the notifier."""
    edit(
        path,
        "INSERT INTO entries VALUES (:offset, x'62', 0, 0)",
        "UPDATE log SET end_offset = :offset",
        offset=offset,
    )


@contextmanager
def as_nobody() -> Iterator[None]:
    """Lower the rights of this process, if it has any to lower: to the superuser nothing is
    denied.
    """
    user = os.geteuid()
    if user == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("mode", [0o444, 0o000], ids=["read-only", "unreadable"])
def test_a_file_that_may_not_be_written_is_refused(mode: int) -> None:
    """A file of somebody else is refused with words that say which rights are wanting."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.db")
        make(path, b"a")
        path.chmod(mode)
        Path(folder).chmod(0o555)
        try:
            with as_nobody(), pytest.raises(LogDamaged, match="this user must be able to write"):
                open_at(path)
        finally:
            Path(folder).chmod(0o755)


def test_a_system_without_shared_memory_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where SQLite cannot use a WAL, the log is not opened with less than that."""

    def connect_without_shared_memory(path: Path, *, create: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{path}?vfs=unix-dotfile", uri=True, isolation_level=None
        )
        connection.text_factory = bytes
        return connection

    monkeypatch.setattr(sqlite_storage, "connect", connect_without_shared_memory)
    with pytest.raises(LogDamaged, match="SQLite cannot use a WAL"):
        open_at(path)


def test_a_network_file_system_is_refused(path: Path, tmp_path: Path) -> None:
    """On a network file system no log is made."""
    table = tmp_path / "mountinfo"
    table.write_text("22 1 254:0 / / rw - nfs4 store:/export rw\n")
    with pytest.raises(OperatorError, match=r"log\.db lies on nfs4"):
        open_at(path, mount_table=table)
    assert not path.exists()


def test_a_full_database_takes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the storage is full an append says so and leaves nothing behind; reading and smaller
    appends go on.
    """

    class SmallConnection(sqlite3.Connection):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type] # as it was called
            self.execute("PRAGMA max_page_count = 40")

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=SmallConnection))
    with closing(open_at(path)) as log:
        offsets = append(log, b"a")
        with pytest.raises(LogStorageFull) as caught:
            append(log, b"small", b"large" * 40_000)
        assert URL == caught.value.log
        assert [(offsets[0], b"a")] == list(log.read(FIRST_OFFSET, limit=10))
        assert offsets[0] < append(log, b"b")[0]


def test_a_commit_that_fails_leaves_doubt(log: SqliteLog, path: Path) -> None:
    """An error of the disk within a commit is told as doubt, and the log goes on when the disk
    does.
    """
    offsets = append(log, b"a")
    wal_bytes = path.with_name("log.db-wal").stat().st_size
    with (
        file_size_limit(wal_bytes),
        pytest.raises(LogUnavailable, match="may or may not be on it") as caught,
    ):
        append(log, b"lost")
    assert caught.value.in_doubt
    offsets += append(log, b"b")
    assert list(zip(offsets, [b"a", b"b"], strict=True)) == list(log.read(FIRST_OFFSET, limit=10))


def test_a_misused_log_is_a_bug(path: Path) -> None:
    """Whoever goes on with a log that is closed gets an error that asks for a report."""
    log = open_at(path)
    log.close()
    with pytest.raises(Bug, match="closed database"):
        append(log, b"a")


def begin_immediate(path: Path) -> sqlite3.Connection:
    """Somebody who holds the write lock."""
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    return holder


def test_a_held_write_lock_makes_writers_give_up_in_time(log: SqliteLog, path: Path) -> None:
    """While somebody holds the write lock, writers give up without doubt at their timeout, and
    readers read on.
    """
    offsets = append(log, b"a", b"b")
    holder = begin_immediate(path)
    for write in (
        lambda: log.append([b"c"], timeout_ms=20),
        lambda: log.truncate(offsets[1], timeout_ms=20),
    ):
        with pytest.raises(LogUnavailable, match=r"for 20 ms; .*nothing was appended") as caught:
            write()
        assert not caught.value.in_doubt
    assert 2 == len(log.read(FIRST_OFFSET, limit=10))
    with closing(open_at(path)) as newcomer:
        assert 2 == newcomer.end()
    holder.close()
    assert offsets[-1] < append(log, b"c")[0]


def test_damage_that_is_mended_is_forgotten(log: SqliteLog, path: Path) -> None:
    """A handle that met damage leaves nothing open behind it, and works again once the file is
    mended.
    """
    append(log, b"a")
    edit(path, "UPDATE log SET end_offset = -1")
    with pytest.raises(LogDamaged, match="bounds"):
        append(log, b"b")
    edit(path, "UPDATE log SET end_offset = 1")
    append(log, b"b")
    assert [b"a", b"b"] == [entry.data for entry in log.read(FIRST_OFFSET, limit=10)]


def open_another_before_begin(
    monkeypatch: pytest.MonkeyPatch, open_another: Callable[[], SqliteLog]
) -> None:
    """Let the next handle that is opened be overtaken by another one, just before it takes the
    write lock.
    """

    class OvertakenConnection(sqlite3.Connection):
        def __init__(self, *args: object, **options: object) -> None:
            super().__init__(*args, **options)  # type: ignore[arg-type] # as it was called
            self.set_trace_callback(self.trace)

        def trace(self, statement: str) -> None:
            if statement == "BEGIN IMMEDIATE":
                self.set_trace_callback(None)
                monkeypatch.undo()
                open_another().close()

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=OvertakenConnection))


def test_two_that_make_a_log_at_once_make_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is overtaken while making a log uses the one that the other made."""
    made: list[str] = []

    def open_another() -> SqliteLog:
        another = open_at(path)
        made.append(another.identity)
        append(another, b"a")
        return another

    open_another_before_begin(monkeypatch, open_another)
    with closing(open_at(path)) as log:
        assert made == [log.identity]
        assert [(FIRST_OFFSET, b"a")] == list(log.read(FIRST_OFFSET, limit=10))


def test_two_that_skip_ahead_at_once_skip_once(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is overtaken while skipping ahead after a restart does not skip again."""
    open_at(path, boot_id=boot(tmp_path, "monday")).close()
    tuesday = boot(tmp_path, "tuesday")
    open_another_before_begin(monkeypatch, lambda: open_at(path, boot_id=tuesday))
    with closing(open_at(path, boot_id=tuesday)) as log:
        assert FIRST_OFFSET - 1 + SKIP_AFTER_RESTART == log.end()


def test_a_writer_in_the_way_is_outwaited(
    log: SqliteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer tries again after each random sleep, and goes through once the lock is free."""
    holder = begin_immediate(path)
    sleeps: list[float] = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds * 1_000)
        if len(sleeps) == 5:
            holder.close()

    monkeypatch.setattr(time, "sleep", sleep)
    append(log, b"a")
    assert 5 == len(sleeps) == len(set(sleeps))
    assert all(RETRY_MS_MIN <= sleep_ms <= RETRY_MS_MAX for sleep_ms in sleeps)


def test_opening_gives_up_on_a_file_that_somebody_keeps(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that another process holds for itself alone cannot be opened, and says so after a
    bounded time.
    """
    make(path, b"a")
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("UPDATE log SET boot = boot")
        monkeypatch.setattr(sqlite_storage, "OPEN_MS_MAX", 20)
        with pytest.raises(LogUnavailable, match="for 20 ms"):
            open_at(path)
    open_at(path).close()


def test_a_commit_rings_for_those_who_wait(
    log: SqliteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each append wakes a reader that never looks for itself, when what was appended can be read,
    and not earlier.
    """
    monkeypatch.setattr(sqlite_log, "RECHECK_MS", 3_600_000)
    with closing(open_at(path)) as reader, ThreadPoolExecutor(1) as pool:
        try:
            for offset in range(FIRST_OFFSET, FIRST_OFFSET + 100):
                waiting = pool.submit(reader.wait, offset, timeout_ms=3_600_000)
                append(log, b"a")
                assert waiting.result(TIMEOUT_MS / 1_000)
        finally:
            reader.wake()


def test_a_lost_ring_delays_a_reader_and_no_more(
    log: SqliteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit whose writer died before it rang the notifier is found by the reader's own
    looking.
    """
    offset = append(log, b"a")[0] + 1
    sleeps: list[int] = []

    def sleep(notifier: Notifier, timeout_ms: int) -> bool:
        sleeps.append(timeout_ms)
        if len(sleeps) == 2:
            append_silently(path, offset)
        return False

    monkeypatch.setattr(Notifier, "sleep", sleep)
    assert log.wait(offset, timeout_ms=3_600_000)
    assert [sqlite_log.RECHECK_MS] * 2 == sleeps


def replace_with_a_copy(path: Path) -> None:
    """Restore an older copy while the log is open."""
    copy = path.with_name("copy.db")
    shutil.copyfile(path, copy)
    copy.replace(path)


def delete_the_wal(path: Path) -> None:
    """Clean up what grew so large."""
    path.with_name("log.db-wal").unlink()


def delete_side_files(path: Path) -> None:
    """Clean up what looks like left-overs."""
    path.with_name("log.db-wal").unlink()
    path.with_name("log.db-shm").unlink()


@dataclass(frozen=True, kw_only=True)
class Loss:
    id: str
    lose: Callable[[Path], None]
    file: str


LOSSES = (
    Loss(id="deleted", lose=Path.unlink, file="log.db"),
    Loss(id="replaced", lose=replace_with_a_copy, file="log.db"),
    Loss(id="side-files-deleted", lose=delete_side_files, file="log.db-shm"),
    Loss(id="wal-deleted", lose=delete_the_wal, file="log.db-wal"),
)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.id)
def test_a_log_that_was_taken_away_stops_everybody(
    path: Path, loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a file of the log is another one, no call gives or takes entries of the old one: each
    names the file.
    """
    monkeypatch.setattr(sqlite_storage, "WAL_LOOK_MS", 0)
    make(path, b"a")
    with closing(open_at(path)) as log:
        append(log, b"b")
        loss.lose(path)
        calls: tuple[Callable[[], object], ...] = (
            lambda: append(log, b"c"),
            lambda: log.read(FIRST_OFFSET, limit=10),
            lambda: log.wait(log.end() + 1, timeout_ms=TIMEOUT_MS),
            lambda: log.truncate(FIRST_OFFSET + 1, timeout_ms=TIMEOUT_MS),
            log.start,
            log.end,
        )
        for call in calls:
            with pytest.raises(
                OperatorError, match=f"{path.with_name(loss.file)} of the log {URL} was"
            ):
                call()


def boot(tmp_path: Path, boot_id: str) -> Path:
    """The file in which Linux tells its present run, saying so."""
    file = tmp_path / "boot_id"
    file.write_text(f"{boot_id}\n")
    return file


def test_offsets_skip_ahead_after_a_restart_of_the_machine(path: Path, tmp_path: Path) -> None:
    """The first handle after a restart leaves a gap that nothing waits for; those after it leave
    none.
    """
    with closing(open_at(path, boot_id=boot(tmp_path, "monday"))) as log:
        newest = append(log, b"a", b"b")[-1]
    first = open_at(path, boot_id=boot(tmp_path, "tuesday"))
    second = open_at(path, boot_id=boot(tmp_path, "tuesday"))
    assert newest + SKIP_AFTER_RESTART == first.end() == second.end()
    assert not second.wait(newest + 1, timeout_ms=0)
    assert [] == list(second.read(newest + 1, limit=10))
    offset = append(first, b"c")[0]
    assert newest + SKIP_AFTER_RESTART < offset
    assert [(offset, b"c")] == list(second.read(newest + 1, limit=10))
    first.close()
    second.close()


def test_without_restarts_to_tell_only_full_durability_is_given(path: Path, tmp_path: Path) -> None:
    """Where the system does not tell its restarts, offsets do not skip, so appends that a power cut
    takes back are refused.
    """
    missing = tmp_path / "missing"
    for _ in range(2):
        with closing(open_at(path, boot_id=missing)) as log:
            assert FIRST_OFFSET - 1 == log.end()
    with pytest.raises(CallerError, match="needs a system that identifies its boot"):
        open_at(path, boot_id=missing, synchronous=Synchronous.NORMAL)


def grow_wal(path: Path) -> None:
    """Make the WAL longer than it may be, as writers do that never leave it a pause."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE ballast (data BLOB)")
        connection.execute("INSERT INTO ballast VALUES (zeroblob(?))", (WAL_BYTES_MAX + 4_096,))
        connection.commit()
        connection.execute("DROP TABLE ballast")
        connection.commit()


def test_a_wal_that_grew_too_large_starts_over(log: SqliteLog, path: Path) -> None:
    """An append that finds the WAL too large makes it start over, without losing anything."""
    grow_wal(path)
    wal = path.with_name("log.db-wal")
    assert WAL_BYTES_MAX < wal.stat().st_size
    append(log, b"a")
    assert 0 == wal.stat().st_size
    append(log, b"b")
    assert [b"a", b"b"] == [entry.data for entry in log.read(FIRST_OFFSET, limit=10)]


def test_a_reader_in_the_way_does_not_stop_writers(log: SqliteLog, path: Path) -> None:
    """While somebody reads the WAL it stays large and appends go on; once they are gone it
    shrinks.
    """
    append(log, b"a")
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchall()
        grow_wal(path)
        wal = path.with_name("log.db-wal")
        for _ in range(3):
            append(log, b"b")
        assert WAL_BYTES_MAX < wal.stat().st_size
    append(log, b"c")
    append(log, b"d")
    assert WAL_BYTES_KEPT >= wal.stat().st_size
    assert [b"a", b"b", b"b", b"b", b"c", b"d"] == [
        entry.data for entry in log.read(FIRST_OFFSET, limit=10)
    ]


def test_a_truncation_that_broke_off_is_hidden_and_finished_by_the_next(
    log: SqliteLog, path: Path
) -> None:
    """Entries that a truncation left behind are never read, and go with the next truncation."""
    offsets = append(log, *[b"a"] * (2 * TRUNCATE_STEP_ENTRIES))
    # The first step of a truncation whose process was killed.
    edit(path, "UPDATE log SET start_offset = :start", start=offsets[-1])
    assert 1 == len(log.read(log.start(), limit=10))
    log.truncate(offsets[-1], timeout_ms=TIMEOUT_MS)
    with closing(sqlite3.connect(path)) as connection:
        assert [(1,)] == connection.execute("SELECT count(*) FROM entries").fetchall()


def test_a_truncation_leaves_the_lock_to_others_between_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step it pauses for as long as it held the lock, so that appends are not held up
    for all of it.
    """
    log = open_at(tmp_path / "log.db")
    append(log, *[b"x"] * (2 * TRUNCATE_STEP_ENTRIES + 1))
    other = open_at(tmp_path / "log.db")
    pauses_s: list[float] = []

    def pause(seconds: float) -> None:
        pauses_s.append(seconds)
        append(other, b"between")

    monkeypatch.setattr("equipoise.channel.sqlite.storage.time.sleep", pause)
    log.truncate(log.end(), timeout_ms=TIMEOUT_MS)
    assert [True] * 3 == [0 < seconds < TIMEOUT_MS / 1_000 for seconds in pauses_s]
    log.close()
    other.close()


def test_the_time_of_appends_never_falls(log: SqliteLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set back does not date newer entries before older ones."""
    now_ms = time.time_ns() // 1_000_000 + 10_000
    times_ms = iter((now_ms, now_ms - 5_000, now_ms + 5_000))
    monkeypatch.setattr(time, "time_ns", lambda: next(times_ms) * 1_000_000)
    for record in (b"a", b"b", b"c"):
        append(log, record)
    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    assert [1, 1, 3] == [
        log.position_at(time_ms) for time_ms in (now_ms - 5_000, now_ms, now_ms + 1)
    ]
