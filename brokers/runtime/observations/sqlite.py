"""The observations of one machine: a file beside that of the channel, whose writers and readers so never wait for these.

May live here: `SqliteObservations`, and its tables. Each call opens the file and lets go of it: observations come in bursts with
seconds between them, opening takes a millisecond, and a handle that is kept would hold on to a file that is replaced.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Final

from equipoise.brokers.runtime.observations.observed import Kind, Observation, ObservationsUnavailable
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.sqlite.file import connect
from equipoise.channel.system.file_system import refuse_network_file_system

ROWS_MAX: Final[Mapping[Kind, int]] = MappingProxyType({Kind.SERVING: 200_000, Kind.LOADS: 100_000})
"""The oldest rows beyond these go. Of what was served 60 MB, for 100,000 openings; of loads 100 to 200 MB, for a day of three brokers."""

TIDY_EVERY: Final = 500
"""Rows go when one comes whose number this divides, or that follows such a one in the same call: so a table may hold so many more."""

# How long a write waits for other writers; they are all done within milliseconds.
_LOCK_MS_MAX: Final = 500

_SETTINGS: Final = (f"PRAGMA busy_timeout = {_LOCK_MS_MAX}", "PRAGMA journal_mode = WAL", "PRAGMA synchronous = NORMAL")


class SqliteObservations:
    """A handle on the observations in the file at `path`, which is made with the first. See `Observations`."""

    def __init__(self, path: Path, *, rows_max: Mapping[Kind, int] = ROWS_MAX) -> None:
        self._path = path
        self._rows_max = rows_max

    def write(self, kind: Kind, observations: Sequence[Observation]) -> None:
        """See `Observations.write`: all of them are kept, or none is. A power cut may take the newest ones back."""
        if not observations:
            return
        try:
            refuse_network_file_system(self._path)
            with closing(connect(self._path, create=True)) as connection:
                for setting in _SETTINGS:
                    connection.execute(setting).fetchall()
                self._add(connection, kind, [(each.at_ms, each.broker, each.document.decode()) for each in observations])
        except (EquipoiseError, sqlite3.Error) as error:
            raise ObservationsUnavailable(place=f"in {self._path}", problem=str(error)) from error

    def _add(self, connection: sqlite3.Connection, kind: Kind, rows: Sequence[tuple[int, str, str]]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {kind} (id INTEGER PRIMARY KEY AUTOINCREMENT, "
            "at_ms INTEGER NOT NULL, broker TEXT NOT NULL, document TEXT NOT NULL)"
        )
        connection.executemany(f"INSERT INTO {kind} (at_ms, broker, document) VALUES (?, ?, ?)", rows)  # noqa: S608 - a name of ours
        [(newest,)] = connection.execute("SELECT last_insert_rowid()").fetchall()
        if newest % TIDY_EVERY < len(rows):
            connection.execute(f"DELETE FROM {kind} WHERE id <= ?", (newest - self._rows_max[kind],))  # noqa: S608 - as above
        connection.execute("COMMIT")
