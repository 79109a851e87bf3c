"""Publish findings outside the archive: in a table next to the log's file, or on a topic next to
the channel's.

A repeated batch publishes its findings again.

* The table keeps each once, by the identity that it has in the archive (`offset`, `ordinal`).
* The topic gets it again with the same key and bytes. Readers must drop duplicates.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from equipoise.brokers.runtime.observations.stores import FILE_SUFFIX
from equipoise.channel.core.errors import EquipoiseError, PeerError, invalid_log_url, missing_extra
from equipoise.channel.kafka.settings import address_of
from equipoise.channel.log.open_log import kafka_settings, log_path
from equipoise.channel.sqlite.file import connect
from equipoise.channel.system.file_system import refuse_network_file_system
from equipoise.spark_jobs.rules.rule import Finding

TOPIC_SUFFIX: Final = "-findings"

KEPT_MS: Final = 30 * 86_400_000
"""How long the topic keeps a finding. The archive keeps it for ever."""

ROWS_MAX: Final = 100_000
"""Rows to keep in the table, some 100 MB. Older ones are deleted."""

# How long a write waits for brokers that write to the same file. Each takes some milliseconds.
_LOCK_MS_MAX: Final = 5_000
_SETTINGS: Final = (
    f"PRAGMA busy_timeout = {_LOCK_MS_MAX}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
)
_MAKE: Final = (
    "CREATE TABLE IF NOT EXISTS findings (id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT"
    " NULL, offset INTEGER NOT NULL, ordinal INTEGER NOT NULL, rule TEXT NOT NULL, subject TEXT NOT"
    " NULL, document TEXT NOT NULL, UNIQUE (offset, ordinal))"
)
_INSERT: Final = (
    "INSERT OR IGNORE INTO findings (at_ms, offset, ordinal, rule, subject, document) VALUES (?, ?,"
    " ?, ?, ?, ?)"
)
_DELETE_OLD: Final = "DELETE FROM findings WHERE id <= (SELECT max(id) FROM findings) - ?"


def not_published(place: str, problem: object) -> PeerError:
    """Return the error for findings that cannot be published outside the archive."""
    repair = "bring that back, and let this user write there; the archive has them meanwhile"
    return PeerError(f"findings cannot be written {place}: {problem}; {repair}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """A finding with its archive identity (`finding.offsets[-1]`, `ordinal`)."""

    ordinal: int
    finding: Finding


class FindingsOut(Protocol):
    """A destination of findings, for one thread at a time."""

    @property
    def place(self) -> str:
        """The place, for messages."""
        ...

    def put(self, findings: Sequence[Numbered]) -> None:
        """Write the findings of one batch, in order. After a `PeerError` none, some or all of them
        may be written.
        """
        ...


class FindingsTable:
    """The table `findings` in a file of observations, created with the first finding. See
    `FindingsOut`.
    """

    def __init__(self, path: Path, *, rows_max: int = ROWS_MAX) -> None:
        self.place = f"in the table findings of {path}"
        self._path = path
        self._rows_max = rows_max

    def put(self, findings: Sequence[Numbered]) -> None:
        """See `FindingsOut.put`. Writes all or nothing."""
        if not findings:
            return
        rows = [
            (
                each.finding.at_ms,
                each.finding.offsets[-1],
                each.ordinal,
                each.finding.rule,
                each.finding.subject,
                _text(each.finding),
            )
            for each in findings
        ]
        try:
            refuse_network_file_system(self._path)
            with closing(connect(self._path, create=True)) as connection:
                for setting in _SETTINGS:
                    connection.execute(setting).fetchall()
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_MAKE)
                connection.executemany(_INSERT, rows)
                connection.execute(_DELETE_OLD, (self._rows_max,))
                connection.execute("COMMIT")
        except (EquipoiseError, sqlite3.Error) as error:
            raise not_published(self.place, error) from error


def _text(finding: Finding) -> str:
    return finding.to_bytes().decode()


def findings_out(log_url: str) -> FindingsOut:
    """Return the destination for the log at `log_url`: a table next to a file, the topic
    `TOPIC-findings` next to a topic.

    Raise `CallerError` for other logs and without the extra `kafka`, and `InvalidKafkaSetting`.
    """
    path = log_path(log_url)
    if path is not None:
        return FindingsTable(Path(f"{path}{FILE_SUFFIX}"))
    if not log_url.startswith("kafka:"):
        raise invalid_log_url(
            url=log_url, problem="a log of this kind lives in one process, and Spark is another"
        )
    address = address_of(log_url)
    try:
        # The Kafka client is an extra.
        from equipoise.channel.kafka.client import Clients  # noqa: PLC0415

        # The same.
        from equipoise.spark_jobs.audit.findings_topic import FindingsTopic  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise missing_extra(what=f"the findings beside {log_url}", extra="kafka") from error
    return FindingsTopic(
        Clients(servers=address.servers, settings=kafka_settings()),
        f"{address.topic}{TOPIC_SUFFIX}",
        kept_ms=KEPT_MS,
    )
