"""Read the entries of an embedded channel from SQLite: the log, the decisions, and the brokers'
evidence and load reports.

`spark_jobs.sources.sqlite_source` connects this to Spark.

* SQLite opens each file as an ordinary reader, never with `immutable=1`, which ignores the WAL.
* No read transaction outlives a call: an open one keeps the WAL from starting over.
* The observations file may be missing or appear at any time. Older brokers write none.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from equipoise.brokers.runtime.observations.stores import FILE_SUFFIX
from equipoise.channel.core.errors import LogDamaged, LogWentBack, OperatorError
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.sqlite.file import BOOT_ID, FileId, connect, this_boot, usable_path, with_id
from equipoise.channel.sqlite.format import has_decisions
from equipoise.channel.sqlite.log import checksum_of
from equipoise.channel.sqlite.storage import READ_MS_MAX, SqliteStorage, Synchronous
from equipoise.spark_jobs.sequence.arrivals import Arrival, Positions, Source

COMPANIONS: Final = (Source.DECISIONS, Source.SERVING, Source.LOADS)
"""The sources other than the channel. Each has a table of its name with `id` (rising), `at_ms`,
`broker` and `document`."""

ROWS_AT_ONCE: Final = 10_000
"""Rows per read transaction: 10 MB of records of 1 kB, and about 20 ms in which the WAL cannot
start over."""

BYTES_AT_ONCE: Final = 16 << 20
"""Bytes after which a transaction adds no further row, to bound memory for a run of very large
records."""

BATCH_BYTES_MAX: Final = 64 << 20
"""Bytes of one source in a batch, unless a single entry is larger. All rows of a batch are in the
JVM at once, several times over, and it has 1 GiB (`spark_jobs.streams.session.DRIVER_MEMORY`).
"""

LOADS_BYTES_MAX: Final = 8 << 20
"""The same bound for load reports. Each becomes a row per bundle it names: 4,000 reports of 20
bundles are 90,000 rows."""

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, Spark's latest time. Later times in damaged rows are capped to it."""

BEGINNING: Final[Positions] = {source.value: FIRST_OFFSET for source in Source}


class ChannelFiles:
    """A connection to each of the two files, for use by one thread."""

    def __init__(
        self,
        path: str,
        *,
        name: str,
        identity: str | None = None,
        sources: Collection[Source] = tuple(Source),
    ) -> None:
        """Open the log at `path`, whose URL is `name`, for these `sources`. With `identity` it must
        be that log.

        Raises `OperatorError` for another log, and what `channel.log.open_log.open_log` raises
        without `create`.
        """
        self.name = name
        self._companions = tuple(source for source in COMPANIONS if source in sources)
        real_path = usable_path(path, url=name, create=False)
        boot = this_boot(BOOT_ID)
        self._observations_path = Path(f"{real_path}{FILE_SUFFIX}")
        self._observations: sqlite3.Connection | None = None
        self._observations_id: FileId = None
        self._storage = SqliteStorage(
            real_path, name=name, synchronous=Synchronous.FULL, boot=boot, create=False
        )
        self.identity = self._storage.identity
        try:
            self.check_identity(identity)
        except OperatorError:
            self.close()
            raise

    def check_identity(self, expected: str | None) -> None:
        """Raise `OperatorError` if this is another log than the one with the identity
        `expected`.
        """
        if expected not in {None, self.identity}:
            raise OperatorError(
                f"the log {self.name} is not the one that this job began to read ({self.identity},"
                f" expected {expected}): put the right one back, or give the job another archive"
            )

    def close(self) -> None:
        """Close both files."""
        self._storage.close()
        if self._observations is not None:
            self._observations.close()

    def ends(self) -> dict[str, int]:
        """Return for each source the position after its newest entry; for an empty source, its
        first position.
        """
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            ends = {Source.CHANNEL.value: (bounds.newest or bounds.start - 1) + 1}
        for source in self._companions:
            with contextlib.suppress(sqlite3.Error), self._connection_of(source) as connection:
                ends[source] = (
                    FIRST_OFFSET if connection is None else _newest_id(connection, source) + 1
                )
        return {**self._beginning(), **ends}

    def _beginning(self) -> dict[str, int]:
        return {source: BEGINNING[source] for source in (Source.CHANNEL, *self._companions)}

    def batch_end(
        self, start: Positions, *, limit: int, until: Positions | None = None
    ) -> dict[str, int]:
        """Return the end of a batch from `start`: bounded by `limit` entries and the byte limit per
        source, and by `until`.

        Until the channel is read to its end, companion entries newer than the batch's last record
        wait. So a replay sees evidence together with its records, as a live reader does. If a
        source was started anew, as after deleting the observations file, the result is its first
        position, where the next batch begins.

        Raises `LogWentBack` if the channel ends below `start`.
        """
        channel_end, youngest_ms = self._channel_end(
            start[Source.CHANNEL],
            limit=limit,
            until=None if until is None else until[Source.CHANNEL],
        )
        ends = {Source.CHANNEL.value: channel_end}
        for source in self._companions:
            bound = None if until is None else until[source]
            ends[source] = start[source]
            # Companion entries that cannot be read now are read later. The channel does not wait
            # for them.
            with contextlib.suppress(sqlite3.Error):
                ends[source] = self._companion_end(
                    source, start[source], limit=limit, until=bound, youngest_ms=youngest_ms
                )
        return ends

    def rows(self, source: str, begin: int, end: int) -> Iterator[Arrival]:
        """Yield the entries of one source from `begin` to `end` (exclusive), in order.

        A record with a wrong checksum has no value: its contents cannot be trusted, but its
        position is known.
        """
        while begin < end:
            rows = (
                self._channel_rows(begin, end)
                if source == Source.CHANNEL
                else self._companion_rows(Source(source), begin, end)
            )
            if not rows:
                return
            yield from rows
            begin = rows[-1].offset + 1

    def _channel_end(self, start: int, *, limit: int, until: int | None) -> tuple[int, int | None]:
        """Return the end of the channel's part of a batch, and the time of its last record; None if
        the channel has no more.
        """
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            if start > bounds.end + 1:
                raise LogWentBack(log=self.name, position=start, end=bounds.end)
            newest = bounds.newest or 0
            there = newest + 1 if until is None else min(newest + 1, until)
            [(first,)] = self._query(
                "SELECT min(offset) FROM entries WHERE offset >= ?", max(start, bounds.start)
            )
            if first is None or first >= there:
                return start, None
            end = self._within_bytes(int(first), min(there, int(first) + limit))
            if end == there:
                return end, None
            [(at_ms,)] = self._query(
                "SELECT appended_ms FROM entries WHERE offset < ? ORDER BY offset DESC LIMIT 1", end
            )
            return end, _time_ms(at_ms)

    def _within_bytes(self, begin: int, end: int) -> int:
        """Return the end of the entries from `begin` that fit in `BATCH_BYTES_MAX`, at most `end`.
        At least one entry is included.
        """
        held_bytes = 0
        query = (
            "SELECT offset, length(data) FROM entries WHERE offset >= ? AND offset < ? ORDER BY"
            " offset"
        )
        with contextlib.closing(self._storage.connection.execute(query, (begin, end))) as cursor:
            for offset, size in cursor:
                held_bytes += size or 0
                if held_bytes > BATCH_BYTES_MAX and offset > begin:
                    return int(offset)
        return end

    def _companion_end(
        self, source: Source, start: int, *, limit: int, until: int | None, youngest_ms: int | None
    ) -> int:
        with self._connection_of(source) as connection:
            if connection is None:
                return start
            # A name of ours.
            query = (
                f"SELECT id, at_ms, length(document) FROM {source}"  # noqa: S608
                " WHERE id >= ? ORDER BY id LIMIT ?"
            )
            end, left_bytes = start, LOADS_BYTES_MAX if source is Source.LOADS else BATCH_BYTES_MAX
            for number, at_ms, size in connection.execute(query, (start, limit)):
                if (until is not None and number >= until) or (
                    youngest_ms is not None and _time_ms(at_ms) > youngest_ms
                ):
                    break
                left_bytes -= size or 0
                if left_bytes < 0 and end > start:
                    break
                end = number + 1
            # Ids in one file never fall. This file was created after the one read so far was
            # deleted.
            return FIRST_OFFSET if _newest_id(connection, source) + 1 < start else end

    def _channel_rows(self, begin: int, end: int) -> list[Arrival]:
        found: list[Arrival] = []
        held_bytes = 0
        query = (
            "SELECT offset, data, checksum, appended_ms FROM entries WHERE offset >= ? AND offset <"
            " ? ORDER BY offset LIMIT ?"
        )
        # Close the cursor before the transaction ends: an open cursor prevents its end.
        with (
            self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds,
            contextlib.ExitStack() as taken,
        ):
            # Entries below the start are gone, even if a truncation has not removed them yet.
            begin = max(begin, bounds.start)
            cursor = taken.enter_context(
                contextlib.closing(
                    self._storage.connection.execute(query, (begin, end, ROWS_AT_ONCE))
                )
            )
            for offset, data, checksum, appended_ms in cursor:
                # A damaged page may point backwards. Following it would loop for ever.
                if offset < begin:
                    raise LogDamaged(
                        log=self.name,
                        problem=f"the entry at offset {offset} is out of order",
                        offset=offset,
                    )
                is_whole = type(data) is bytes and checksum_of(offset, data) == checksum
                begin = offset + 1
                found.append(
                    Arrival(
                        Source.CHANNEL.value,
                        offset,
                        _time_ms(appended_ms),
                        data if is_whole else None,
                    )
                )
                held_bytes += len(data) if is_whole else 0
                if held_bytes > BYTES_AT_ONCE:
                    break
        return found

    def _companion_rows(self, source: Source, begin: int, end: int) -> list[Arrival]:
        with self._connection_of(source) as connection:
            if connection is None:
                return []
            # As above.
            query = (
                f"SELECT id, at_ms, document FROM {source}"  # noqa: S608
                " WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
            )
            rows = connection.execute(query, (begin, end, ROWS_AT_ONCE)).fetchall()
        return [
            Arrival(source.value, number, _time_ms(at_ms), _bytes(document))
            for number, at_ms, document in rows
        ]

    def _query(self, query: str, *values: int) -> list[tuple[int | None, ...]]:
        return self._storage.connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _connection_of(self, source: Source) -> Iterator[sqlite3.Connection | None]:
        """Yield the connection that can read a companion's table now; None if the table does not
        exist yet. Raises `sqlite3.Error`.
        """
        if source is Source.DECISIONS:
            with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX):
                yield self._storage.connection if has_decisions(self._storage.connection) else None
            return
        connection = self._opened_observations()
        try:
            has_table = connection is not None and _has_table(connection, source)
            yield connection if has_table else None
        except sqlite3.Error:
            if connection is not None:
                connection.close()
                self._observations = None
            raise

    def _opened_observations(self) -> sqlite3.Connection | None:
        found = with_id(self._observations_path)[1]
        # Removed or replaced.
        if self._observations is not None and found != self._observations_id:
            self._observations.close()
            self._observations = None
        if self._observations is None and found is not None:
            self._observations = connect(self._observations_path, create=False)
            self._observations_id = found
            self._observations.execute(f"PRAGMA busy_timeout = {READ_MS_MAX}").fetchall()
        return self._observations


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    [(known,)] = connection.execute(
        "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)
    ).fetchall()
    return bool(known)


def _newest_id(connection: sqlite3.Connection, table: Source) -> int:
    # A fixed name.
    [(newest,)] = connection.execute(f"SELECT max(id) FROM {table}").fetchall()  # noqa: S608
    return int(newest or 0)


def _time_ms(value: object) -> int:
    """Return a Unix time within Spark's range; 0 for an invalid value."""
    return min(max(value, 0), TIME_MS_MAX) if isinstance(value, int) else 0


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None
