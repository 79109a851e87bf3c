"""Keep the state of a plain process in one file, with its position and what it has still to
deliver, changed in one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import orjson

from equipoise.channel.core.errors import OperatorError
from equipoise.spark_jobs.rules.memory import StateRow

_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS standing (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS state (key TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS pending (number INTEGER PRIMARY KEY, documents BLOB NOT NULL)",
)


class StateFile:
    """The state of one process. One process at a time opens the file.

    * `positions`: the next offset of each source; empty in a new file.
    * `number`: the batches that were committed with documents so far.
    """

    def __init__(self, path: Path, *, version: int, log: str, remedy: str) -> None:
        """Open the file at `path`, or create it, for the log with the identity `log`.

        Raises `OperatorError` for a file that cannot be used, and for one of another log or
        version. `remedy` says what follows if it is removed.
        """
        self.path = path
        self._remedy = remedy
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(str(error)) from error
        try:
            self._open(version=version, log=log)
        except sqlite3.Error as error:
            self.close()
            raise self._unusable(str(error)) from error
        except OperatorError:
            self.close()
            raise

    def _open(self, *, version: int, log: str) -> None:
        # The exclusive lock, held to the end, keeps a second process out.
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL"):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._connection.execute("BEGIN IMMEDIATE")
        for table in _TABLES:
            self._connection.execute(table)
        fresh = {"version": version, "log": log, "positions": {}, "number": 0}
        self._connection.executemany(
            "INSERT OR IGNORE INTO standing VALUES (?, ?)",
            [(name, orjson.dumps(value)) for name, value in fresh.items()],
        )
        self._connection.execute("COMMIT")
        standing = {
            name: orjson.loads(value)
            for name, value in self._connection.execute("SELECT name, value FROM standing")
        }
        if standing["version"] != version:
            raise self._unusable(
                f"its version is {standing['version']}, this Equipoise has {version}"
            )
        if standing["log"] != log:
            raise self._unusable(f"it belongs to the log {standing['log']}, not to {log}")
        self.positions: dict[str, int] = standing["positions"]
        self.number: int = standing["number"]

    def rows(self) -> dict[str, bytes]:
        """Return the rows of the state."""
        return dict(self._connection.execute("SELECT key, data FROM state"))

    def pending(self) -> list[tuple[int, list[bytes]]]:
        """Return the documents that were committed and not delivered yet, by number."""
        return [
            (number, [each.encode() for each in orjson.loads(documents)])
            for number, documents in self._connection.execute(
                "SELECT number, documents FROM pending ORDER BY number"
            )
        ]

    def commit(
        self, changed: Iterable[StateRow], positions: Mapping[str, int], documents: Sequence[bytes]
    ) -> None:
        """Write changed rows, the positions after them and new documents to deliver, at once.

        Raises `OperatorError` if the file cannot be written; it is then unchanged.
        """
        number, named = (
            self.number + bool(documents),
            {str(each): at for each, at in positions.items()},
        )
        rows = list(changed)
        try:
            self._connection.execute("BEGIN")
            self._connection.executemany(
                "INSERT OR REPLACE INTO state VALUES (?, ?)",
                [(key, data) for key, data in rows if data is not None],
            )
            self._connection.executemany(
                "DELETE FROM state WHERE key = ?", [(key,) for key, data in rows if data is None]
            )
            self._connection.executemany(
                "UPDATE standing SET value = ? WHERE name = ?",
                [
                    (orjson.dumps(named), "positions"),
                    (orjson.dumps(number), "number"),
                ],
            )
            if documents:
                self._connection.execute(
                    "INSERT INTO pending VALUES (?, ?)",
                    (number, orjson.dumps([each.decode() for each in documents])),
                )
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise self._unwritable(error) from error
        self.positions, self.number = named, number

    def delivered(self, number: int) -> None:
        """Forget the documents up to `number`. Raises `OperatorError`."""
        try:
            self._connection.execute("DELETE FROM pending WHERE number <= ?", (number,))
        except sqlite3.Error as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _unwritable(self, error: sqlite3.Error) -> OperatorError:
        return OperatorError(
            f"the state file {self.path} cannot be written: {error}; fix that, and start again: it"
            " continues where it stopped"
        )

    def _unusable(self, problem: str) -> OperatorError:
        return OperatorError(
            f"the state file {self.path} cannot be used: {problem}; remove it and start again:"
            f" {self._remedy}"
        )
