"""Read an embedded channel: its log, the decisions, and the brokers' evidence and load reports.

* SQLite opens the files as an ordinary reader, never with `immutable=1`, which ignores the WAL.
* No read transaction outlives a call: an open one keeps the WAL from starting over.
* The file of side logs may be missing or appear at any time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from equipoise.brokers.load.bus import LOADS
from equipoise.brokers.side_topics import DECISIONS, SERVING
from equipoise.channel.core.errors import LogDamaged, LogWentBack, OperatorError
from equipoise.channel.core.log import FIRST_OFFSET
from equipoise.channel.core.side_log import SideLogUnavailable, SideTopic
from equipoise.channel.sqlite.file import usable_path
from equipoise.channel.sqlite.log import checksum_of
from equipoise.channel.sqlite.side_log import SqliteSideLog
from equipoise.channel.sqlite.storage import READ_MS_MAX, SqliteStorage, Synchronous
from equipoise.channel.system.process_lock import this_boot
from equipoise.spark_jobs.sequence.rows import Arrival, Positions, Source

COMPANIONS: Final[Mapping[Source, SideTopic]] = {
    Source.DECISIONS: DECISIONS,
    Source.SERVING: SERVING,
    Source.LOADS: LOADS,
}
"""The sources other than the channel: side logs."""

PIECE: Final = 500
"""Documents of a side log that are looked at at once, to find where a batch ends."""

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


def check_identity(name: str, identity: str, expected: str | None) -> None:
    """Raise `OperatorError` if the log `name` has another identity than `expected`."""
    if expected not in {None, identity}:
        raise OperatorError(
            f"the log {name} is not the one that this job began to read ({identity},"
            f" expected {expected}): put the right one back, or give the job another archive"
        )


class ChannelFiles:
    """A connection to the log's file, and its side logs, for use by one thread."""

    def __init__(
        self,
        path: str,
        *,
        name: str,
        identity: str | None = None,
        sources: Collection[Source] = tuple(Source),
        bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        """Open the log at `path`, whose URL is `name`, for these `sources`. With `identity` it must
        be that log. `bytes_max` bounds a batch of each source.

        Raises `OperatorError` for another log, and what `channel.log.open_log.open_log` raises
        without `create`.
        """
        self.name = name
        self._bytes_max = bytes_max
        self._companions = {
            source: SqliteSideLog(path, topic, name=name)
            for source, topic in COMPANIONS.items()
            if source in sources
        }
        real_path = usable_path(path, url=name, create=False)
        boot = this_boot()
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
        check_identity(self.name, self.identity, expected)

    def close(self) -> None:
        """Close the log's file."""
        self._storage.close()

    def ends(self) -> dict[str, int]:
        """Return for each source the position after its newest entry; for an empty source, its
        first position.
        """
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            ends = {Source.CHANNEL.value: (bounds.newest or bounds.start - 1) + 1}
        for source, side_log in self._companions.items():
            with contextlib.suppress(SideLogUnavailable):
                ends[source] = side_log.bounds()[1]
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
            with contextlib.suppress(SideLogUnavailable):
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
        """Return the end of the entries from `begin` that fit in a batch, at most `end`. At least
        one entry is included.
        """
        held_bytes = 0
        query = (
            "SELECT offset, length(data) FROM entries WHERE offset >= ? AND offset < ? ORDER BY"
            " offset"
        )
        with contextlib.closing(self._storage.connection.execute(query, (begin, end))) as cursor:
            for offset, size in cursor:
                held_bytes += size or 0
                if held_bytes > self._bytes_max and offset > begin:
                    return int(offset)
        return end

    def _companion_end(
        self, source: Source, start: int, *, limit: int, until: int | None, youngest_ms: int | None
    ) -> int:
        side_log = self._companions[source]
        first, newest = side_log.bounds()
        if first == newest:  # Nothing is there, or the file is away.
            return start
        # Positions in one file never fall. This file was created after the one read so far was
        # deleted.
        if newest < start:
            return FIRST_OFFSET
        end, below = start, newest if until is None else min(newest, until)
        left_bytes = self._bytes_max
        if source is Source.LOADS:
            left_bytes = min(left_bytes, LOADS_BYTES_MAX)
        while end < below and limit > 0:
            found = side_log.read(end, limit=min(limit, PIECE))
            if not found or found[0].position < end:  # Deleted meanwhile, or made anew.
                break
            for kept in found:
                left_bytes -= len(kept.value or b"")
                is_late = youngest_ms is not None and _time_ms(kept.at_ms) > youngest_ms
                if kept.position >= below or is_late or (left_bytes < 0 and end > start):
                    return end
                end = kept.position + 1
            limit -= len(found)
        return end

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
        found = self._companions[source].read(begin, limit=min(end - begin, ROWS_AT_ONCE))
        return [
            Arrival(source.value, kept.position, _time_ms(kept.at_ms), kept.value)
            for kept in found
            if begin <= kept.position < end  # Not of a file that was made anew since.
        ]

    def _query(self, query: str, *values: int) -> list[tuple[int | None, ...]]:
        return self._storage.connection.execute(query, values).fetchall()


def _time_ms(value: object) -> int:
    """Return a Unix time within Spark's range; 0 for an invalid value."""
    return min(max(value, 0), TIME_MS_MAX) if isinstance(value, int) else 0
