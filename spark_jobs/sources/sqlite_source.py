"""Provide an embedded channel as a Spark data source for streaming queries.

Spark pickles these classes and calls them in processes of its own.

* A position covers all sources: `{"log": identity, "channel": 7, "decisions": 1, "serving": 1,
  "loads": 1}` holds the identity of the log and the next offset of each source.
* A streaming query does not fail while the file is unavailable. It reports no new entries;
  `spark_jobs.streams.progress` detects that.
* A task that reads planned rows waits up to `AWAY_S_MAX` for the file.

The entries are the log, the decisions, and the brokers' evidence and load reports.

* SQLite opens the files as an ordinary reader, never with `immutable=1`, which ignores the WAL.
* No read transaction outlives a call: an open one keeps the WAL from starting over.
* The file of side logs may be missing or appear at any time.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from equipoise.brokers.decision_log import DECISIONS
from equipoise.brokers.load.bus import LOADS
from equipoise.brokers.runtime.observations.writer import SERVING
from equipoise.channel.core.errors import (
    CallerError,
    LogDamaged,
    LogReplaced,
    LogStorageFull,
    LogUnavailable,
    LogWentBack,
    OperatorError,
    PeerError,
    invalid_log_url,
)
from equipoise.channel.core.log import FIRST_OFFSET, Log
from equipoise.channel.core.side_log import SideLogUnavailable, SideTopic
from equipoise.channel.log.open_log import log_path, open_log
from equipoise.channel.sqlite.file import BOOT_ID, this_boot, usable_path
from equipoise.channel.sqlite.log import checksum_of
from equipoise.channel.sqlite.side_log import SqliteSideLog
from equipoise.channel.sqlite.storage import READ_MS_MAX, SqliteStorage, Synchronous
from equipoise.spark_jobs.sequence.rows import FRAME_DDL, Arrival, Positions, Source

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


class ChannelFiles:
    """A connection to the log's file, and its side logs, for use by one thread."""

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
        self._companions = {
            source: SqliteSideLog(path, topic, name=name)
            for source, topic in COMPANIONS.items()
            if source in sources
        }
        real_path = usable_path(path, url=name, create=False)
        boot = this_boot(BOOT_ID)
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
        side_log = self._companions[source]
        first, newest = side_log.bounds()
        if first == newest:  # Nothing is there, or the file is away.
            return start
        # Positions in one file never fall. This file was created after the one read so far was
        # deleted.
        if newest < start:
            return FIRST_OFFSET
        end, below = start, newest if until is None else min(newest, until)
        left_bytes = LOADS_BYTES_MAX if source is Source.LOADS else BATCH_BYTES_MAX
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


NAME: Final = "equipoise_sqlite"

AWAY_S_MAX: Final = 600
"""How long a task waits for the file of planned rows: time to restore a copy, to mount a disk
again, or for an operator to act."""

_RETRY_S: Final = 0.25
_TOLD_EVERY_S: Final = 30.0

IDLE_MS: Final = 200
"""How long a query for new entries waits for one. Without it Spark would ask a hundred times per
second."""

_LOG: Final = "log"
# A caller error: no log there (yet).
_AWAY: Final = (
    CallerError,
    LogUnavailable,
    LogReplaced,
    LogStorageFull,
    SideLogUnavailable,
    sqlite3.Error,
)

SCHEMA: Final = pa.schema(
    [
        ("source", pa.string()),
        ("offset", pa.int64()),
        ("at_ms", pa.int64()),
        ("value", pa.binary()),
    ]
)
"""`FRAME_DDL` as an Arrow schema."""

_Answer = TypeVar("_Answer")


class Piece(InputPartition):
    """The entries of one source from `begin` to `end` (exclusive) in the log `identity`."""

    def __init__(self, source: str, begin: int, end: int, identity: str) -> None:
        """Spark pickles the object."""
        super().__init__((source, begin, end, identity))
        self.source = source
        self.begin = begin
        self.end = end
        self.identity = identity


class SqliteChannel(DataSource):
    """The source `equipoise_sqlite`. Options: `url`, `sources` (JSON, names), `start` (JSON, by
    source), `per_trigger`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.readStream.format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns, the same for every source."""
        return FRAME_DDL

    # Its columns are fixed; the name is Spark's.
    def streamReader(self, schema: StructType) -> SqliteStreamReader:  # noqa: ARG002, N802
        """Return a reader for a stream."""
        names, start = json.loads(self.options["sources"]), json.loads(self.options["start"])
        # In the order in which a batch reads them.
        sources = [source for source in Source if source in names]
        return SqliteStreamReader(
            self.options["url"],
            sources=sources,
            start=start,
            per_trigger=int(self.options["per_trigger"]),
        )


class SqliteStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read new entries, at most `per_trigger` of each source per batch."""

    def __init__(
        self,
        url: str,
        *,
        sources: Sequence[Source] = tuple(Source),
        start: Positions,
        per_trigger: int,
    ) -> None:
        """Read `sources` from `start`. A source that is missing there is read from its
        beginning.
        """
        self._url = url
        self._sources = sources
        self._start = start
        self._per_trigger = per_trigger
        self._until: dict[str, int] | None = None
        self._files: ChannelFiles | None = None
        self._log: Log | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - as all below: the names are Spark's
        """See `DataSourceStreamReader.initialOffset`."""
        return {**BEGINNING, **self._start, _LOG: ""}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """See `DataSourceStreamReader.getDefaultReadLimit`."""
        return ReadMaxRows(self._per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """See `SupportsTriggerAvailableNow`: entries added after this call are not read."""
        self._until = when_available(self._url, ChannelFiles.ends, sources=self._sources)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """See `DataSourceStreamReader.latestOffset`. Return `start` while the file is
        unavailable.
        """
        entries = (
            sys.maxsize
            if isinstance(limit, ReadAllAvailable)
            else min(self._per_trigger, getattr(limit, "max_rows", self._per_trigger))
        )
        try:
            files = self._opened(start.get(_LOG) or None)
            found = files.batch_end(start, limit=min(entries, _ALL), until=self._until)
            if self._until is None and found == {source: start[source] for source in found}:
                self._wait(start[Source.CHANNEL])
                found = files.batch_end(start, limit=min(entries, _ALL))
        except _AWAY:
            self._close()
            time.sleep(IDLE_MS / 1_000)
            return start
        if found == {source: start[source] for source in found}:
            return start
        return {**found, _LOG: files.identity}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """See `DataSourceStreamReader.partitions`. Return one piece per source, because the fold
        needs the channel in order.
        """
        return [
            Piece(source.value, start[source], end[source], end[_LOG])
            for source in self._sources
            if start[source] < end[source]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `DataSourceStreamReader.read`."""
        assert isinstance(partition, Piece), "Spark hands back what `partitions` gave it"
        return read_piece(self._url, partition)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """See `DataSourceStreamReader.reportLatestOffset`. Spark computes a query's lag from it."""
        try:
            files = self._opened(None)
            return {**files.ends(), _LOG: files.identity}
        except _AWAY:
            self._close()
            return None

    def stop(self) -> None:
        """See `DataSourceStreamReader.stop`."""
        self._close()

    def _opened(self, identity: str | None) -> ChannelFiles:
        if self._files is None:
            self._files = ChannelFiles(
                _path(self._url), name=self._url, identity=identity, sources=self._sources
            )
        self._files.check_identity(identity)
        return self._files

    def _wait(self, position: int) -> None:
        """Wait up to `IDLE_MS` until the channel has an entry at or above `position`."""
        if self._log is None:
            self._log = open_log(self._url, create=False)
        self._log.wait(max(position, self._log.start()), timeout_ms=IDLE_MS)

    def _close(self) -> None:
        for opened in (self._files, self._log):
            if opened is not None:
                with contextlib.suppress(sqlite3.Error, OSError):
                    opened.close()
        self._files = self._log = None


_ALL: Final = 1 << 40
"""More entries than a file can hold, and small enough to add to an offset."""


def read_piece(url: str, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a piece as Arrow batches, in order. Raises what `when_available` raises,
    and `LogDamaged`.
    """
    begin = piece.begin
    while begin < piece.end:
        at = begin

        def some(files: ChannelFiles, at: int = at) -> list[Arrival]:
            found: list[Arrival] = []
            for arrival in files.rows(piece.source, at, piece.end):
                found.append(arrival)
                if len(found) == ROWS_AT_ONCE:
                    break
            return found

        arrivals = when_available(url, some, identity=piece.identity)
        if not arrivals:
            return
        yield record_batch(arrivals)
        begin = arrivals[-1].offset + 1


def record_batch(arrivals: Sequence[Arrival]) -> pa.RecordBatch:
    """Return entries as columns of `SCHEMA`."""
    columns = [
        pa.array([arrival[place] for arrival in arrivals], field.type)
        for place, field in enumerate(SCHEMA)
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def when_available(
    url: str,
    ask: Callable[[ChannelFiles], _Answer],
    *,
    identity: str | None = None,
    sources: Sequence[Source] = tuple(Source),
) -> _Answer:
    """Open the files and return the result of `ask`. Wait while they are unavailable.

    Raises `PeerError` after `AWAY_S_MAX`, and what `ask` raises.
    """
    began_s = time.monotonic()
    reported_s = began_s
    while True:
        try:
            with contextlib.closing(
                ChannelFiles(_path(url), name=url, identity=identity, sources=sources)
            ) as files:
                return ask(files)
        except _AWAY as error:
            now_s = time.monotonic()
            if now_s - began_s >= AWAY_S_MAX:
                what = f"{url} was unavailable for {AWAY_S_MAX} s: {error}"
                raise PeerError(
                    f"{what}; start the job again once it is back: it continues where it stopped"
                ) from error
            if now_s - reported_s >= _TOLD_EVERY_S:
                reported_s = now_s
                problem = getattr(error, "problem", error)
                sys.stderr.write(
                    f"{url} is unavailable: {problem}; a task waits for it, for at most"
                    f" {AWAY_S_MAX} s\n"
                )
                sys.stderr.flush()
        time.sleep(_RETRY_S)


def _path(url: str) -> str:
    path = log_path(url)
    if path is None:
        raise invalid_log_url(url=url, problem="it is no file")
    return path
