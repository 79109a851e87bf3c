"""What stands in the file of an SQLite log: its tables, and how a file comes to have them.

May live here: the schema, making it, bringing an older file up to it, and telling a file of ours from others. Functions over
a connection; what the tables are used for is in `sqlite_log` and `sqlite_snapshot_store`.

`entries` holds the log, and `log` its bounds in one row, with the time of the newest append (see `log_time`), and that
from which on entries bear their own, for those who look at the file. In `snapshot` each row has the number of the
replacement that wrote it, and `snapshot_marker` says in one row which of them is the newest that counts (see `sqlite_snapshot_store`).
`history snapshot` and `history_marker` are the same of the log's history snapshot. A file gets them, and so format 3, when its history
snapshot is first claimed.

`decisions` is no part of the log: what balancers decided, for people and other programs. A file gets it with the first of them, and
whatever becomes of it, the log stands.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from pathlib import Path
from typing import Final

from equipoise.channel.core.errors import LogDamaged
from equipoise.channel.core.log import FIRST_OFFSET

APPLICATION_ID: Final = 0x45515053  # "EQPS"
FORMAT: Final = 2
FORMAT_WITH_HISTORY: Final = 3

SNAPSHOT: Final = "twin"
HISTORY: Final = "floor"
DECISIONS: Final = "decisions"

SKIP_AFTER_RESTART: Final = 1_000_000
"""Offsets left out on the first open after a machine's restart. It must be more than a power cut can take back, which is
what the WAL holds that was never forced to the disk: 16 MiB, or 160,000 records of 100 bytes."""

_APPENDED_MS: Final = "appended_ms INTEGER NOT NULL DEFAULT 0"
_BEGUN_MS: Final = "begun_ms INTEGER NOT NULL DEFAULT 0"
_ENTRIES_1: Final = "CREATE TABLE entries (offset INTEGER PRIMARY KEY, data BLOB NOT NULL, checksum INTEGER NOT NULL"
_LOG_1: Final = "CREATE TABLE log (identity TEXT NOT NULL, start_offset INTEGER NOT NULL, end_offset INTEGER NOT NULL, boot TEXT NOT NULL"
_ROWS: Final = "(key BLOB NOT NULL, generation INTEGER NOT NULL, data BLOB, PRIMARY KEY (key, generation)) WITHOUT ROWID"
_MARKER: Final = "(claim INTEGER NOT NULL, generation INTEGER NOT NULL, is_tidy INTEGER NOT NULL, data BLOB)"
_SNAPSHOT_TABLES: Final = (f"CREATE TABLE {SNAPSHOT} {_ROWS}", f"CREATE TABLE {SNAPSHOT}_marker {_MARKER}")
_HISTORY_TABLES: Final = (f"CREATE TABLE {HISTORY} {_ROWS}", f"CREATE TABLE {HISTORY}_marker {_MARKER}")
_DECISIONS_TABLE: Final = (
    f"CREATE TABLE {DECISIONS} (id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, broker TEXT NOT NULL, kind TEXT NOT NULL, "
    "strategy TEXT NOT NULL, result TEXT NOT NULL, cause TEXT NOT NULL, document TEXT NOT NULL)"
)
_TABLES_1: Final = (f"{_ENTRIES_1})", f"{_LOG_1})")
# By name, and spelled as SQLite itself spells a table to which a column was added, so that a file brought up looks like one made anew.
_ENTRIES: Final = f"{_ENTRIES_1}, {_APPENDED_MS})"
_LOG: Final = f"{_LOG_1}, {_BEGUN_MS}, {_APPENDED_MS})"
_TABLES: Final = (_ENTRIES, _LOG, *_SNAPSHOT_TABLES)


def found_format(connection: sqlite3.Connection, path: Path, *, log: str) -> int:
    """The format of the file, as of one instant: 0 for one that holds nothing at all.

    Raises `LogDamaged` for one that is not ours, of a version to come, or not as it was made; `log` is the log's name.
    """
    in_transaction = connection.in_transaction
    if not in_transaction:  # Another process may be making the log between two looks.
        connection.execute("BEGIN")
    try:
        return _format(connection, path, log=log)
    finally:
        if not in_transaction and connection.in_transaction:
            connection.execute("ROLLBACK")


def _format(connection: sqlite3.Connection, path: Path, *, log: str) -> int:
    [(application_id,)] = connection.execute("PRAGMA application_id").fetchall()
    found = connection.execute("SELECT tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()
    if application_id == 0 and not found:
        return 0
    if application_id != APPLICATION_ID:
        raise LogDamaged(log=log, problem=f"{path} is an SQLite database of another program")
    [(file_format,)] = connection.execute("PRAGMA user_version").fetchall()
    if file_format not in _TABLES_OF:
        problem = f"{path} has format {file_format}, and this version reads format {FORMAT_WITH_HISTORY} and older ones"
        raise LogDamaged(log=log, problem=problem)
    tables = [statement for table, statement in found if table != DECISIONS.encode()]
    if tables != [statement.encode() for statement in _TABLES_OF[file_format]]:
        raise LogDamaged(log=log, problem=f"the tables in {path} are not as they were made")
    return int(file_format)


_TABLES_OF: Final = {1: _TABLES_1, FORMAT: _TABLES, FORMAT_WITH_HISTORY: (_ENTRIES, *_HISTORY_TABLES, _LOG, *_SNAPSHOT_TABLES)}


def create(connection: sqlite3.Connection, *, boot: str) -> None:
    """Make the tables in a file that holds nothing, within the caller's transaction."""
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    now_ms = time.time_ns() // 1_000_000
    values = (uuid.uuid4().hex, FIRST_OFFSET, FIRST_OFFSET - 1, boot, now_ms, now_ms)
    connection.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)", values)
    _begin_snapshot(connection)


def bring_up(connection: sqlite3.Connection) -> None:
    """Make a file of format 1 one as it is made today, within the caller's transaction.

    Its last entry gets the time of now, as which all below it count then (see `SqliteLog.position_at`).
    """
    connection.execute(f"ALTER TABLE entries ADD COLUMN {_APPENDED_MS}")
    connection.execute(f"ALTER TABLE log ADD COLUMN {_BEGUN_MS}")
    connection.execute(f"ALTER TABLE log ADD COLUMN {_APPENDED_MS}")
    for statement in _SNAPSHOT_TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    now_ms = time.time_ns() // 1_000_000
    connection.execute("UPDATE log SET begun_ms = :now_ms, appended_ms = :now_ms", {"now_ms": now_ms})
    connection.execute("UPDATE entries SET appended_ms = ? WHERE offset = (SELECT max(offset) FROM entries)", (now_ms,))
    _begin_snapshot(connection)


def _begin_snapshot(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO twin_marker VALUES (0, 0, 1, NULL)")


def has_history_snapshot(connection: sqlite3.Connection) -> bool:
    """Whether the file has the tables of a history snapshot."""
    [(file_format,)] = connection.execute("PRAGMA user_version").fetchall()
    return bool(file_format >= FORMAT_WITH_HISTORY)


def make_history_snapshot(connection: sqlite3.Connection) -> None:
    """Make the tables of a history snapshot, instead of those that the file may have, within the caller's transaction."""
    connection.execute(f"DROP TABLE IF EXISTS {HISTORY}")
    connection.execute(f"DROP TABLE IF EXISTS {HISTORY}_marker")
    for statement in _HISTORY_TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT_WITH_HISTORY}")
    # Far above the claims on a history snapshot that was here before, so that none of them counts for this one.
    claim = time.time_ns()
    connection.execute("INSERT INTO floor_marker VALUES (?, 0, 1, NULL)", (claim,))


def has_decisions(connection: sqlite3.Connection) -> bool:
    """Whether the file has the table of decisions."""
    [(known,)] = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", (DECISIONS,)).fetchall()
    return bool(known)


def make_decisions(connection: sqlite3.Connection) -> None:
    """Make the table of decisions, within the caller's transaction. Its ids rise: the newest row is never the one that goes."""
    connection.execute(_DECISIONS_TABLE)


def is_of_other_boot(connection: sqlite3.Connection, boot: str) -> bool:
    """Whether the log was last opened in another run of the machine."""
    [(known,)] = connection.execute("SELECT count(*) FROM log WHERE boot = ?", (boot,)).fetchall()
    return not known


def skip_ahead(connection: sqlite3.Connection, boot: str) -> None:
    """Leave out the offsets that a power cut may have taken back, within the caller's transaction."""
    connection.execute("UPDATE log SET boot = ?, end_offset = end_offset + ?", (boot, SKIP_AFTER_RESTART))
