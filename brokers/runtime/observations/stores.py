"""Store observations beside the channel: in a file on one machine, or on Kafka.

Each call opens the file, which takes a millisecond: a handle kept open would miss a replaced file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Final

from equipoise.brokers.runtime.observations.records import (
    Kind,
    Observation,
    Observations,
    ObservationsUnavailable,
)
from equipoise.channel.core.errors import EquipoiseError, invalid_log_url, missing_extra
from equipoise.channel.kafka.settings import address_of
from equipoise.channel.log.open_log import is_in_memory, kafka_settings, log_path
from equipoise.channel.sqlite.file import connect
from equipoise.channel.system.file_system import refuse_network_file_system

ROWS_MAX: Final[Mapping[Kind, int]] = MappingProxyType({Kind.SERVING: 200_000, Kind.LOADS: 100_000})
"""Older rows are deleted. Serving: 60 MB, 100,000 openings. Loads: 100 to 200 MB, a day of three
brokers."""

DELETE_EVERY: Final = 500
"""Old rows are deleted once per this many, so a table may exceed its limit by so many."""

# How long a write waits for other writers, which take milliseconds.
_LOCK_MS_MAX: Final = 500

_SETTINGS: Final = (
    f"PRAGMA busy_timeout = {_LOCK_MS_MAX}",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
)


class SqliteObservations:
    """A handle on the observations in the file at `path`, which the first write creates. See
    `Observations`.
    """

    def __init__(self, path: Path, *, rows_max: Mapping[Kind, int] = ROWS_MAX) -> None:
        self._path = path
        self._rows_max = rows_max

    def write(self, kind: Kind, observations: Sequence[Observation]) -> None:
        """See `Observations.write`: all or none are stored. A power cut may undo the newest."""
        if not observations:
            return
        try:
            refuse_network_file_system(self._path)
            with closing(connect(self._path, create=True)) as connection:
                for setting in _SETTINGS:
                    connection.execute(setting).fetchall()
                self._add(
                    connection,
                    kind,
                    [(each.at_ms, each.broker, each.document.decode()) for each in observations],
                )
        except (EquipoiseError, sqlite3.Error) as error:
            raise ObservationsUnavailable(place=f"in {self._path}", problem=str(error)) from error

    def _add(
        self, connection: sqlite3.Connection, kind: Kind, rows: Sequence[tuple[int, str, str]]
    ) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {kind} (id INTEGER PRIMARY KEY AUTOINCREMENT, "
            "at_ms INTEGER NOT NULL, broker TEXT NOT NULL, document TEXT NOT NULL)"
        )
        # A name of ours.
        connection.executemany(
            f"INSERT INTO {kind} (at_ms, broker, document) VALUES (?, ?, ?)",  # noqa: S608
            rows,
        )
        [(newest,)] = connection.execute("SELECT last_insert_rowid()").fetchall()
        if newest % DELETE_EVERY < len(rows):
            # As above.
            connection.execute(
                f"DELETE FROM {kind} WHERE id <= ?",  # noqa: S608
                (newest - self._rows_max[kind],),
            )
        connection.execute("COMMIT")


FILE_SUFFIX: Final = ".observations"


def are_kept(log_url: str) -> bool:
    """Return whether observations can be kept: not beside a log in memory, which others cannot
    read.
    """
    return not is_in_memory(log_url)


def open_observations(log_url: str) -> Observations:
    """Return a new handle on the observations beside the channel at `log_url`.

    * `sqlite:PATH`: the file `PATH.observations`.
    * `kafka://SERVERS/TOPIC`: the topic `TOPIC-serving`. Loads are on the load bus.

    The first write creates them. Raise `CallerError` for any other URL and without the extra
    `kafka`, and `InvalidKafkaSetting`.
    """
    path = log_path(log_url)
    if path is not None:
        return SqliteObservations(Path(f"{path}{FILE_SUFFIX}"))
    if log_url.startswith("kafka:"):
        return _on_kafka(log_url)
    raise invalid_log_url(url=log_url, problem="no observations are kept beside a log of this kind")


def _on_kafka(log_url: str) -> Observations:
    address = address_of(log_url)
    try:
        # Its client comes with an extra.
        from equipoise.brokers.runtime.observations.kafka import KafkaObservations  # noqa: PLC0415
        from equipoise.channel.kafka.client import Clients  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise missing_extra(what=f"the observations beside {log_url}", extra="kafka") from error
    return KafkaObservations(
        Clients(servers=address.servers, settings=kafka_settings()), address.topic
    )
