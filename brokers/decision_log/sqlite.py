"""Keep the decisions of one machine in a table of the channel's file, readable with SQL and Spark.

`channel.sqlite.format` defines the table and ignores it when it checks the channel's own tables.
Each call opens and closes the file: decisions come seconds apart, opening takes 1 ms, and a kept
handle could hold a replaced file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, TypeVar

from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.decision_log.documents import decode, encode
from equipoise.brokers.errors import decision_log_unavailable
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.sqlite.file import BOOT_ID, this_boot, usable_path
from equipoise.channel.sqlite.format import has_decisions, make_decisions
from equipoise.channel.sqlite.storage import SqliteStorage, Synchronous
from equipoise.channel.system.file_system import refuse_network_file_system

ROWS_MAX: Final = 100_000
"""The rows that are kept: six days of rounds at the default interval, about 100 MB."""

# How long a read or write waits for other writers. A decision not written by then is lost, which is
# harmless; the wait is short enough for a lease to be renewed in time.
_LOCK_MS_MAX: Final = 500

_INSERT: Final = (
    "INSERT INTO decisions (at_ms, broker, kind, strategy, result, cause, document) VALUES (?, ?,"
    " ?, ?, ?, ?, ?)"
)
_TIDY: Final = "DELETE FROM decisions WHERE id <= (SELECT max(id) FROM decisions) - ?"
_NEWEST: Final = "SELECT document FROM decisions ORDER BY id DESC LIMIT ?"

_Answer = TypeVar("_Answer")


class SqliteDecisionLog:
    """A handle on the decisions in the file of the log at `path`, whose URL is `name`. See
    `DecisionLog`.
    """

    def __init__(self, path: str, *, name: str, rows_max: int = ROWS_MAX) -> None:
        self._path = path
        self._name = name
        self._rows_max = rows_max

    def write(self, decision: Decision) -> None:
        """See `DecisionLog.write`. A power failure may undo the newest ones."""
        document = encode(decision)
        row = (
            decision.at_ms,
            decision.broker,
            decision.kind,
            decision.strategy,
            *decision.outcome,
            document.decode(),
        )

        def insert(storage: SqliteStorage) -> None:
            with storage.transaction("BEGIN IMMEDIATE", timeout_ms=_LOCK_MS_MAX):
                if not has_decisions(storage.connection):
                    make_decisions(storage.connection)
                storage.connection.execute(_INSERT, row)
                storage.connection.execute(_TIDY, (self._rows_max,))
            storage.bound_wal()

        self._with_storage(insert)

    def newest(self, at_most: int) -> Sequence[Decision]:
        """See `DecisionLog.newest`."""

        def select(storage: SqliteStorage) -> Sequence[bytes]:
            with storage.transaction("BEGIN", timeout_ms=_LOCK_MS_MAX):
                if not has_decisions(storage.connection):
                    return ()
                return [
                    document
                    for (document,) in storage.connection.execute(_NEWEST, (at_most,))
                    if isinstance(document, bytes)
                ]

        found = [decode(document) for document in self._with_storage(select)]
        return [decision for decision in reversed(found) if decision is not None]

    def _with_storage(self, act: Callable[[SqliteStorage], _Answer]) -> _Answer:
        try:
            path = usable_path(self._path, url=self._name, create=False)
            refuse_network_file_system(path)
            with closing(self._opened(path)) as storage:
                return act(storage)
        except EquipoiseError as error:
            raise decision_log_unavailable(log=f"in {self._path}", problem=str(error)) from error

    def _opened(self, path: Path) -> SqliteStorage:
        return SqliteStorage(
            path,
            name=self._name,
            synchronous=Synchronous.NORMAL,
            boot=this_boot(BOOT_ID),
            create=False,
        )
