"""Provide an embedded channel as a Spark data source for streaming queries.

Spark pickles these classes and calls them in processes of its own.

* A position covers all sources: `{"log": identity, "channel": 7, "decisions": 1, "serving": 1,
  "loads": 1}` holds the identity of the log and the next offset of each source.
* A streaming query does not fail while the file is unavailable. It reports no new entries;
  `spark_jobs.streams.progress` detects that.
* A task that reads planned rows waits up to `AWAY_S_MAX` for the file.

`channel_files` reads the entries.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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

from equipoise.channel.core.errors import (
    CallerError,
    LogReplaced,
    LogStorageFull,
    LogUnavailable,
    PeerError,
    invalid_log_url,
)
from equipoise.channel.core.log import Log
from equipoise.channel.core.side_log import SideLogUnavailable
from equipoise.channel.log.open_log import log_path, open_log
from equipoise.spark_jobs.sequence.rows import FRAME_DDL, Arrival, Positions, Source
from equipoise.spark_jobs.sources.channel_files import BEGINNING, ROWS_AT_ONCE, ChannelFiles

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
