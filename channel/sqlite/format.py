"""Define, create, upgrade and recognise the tables of an SQLite log.

* `entries` holds the records.
* `log` holds one row: the bounds, the time of the newest append (see `log_time`), and the time from
  which on entries have their own.
* `SNAPSHOT` holds the snapshot's rows, each with the number of the replacement that wrote it.
  `SNAPSHOT`_marker holds one row with the newest number that counts (see `snapshot_store`).
* `HISTORY` and its marker are the same for the history snapshot. The first claim of the history
  snapshot adds them and raises the format to 3.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from pathlib import Path
from typing import Final

from equipoise.channel.core.errors import LogDamaged, OperatorError
from equipoise.channel.core.log import FIRST_OFFSET

APPLICATION_ID: Final = 0x45515053  # "EQPS"
FORMAT: Final = 2
FORMAT_WITH_HISTORY: Final = 3

SNAPSHOT: Final = "snapshot"
HISTORY: Final = "history"

SKIP_AFTER_RESTART: Final = 1_000_000
"""Offsets skipped at the first open after a restart of the machine.

It must exceed what a power failure can undo: the part of the WAL not yet on the disk, 16 MiB or
160,000 records of 100 bytes.
"""

_APPENDED_MS: Final = "appended_ms INTEGER NOT NULL DEFAULT 0"
_BEGUN_MS: Final = "begun_ms INTEGER NOT NULL DEFAULT 0"
_ENTRIES_1: Final = (
    "CREATE TABLE entries (offset INTEGER PRIMARY KEY, data BLOB NOT NULL,"
    " checksum INTEGER NOT NULL"
)
_LOG_1: Final = (
    "CREATE TABLE log (identity TEXT NOT NULL, start_offset INTEGER NOT NULL, end_offset INTEGER"
    " NOT NULL, boot TEXT NOT NULL"
)
_ROWS: Final = (
    "(key BLOB NOT NULL, generation INTEGER NOT NULL, data BLOB, PRIMARY KEY (key, generation))"
    " WITHOUT ROWID"
)
_MARKER: Final = (
    "(claim INTEGER NOT NULL, generation INTEGER NOT NULL, is_tidy INTEGER NOT NULL, data BLOB)"
)
_SNAPSHOT_TABLES: Final = (
    f"CREATE TABLE {SNAPSHOT} {_ROWS}",
    f"CREATE TABLE {SNAPSHOT}_marker {_MARKER}",
)
_HISTORY_TABLES: Final = (
    f"CREATE TABLE {HISTORY} {_ROWS}",
    f"CREATE TABLE {HISTORY}_marker {_MARKER}",
)
_TABLES_1: Final = (f"{_ENTRIES_1})", f"{_LOG_1})")
# Columns are written as SQLite writes a table after ALTER TABLE, so that an upgraded file equals a
# new one.
_ENTRIES: Final = f"{_ENTRIES_1}, {_APPENDED_MS})"
_LOG: Final = f"{_LOG_1}, {_BEGUN_MS}, {_APPENDED_MS})"
_TABLES: Final = (_ENTRIES, _LOG, *_SNAPSHOT_TABLES)


def found_format(connection: sqlite3.Connection, path: Path, *, log: str) -> int:
    """Return the format of the file, or 0 for an empty file. Reads in one transaction.

    Raises `LogDamaged` for a file of another program, a newer format, or changed tables, and
    `OperatorError` for a trigger. Ignores what else is in the file. `log` is the log's name.
    """
    in_transaction = connection.in_transaction
    if not in_transaction:  # Another process may be creating the log between two reads.
        connection.execute("BEGIN")
    try:
        return _format(connection, path, log=log)
    finally:
        if not in_transaction and connection.in_transaction:
            connection.execute("ROLLBACK")


def _format(connection: sqlite3.Connection, path: Path, *, log: str) -> int:
    [(application_id,)] = connection.execute("PRAGMA application_id").fetchall()
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    if application_id == 0 and not found:
        return 0
    if application_id != APPLICATION_ID:
        raise LogDamaged(log=log, problem=f"{path} is an SQLite database of another program")
    [(file_format,)] = connection.execute("PRAGMA user_version").fetchall()
    if file_format not in _TABLES_OF:
        problem = (
            f"{path} has format {file_format}, and this version reads format {FORMAT_WITH_HISTORY}"
            " and older ones"
        )
        raise LogDamaged(log=log, problem=problem)
    tables = {
        name.decode(): statement.decode() for kind, name, _, statement in found if kind == b"table"
    }
    ours = {statement.split()[2]: statement for statement in _TABLES_OF[file_format]}
    changed = [name for name, statement in ours.items() if tables.get(name) != statement]
    if changed:
        raise LogDamaged(
            log=log, problem=f"another program has changed the table {changed[0]} in {path}"
        )
    # Statistics, replication and what else people keep beside our tables changes nothing. A trigger
    # changes what we write.
    triggers = [
        name.decode()
        for kind, name, table, _ in found
        if kind == b"trigger" and table.decode() in ours
    ]
    if triggers:
        raise OperatorError(
            f"the log {log} cannot be used: the trigger {triggers[0]} in {path} is not part of it,"
            f" and would change what brokers write; drop the trigger (DROP TRIGGER {triggers[0]})"
        )
    return int(file_format)


_TABLES_OF: Final = {
    1: _TABLES_1,
    FORMAT: _TABLES,
    FORMAT_WITH_HISTORY: (*_TABLES, *_HISTORY_TABLES),
}


def create(connection: sqlite3.Connection, *, boot: str) -> None:
    """Create the tables in an empty file, within the caller's transaction."""
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    now_ms = time.time_ns() // 1_000_000
    values = (uuid.uuid4().hex, FIRST_OFFSET, FIRST_OFFSET - 1, boot, now_ms, now_ms)
    connection.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)", values)
    _begin_snapshot(connection)


def bring_up(connection: sqlite3.Connection) -> None:
    """Upgrade a file of format 1 to `FORMAT`, within the caller's transaction.

    The last entry gets the current time, and all entries below it then count as that old (see
    `SqliteLog.position_at`).
    """
    connection.execute(f"ALTER TABLE entries ADD COLUMN {_APPENDED_MS}")
    connection.execute(f"ALTER TABLE log ADD COLUMN {_BEGUN_MS}")
    connection.execute(f"ALTER TABLE log ADD COLUMN {_APPENDED_MS}")
    for statement in _SNAPSHOT_TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    now_ms = time.time_ns() // 1_000_000
    connection.execute(
        "UPDATE log SET begun_ms = :now_ms, appended_ms = :now_ms", {"now_ms": now_ms}
    )
    connection.execute(
        "UPDATE entries SET appended_ms = ? WHERE offset = (SELECT max(offset) FROM entries)",
        (now_ms,),
    )
    _begin_snapshot(connection)


def _begin_snapshot(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO snapshot_marker VALUES (0, 0, 1, NULL)")


def has_history_snapshot(connection: sqlite3.Connection) -> bool:
    """Return whether the file has the tables of a history snapshot."""
    [(file_format,)] = connection.execute("PRAGMA user_version").fetchall()
    return bool(file_format >= FORMAT_WITH_HISTORY)


def make_history_snapshot(connection: sqlite3.Connection) -> None:
    """Create the tables of a history snapshot, replacing existing ones, within the caller's
    transaction.
    """
    connection.execute(f"DROP TABLE IF EXISTS {HISTORY}")
    connection.execute(f"DROP TABLE IF EXISTS {HISTORY}_marker")
    for statement in _HISTORY_TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT_WITH_HISTORY}")
    # Far above the claims of an earlier history snapshot, so that none of them is valid for this
    # one.
    claim = time.time_ns()
    connection.execute("INSERT INTO history_marker VALUES (?, 0, 1, NULL)", (claim,))


def is_of_other_boot(connection: sqlite3.Connection, boot: str) -> bool:
    """Return whether the log was last opened in another boot of the machine."""
    [(known,)] = connection.execute("SELECT count(*) FROM log WHERE boot = ?", (boot,)).fetchall()
    return not known


def skip_ahead(connection: sqlite3.Connection, boot: str) -> None:
    """Skip the offsets that a power failure may have undone, within the caller's transaction."""
    connection.execute(
        "UPDATE log SET boot = ?, end_offset = end_offset + ?", (boot, SKIP_AFTER_RESTART)
    )
