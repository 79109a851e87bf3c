"""Provide an embedded channel as a Spark data source, for streaming and batch.

Spark pickles these classes and calls them in processes of its own.

* A position covers all sources: `{"log": identity, "channel": 7, "decisions": 1, "serving": 1, "loads": 1}` holds the identity of the log
  and the next offset of each source.
* A streaming query does not fail while the file is unavailable. It reports no new entries; `spark_jobs.streams.silence` detects that.
* A task that reads planned rows waits up to `AWAY_S_MAX` for the file.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from equipoise.channel.core.errors import CallerError, LogReplaced, LogStorageFull, LogUnavailable, PeerError, invalid_log_url
from equipoise.channel.core.log import Log
from equipoise.channel.log.open_log import log_path, open_log
from equipoise.spark_jobs.sequence.arrivals import FRAME_DDL, Arrival, Positions, Source
from equipoise.spark_jobs.sources.sqlite_reading import BEGINNING, ROWS_AT_ONCE, ChannelFiles
from equipoise.spark_jobs.streams.options import PER_TRIGGER

NAME: Final = "equipoise_sqlite"

AWAY_S_MAX: Final = 600
"""How long a task waits for the file of planned rows: time to restore a copy, to mount a disk again, or for an operator to act."""

_RETRY_S: Final = 0.25
_TOLD_EVERY_S: Final = 30.0

IDLE_MS: Final = 200
"""How long a query for new entries waits for one. Without it Spark would ask a hundred times per second."""

PARTITION_ENTRIES: Final = 250_000
"""Entries per task of a batch: 2 s of reading, so that two cores finish at about the same time."""

_PARTITIONS_MAX: Final = 10_000

_DAY_MS: Final = 86_400_000
_LOG: Final = "log"
_AWAY: Final = (CallerError, LogUnavailable, LogReplaced, LogStorageFull, sqlite3.Error)  # A caller error: no log there (yet).

SCHEMA: Final = pa.schema(
    [
        ("source", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("day", pa.date32()),
    ]
)
"""`FRAME_DDL` as an Arrow schema."""

_Answer = TypeVar("_Answer")


class Piece(InputPartition):
    """The entries of one source from `begin` to `end` (exclusive) in the log `identity`; "" stands for any log."""

    def __init__(self, source: str, begin: int, end: int, identity: str) -> None:
        """Keep the arguments. Spark pickles the object."""
        super().__init__((source, begin, end, identity))
        self.source = source
        self.begin = begin
        self.end = end
        self.identity = identity


class SqliteChannel(DataSource):
    """The source `equipoise_sqlite`. Options: `url`, `sources` (JSON, names), `start` and `end` (JSON, by source), `per_trigger`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format`."""
        return NAME

    def schema(self) -> str:
        """Return the columns, the same for every source."""
        return FRAME_DDL

    def reader(self, schema: StructType) -> SqliteBatchReader:  # noqa: ARG002 - its columns are fixed
        """Return a reader for a batch."""
        start, end = _positions(self.options, "start"), _positions(self.options, "end")
        return SqliteBatchReader(self.options["url"], sources=_sources(self.options), start=start, end=end)

    def streamReader(self, schema: StructType) -> SqliteStreamReader:  # noqa: ARG002, N802 - as above; the name is Spark's
        """Return a reader for a stream."""
        per_trigger = int(self.options.get("per_trigger", PER_TRIGGER))
        start = _positions(self.options, "start")
        return SqliteStreamReader(self.options["url"], sources=_sources(self.options), start=start, per_trigger=per_trigger)


class SqliteBatchReader(DataSourceReader):
    """Read all entries that exist when the query is planned, in pieces that run in parallel."""

    def __init__(self, url: str, *, sources: Sequence[Source], start: Positions, end: Positions) -> None:
        """Read `sources` from `start` to `end` (exclusive). A source that is missing there is read from its beginning or to its end."""
        self._url = url
        self._sources = sources
        self._start = start
        self._end = end

    def partitions(self) -> Sequence[InputPartition]:
        """See `DataSourceReader.partitions`."""

        def plan(files: ChannelFiles) -> list[InputPartition]:
            begins, ends = files.begins(), files.ends()
            planned: list[InputPartition] = []
            for source in self._sources:
                begin = max(begins[source], self._start.get(source, 0))
                end = min(ends[source], self._end.get(source, ends[source]))
                planned += pieces(source.value, begin, end, identity=files.identity)
            return planned

        return when_available(self._url, plan, sources=self._sources)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `DataSourceReader.read`."""
        assert isinstance(partition, Piece), "Spark hands back what `partitions` gave it"
        return read_piece(self._url, partition)


class SqliteStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read new entries, at most `per_trigger` of each source per batch."""

    def __init__(self, url: str, *, sources: Sequence[Source] = tuple(Source), start: Positions, per_trigger: int) -> None:
        """Read `sources` from `start`. A source that is missing there is read from its beginning."""
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
        """See `DataSourceStreamReader.latestOffset`. Return `start` while the file is unavailable."""
        entries = (
            sys.maxsize if isinstance(limit, ReadAllAvailable) else min(self._per_trigger, getattr(limit, "max_rows", self._per_trigger))
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
        """See `DataSourceStreamReader.partitions`. Return one piece per source, because the fold needs the channel in order."""
        return [Piece(source.value, start[source], end[source], end[_LOG]) for source in self._sources if start[source] < end[source]]

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
            self._files = ChannelFiles(_path(self._url), name=self._url, identity=identity, sources=self._sources)
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


def pieces(source: str, begin: int, end: int, *, identity: str) -> list[InputPartition]:
    """Split the entries from `begin` to `end` (exclusive) into pieces of similar size, one per task."""
    if begin >= end:
        return []
    size = max(PARTITION_ENTRIES, -(-(end - begin) // _PARTITIONS_MAX))
    return [Piece(source, first, min(first + size, end), identity) for first in range(begin, end, size)]


def read_piece(url: str, piece: Piece) -> Iterator[pa.RecordBatch]:
    """Yield the entries of a piece as Arrow batches, in order. Raises what `when_available` raises, and `LogDamaged`."""
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

        arrivals = when_available(url, some, identity=piece.identity or None)
        if not arrivals:
            return
        yield record_batch(arrivals)
        begin = arrivals[-1].offset + 1


def record_batch(arrivals: Sequence[Arrival]) -> pa.RecordBatch:
    """Return entries as columns of `SCHEMA`."""
    times_ms = [arrival.at_ms for arrival in arrivals]
    columns = [
        pa.array([arrival.source for arrival in arrivals], pa.string()),
        pa.array([arrival.offset for arrival in arrivals], pa.int64()),
        pa.array([time_ms * 1_000 for time_ms in times_ms], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array([arrival.key for arrival in arrivals], pa.binary()),
        pa.array([arrival.value for arrival in arrivals], pa.binary()),
        pa.array([time_ms // _DAY_MS for time_ms in times_ms], pa.int32()).cast(pa.date32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def when_available(
    url: str, ask: Callable[[ChannelFiles], _Answer], *, identity: str | None = None, sources: Sequence[Source] = tuple(Source)
) -> _Answer:
    """Open the files and return the result of `ask`. Wait while they are unavailable.

    Raises `PeerError` after `AWAY_S_MAX`, and what `ask` raises.
    """
    began_s = time.monotonic()
    reported_s = began_s
    while True:
        try:
            with contextlib.closing(ChannelFiles(_path(url), name=url, identity=identity, sources=sources)) as files:
                return ask(files)
        except _AWAY as error:
            now_s = time.monotonic()
            if now_s - began_s >= AWAY_S_MAX:
                what = f"{url} was unavailable for {AWAY_S_MAX} s: {error}"
                raise PeerError(f"{what}; start the job again once it is back: it continues where it stopped") from error
            if now_s - reported_s >= _TOLD_EVERY_S:
                reported_s = now_s
                problem = getattr(error, "problem", error)
                sys.stderr.write(f"{url} is unavailable: {problem}; a task waits for it, for at most {AWAY_S_MAX} s\n")
                sys.stderr.flush()
        time.sleep(_RETRY_S)


def _path(url: str) -> str:
    path = log_path(url)
    if path is None:
        raise invalid_log_url(url=url, problem="it is no file")
    return path


def _positions(options: Mapping[str, str], name: str) -> Positions:
    return {source: int(offset) for source, offset in json.loads(options.get(name) or "{}").items()}


def _sources(options: Mapping[str, str]) -> tuple[Source, ...]:
    """Return the requested sources in the order in which a batch reads them."""
    names = json.loads(options["sources"])
    return tuple(source for source in Source if source in names)
