"""The embedded channel as a source of entries: its log, the decisions beside it, and what brokers observed, each a table in a file.

May live here: which entries there are, up to where one batch reads, and the reading itself. How Spark asks for it is
`spark_jobs.sources.sqlite_source`. Every file is opened by SQLite as a reader that takes part (never `immutable=1`: it would not see the
WAL), and no read transaction outlives a call, since an open one keeps the WAL from starting over.

The observations file may be missing, or come at any time: brokers of an older version write none.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from equipoise.brokers.runtime.observations import FILE_SUFFIX
from equipoise.channel.core.errors import LogDamaged, LogWentBack
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.sqlite.file import BOOT_ID, FileId, connect, this_boot, usable_path, with_id
from equipoise.channel.sqlite.format import has_decisions
from equipoise.channel.sqlite.log import checksum_of
from equipoise.channel.sqlite.storage import READ_MS_MAX, SqliteStorage, Synchronous
from equipoise.spark_jobs.sequence.arrivals import Arrival, Positions, Source
from equipoise.spark_jobs.streams.errors import OtherLog

COMPANIONS: Final = (Source.DECISIONS, Source.SERVING, Source.LOADS)
"""What stands beside the channel: for each a table of its name with `id`, `at_ms`, `broker` and `document`, ids rising."""

ROWS_AT_ONCE: Final = 10_000
"""Rows of one read transaction: 10 MB of records of 1 kB, and some 20 ms in which the WAL cannot start over."""

BYTES_AT_ONCE: Final = 16 << 20
"""Bytes after which one transaction adds no further row, so that a run of giant records does not fill the memory."""

BATCH_BYTES_MAX: Final = 64 << 20
"""Bytes of one source in a batch, unless a single entry is larger: all rows of a batch are in the JVM at once, a few times over, and it
has 1 GiB (`spark_jobs.streams.session.DRIVER_MEMORY`)."""

LOADS_BYTES_MAX: Final = 8 << 20
"""The same of load reports, each of which becomes a row for every bundle that it names: 4,000 reports of 20 bundles are 90,000 rows."""

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last that Spark has: what a damaged row says beyond it is cut to it."""

BEGINNING: Final[Positions] = {source.value: FIRST_OFFSET for source in Source}


class ChannelFiles:
    """A connection to each of the two files. Used by one thread, and closed by it."""

    def __init__(self, path: str, *, name: str, identity: str | None = None, sources: Collection[Source] = tuple(Source)) -> None:
        """Open the log at `path`, whose URL is `name`, for the channel and what else is in `sources`. With `identity` it must be that log.

        Raises `OtherLog`, and as `channel.log.open_log.open_log` does without `create`.
        """
        self.name = name
        self._companions = tuple(source for source in COMPANIONS if source in sources)
        real_path = usable_path(path, url=name, create=False)
        boot = this_boot(BOOT_ID)
        self._observations_path = Path(f"{real_path}{FILE_SUFFIX}")
        self._observations: sqlite3.Connection | None = None
        self._observations_id: FileId = None
        self._storage = SqliteStorage(real_path, name=name, synchronous=Synchronous.FULL, boot=boot, create=False)
        self.identity = self._storage.identity
        if identity not in {None, self.identity}:
            self.close()
            raise OtherLog(log=name, expected=str(identity), found=self.identity)

    def close(self) -> None:
        """Let go of both files."""
        self._storage.close()
        if self._observations is not None:
            self._observations.close()

    def ends(self) -> dict[str, int]:
        """For each source the position behind its newest entry; where nothing is, where it would begin."""
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            ends = {Source.CHANNEL.value: (bounds.newest or bounds.start - 1) + 1}
        for source in self._companions:
            with contextlib.suppress(sqlite3.Error), self._connection_of(source) as connection:
                ends[source] = FIRST_OFFSET if connection is None else _newest_id(connection, source) + 1
        return {**self._beginning(), **ends}

    def begins(self) -> dict[str, int]:
        """For each source the lowest position at which something may stand."""
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            return {**self._beginning(), Source.CHANNEL.value: bounds.start}

    def _beginning(self) -> dict[str, int]:
        return {source: BEGINNING[source] for source in (Source.CHANNEL, *self._companions)}

    def batch_end(self, start: Positions, *, limit: int, until: Positions | None = None) -> dict[str, int]:
        """Up to where a batch from `start` reads: at most `limit` entries and so many bytes of each source, and none at or above `until`.

        While the channel is not read to its end, of the others only what is no younger than the batch's last record is taken: so
        a replay meets evidence beside the records that it belongs to, as whoever reads live does. Where a source was begun anew,
        as a file of observations is that was deleted, its end is its beginning, from where the next batch reads.

        Raises `LogWentBack` if the channel ends below `start`.
        """
        channel_end, youngest_ms = self._channel_end(
            start[Source.CHANNEL], limit=limit, until=None if until is None else until[Source.CHANNEL]
        )
        ends = {Source.CHANNEL.value: channel_end}
        for source in self._companions:
            bound = None if until is None else until[source]
            ends[source] = start[source]
            # What cannot be read just now is read later; the channel does not wait for what stands beside it.
            with contextlib.suppress(sqlite3.Error):
                ends[source] = self._companion_end(source, start[source], limit=limit, until=bound, youngest_ms=youngest_ms)
        return ends

    def rows(self, source: str, begin: int, end: int) -> Iterator[Arrival]:
        """The entries of one source from `begin` up to `end`, which is left out, in order.

        A record whose bytes do not match their checksum comes without a value: what it says cannot be trusted, and where it stands
        can be told.
        """
        while begin < end:
            rows = self._channel_rows(begin, end) if source == Source.CHANNEL else self._companion_rows(Source(source), begin, end)
            if not rows:
                return
            yield from rows
            begin = rows[-1].offset + 1

    def _channel_end(self, start: int, *, limit: int, until: int | None) -> tuple[int, int | None]:
        """The end of the channel's part of a batch, and the time of its last record; None if nothing is left behind it."""
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            if start > bounds.end + 1:
                raise LogWentBack(log=self.name, position=start, end=bounds.end)
            newest = bounds.newest or 0
            there = newest + 1 if until is None else min(newest + 1, until)
            [(first,)] = self._query("SELECT min(offset) FROM entries WHERE offset >= ?", max(start, bounds.start))
            if first is None or first >= there:
                return start, None
            end = self._within_bytes(int(first), min(there, int(first) + limit))
            if end == there:
                return end, None
            [(at_ms,)] = self._query("SELECT appended_ms FROM entries WHERE offset < ? ORDER BY offset DESC LIMIT 1", end)
            return end, _time_ms(at_ms)

    def _within_bytes(self, begin: int, end: int) -> int:
        """Up to where the entries from `begin` are no more than `BATCH_BYTES_MAX`, and `end` at most; at least one of them."""
        held_bytes = 0
        query = "SELECT offset, length(data) FROM entries WHERE offset >= ? AND offset < ? ORDER BY offset"
        with contextlib.closing(self._storage.connection.execute(query, (begin, end))) as cursor:
            for offset, size in cursor:
                held_bytes += size or 0
                if held_bytes > BATCH_BYTES_MAX and offset > begin:
                    return int(offset)
        return end

    def _companion_end(self, source: Source, start: int, *, limit: int, until: int | None, youngest_ms: int | None) -> int:
        with self._connection_of(source) as connection:
            if connection is None:
                return start
            query = f"SELECT id, at_ms, length(document) FROM {source} WHERE id >= ? ORDER BY id LIMIT ?"  # noqa: S608 - a name of ours
            end, left_bytes = start, LOADS_BYTES_MAX if source is Source.LOADS else BATCH_BYTES_MAX
            for number, at_ms, size in connection.execute(query, (start, limit)):
                if (until is not None and number >= until) or (youngest_ms is not None and _time_ms(at_ms) > youngest_ms):
                    break
                left_bytes -= size or 0
                if left_bytes < 0 and end > start:
                    break
                end = number + 1
            # Numbers of one file never fall: this is another one, made since somebody deleted that which was read so far.
            return FIRST_OFFSET if _newest_id(connection, source) + 1 < start else end

    def _channel_rows(self, begin: int, end: int) -> list[Arrival]:
        found: list[Arrival] = []
        held_bytes = 0
        query = "SELECT offset, data, checksum, appended_ms FROM entries WHERE offset >= ? AND offset < ? ORDER BY offset LIMIT ?"
        # The cursor is closed before the transaction ends, which could not end under it.
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds, contextlib.ExitStack() as taken:
            begin = max(begin, bounds.start)  # What a truncation has not removed yet is gone all the same.
            cursor = taken.enter_context(contextlib.closing(self._storage.connection.execute(query, (begin, end, ROWS_AT_ONCE))))
            for offset, data, checksum, appended_ms in cursor:
                if offset < begin:  # A damaged page leads astray; a reader that followed would go round for ever.
                    raise LogDamaged(log=self.name, problem=f"the entry at offset {offset} stands out of order", offset=offset)
                is_whole = type(data) is bytes and checksum_of(offset, data) == checksum
                begin = offset + 1
                found.append(Arrival(Source.CHANNEL.value, offset, _time_ms(appended_ms), None, data if is_whole else None))
                held_bytes += len(data) if is_whole else 0
                if held_bytes > BYTES_AT_ONCE:
                    break
        return found

    def _companion_rows(self, source: Source, begin: int, end: int) -> list[Arrival]:
        with self._connection_of(source) as connection:
            if connection is None:
                return []
            query = f"SELECT id, at_ms, broker, document FROM {source} WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"  # noqa: S608 - as above
            rows = connection.execute(query, (begin, end, ROWS_AT_ONCE)).fetchall()
        return [
            Arrival(source.value, number, _time_ms(at_ms), _bytes(broker), _bytes(document)) for number, at_ms, broker, document in rows
        ]

    def _query(self, query: str, *values: int) -> list[tuple[int | None, ...]]:
        return self._storage.connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _connection_of(self, source: Source) -> Iterator[sqlite3.Connection | None]:
        """The connection in which the table of a companion can be read now; None where there is none yet. Raises `sqlite3.Error`."""
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
        if self._observations is not None and found != self._observations_id:  # Removed, or replaced by another.
            self._observations.close()
            self._observations = None
        if self._observations is None and found is not None:
            self._observations = connect(self._observations_path, create=False)
            self._observations_id = found
            self._observations.execute(f"PRAGMA busy_timeout = {READ_MS_MAX}").fetchall()
        return self._observations


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    [(known,)] = connection.execute("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchall()
    return bool(known)


def _newest_id(connection: sqlite3.Connection, table: Source) -> int:
    [(newest,)] = connection.execute(f"SELECT max(id) FROM {table}").fetchall()  # noqa: S608 - a name of ours
    return int(newest or 0)


def _time_ms(value: object) -> int:
    """A Unix time that Spark has; 0 for what is none."""
    return min(max(value, 0), TIME_MS_MAX) if isinstance(value, int) else 0


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None
