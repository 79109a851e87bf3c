"""Define, create and recognise the tables of an SQLite log.

* `entries` holds the records.
* `log` holds one row: the bounds, and the time of the newest append (see `clocks`).
* `SNAPSHOT` holds the snapshot's rows, each with the number of the replacement that wrote it.
  `SNAPSHOT`_marker holds one row with the newest number that counts (see `snapshot_store`).
* `HISTORY` and its marker are the same for the history snapshot.
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
FORMAT: Final = 1

SNAPSHOT: Final = "snapshot"
HISTORY: Final = "history"

SKIP_AFTER_RESTART: Final = 1_000_000
"""Offsets skipped at the first open after a restart of the machine.

It must exceed what a power failure can undo: the part of the WAL not yet on the disk, 16 MiB or
160,000 records of 100 bytes.
"""

_ROWS: Final = (
    "(key BLOB NOT NULL, generation INTEGER NOT NULL, data BLOB, PRIMARY KEY (key, generation))"
    " WITHOUT ROWID"
)
_MARKER: Final = (
    "(claim INTEGER NOT NULL, generation INTEGER NOT NULL, is_tidy INTEGER NOT NULL, data BLOB)"
)
_HISTORY_TABLES: Final = (
    f"CREATE TABLE {HISTORY} {_ROWS}",
    f"CREATE TABLE {HISTORY}_marker {_MARKER}",
)
_TABLES: Final = (
    (
        "CREATE TABLE entries (offset INTEGER PRIMARY KEY, data BLOB NOT NULL,"
        " checksum INTEGER NOT NULL, appended_ms INTEGER NOT NULL)"
    ),
    (
        "CREATE TABLE log (identity TEXT NOT NULL, start_offset INTEGER NOT NULL,"
        " end_offset INTEGER NOT NULL, boot TEXT NOT NULL, appended_ms INTEGER NOT NULL)"
    ),
    f"CREATE TABLE {SNAPSHOT} {_ROWS}",
    f"CREATE TABLE {SNAPSHOT}_marker {_MARKER}",
    *_HISTORY_TABLES,
)


def holds_log(connection: sqlite3.Connection, path: Path, *, log: str) -> bool:
    """Return whether the file holds a log, and not nothing. Reads in one transaction.

    Raises `LogDamaged` for a file of another program, another format, or changed tables, and
    `OperatorError` for a trigger. Ignores what else is in the file. `log` is the log's name.
    """
    in_transaction = connection.in_transaction
    if not in_transaction:  # Another process may be creating the log between two reads.
        connection.execute("BEGIN")
    try:
        return _holds_log(connection, path, log=log)
    finally:
        if not in_transaction and connection.in_transaction:
            connection.execute("ROLLBACK")


def _holds_log(connection: sqlite3.Connection, path: Path, *, log: str) -> bool:
    [(application_id,)] = connection.execute("PRAGMA application_id").fetchall()
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    if application_id == 0 and not found:
        return False
    if application_id != APPLICATION_ID:
        raise LogDamaged(log=log, problem=f"{path} is an SQLite database of another program")
    [(file_format,)] = connection.execute("PRAGMA user_version").fetchall()
    if file_format != FORMAT:
        problem = f"{path} has format {file_format}, and this version reads format {FORMAT}"
        raise LogDamaged(log=log, problem=problem)
    tables = {
        name.decode(): statement.decode() for kind, name, _, statement in found if kind == b"table"
    }
    ours = {statement.split()[2]: statement for statement in _TABLES}
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
    return True


def create(connection: sqlite3.Connection, *, boot: str) -> None:
    """Create the tables in an empty file, within the caller's transaction."""
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    values = (uuid.uuid4().hex, FIRST_OFFSET, FIRST_OFFSET - 1, boot, time.time_ns() // 1_000_000)
    connection.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?)", values)
    connection.execute("INSERT INTO snapshot_marker VALUES (0, 0, 1, NULL)")
    connection.execute("INSERT INTO history_marker VALUES (0, 0, 1, NULL)")


def remake_history_snapshot(connection: sqlite3.Connection) -> None:
    """Replace the tables of a history snapshot by empty ones, within the caller's transaction."""
    connection.execute(f"DROP TABLE {HISTORY}")
    connection.execute(f"DROP TABLE {HISTORY}_marker")
    for statement in _HISTORY_TABLES:
        connection.execute(statement)
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
