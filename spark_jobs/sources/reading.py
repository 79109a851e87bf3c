"""Read a channel and its companions in batches, from any log that processes share.

A batch ends at a number of entries or bytes of a source, whichever is first, so memory does not
depend on the sizes of records.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import ExitStack, closing
from typing import Final, NamedTuple

from equipoise.brokers.load.bus import LOADS
from equipoise.brokers.side_topics import DECISIONS, SERVING
from equipoise.channel.core.errors import (
    CallerError,
    LogDamaged,
    LogReplaced,
    LogStorageFull,
    LogUnavailable,
    LogWentBack,
    OperatorError,
    invalid_log_url,
)
from equipoise.channel.core.log import FIRST_OFFSET, Log
from equipoise.channel.core.side_log import SideLog, SideLogUnavailable, SideTopic
from equipoise.channel.kafka.settings import HEADER_KEY, address_of, without_secrets
from equipoise.channel.log.open_log import kafka_settings, log_path, open_log, open_side_log
from equipoise.channel.sqlite.file import usable_path
from equipoise.channel.sqlite.log import checksum_of
from equipoise.channel.sqlite.storage import READ_MS_MAX, SqliteStorage, Synchronous
from equipoise.channel.system.process_lock import this_boot
from equipoise.spark_jobs.sequence.rows import Arrival, Positions, Source

COMPANIONS: Final[Mapping[Source, SideTopic]] = {
    Source.DECISIONS: DECISIONS,
    Source.SERVING: SERVING,
    Source.LOADS: LOADS,
}
"""The sources other than the channel: side logs."""

AWAY: Final = (CallerError, LogUnavailable, LogReplaced, LogStorageFull, SideLogUnavailable)
"""What passes once the log is back. A caller error: no log is there (yet)."""

ROWS_AT_ONCE: Final = 10_000
"""Rows per read transaction: 10 MB of records of 1 kB, and about 20 ms in which the WAL cannot
start over."""

BYTES_AT_ONCE: Final = 16 << 20
"""Bytes after which a transaction adds no further row, to bound memory for a run of very large
records."""

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, Spark's latest time. Later times in damaged rows are capped to it."""

LOADS_BYTES_MAX: Final = 8 << 20
"""Most bytes of load reports in a batch. Each becomes a row per bundle it names: 4,000 reports of
20 bundles are 90,000 rows."""

PIECE: Final = 500
"""Documents of a side log that are looked at at once, to find where a batch ends."""

SILENT_S_MAX: Final = 30.0
"""How long a topic may withhold entries that it is known to have, before it counts as away."""

_TAKE_MS: Final = 100

_CHANNEL: Final = Source.CHANNEL.value

_TAKEN_MAX: Final = 256
"""Messages that one call takes from the client of Kafka: some 60 kB, at most 256 MiB."""


class Batch(NamedTuple):
    """Entries in order (the channel's first), and the next offset to read of each source. `away` is
    the error of a companion that is to be read later.
    """

    arrivals: list[Arrival]
    ends: dict[str, int]
    away: SideLogUnavailable | None = None


class ChannelFile:
    """A connection to the file of a log, for use by one thread.

    * SQLite opens the file as an ordinary reader, never with `immutable=1`, which ignores the WAL.
    * No read transaction outlives a call: an open one keeps the WAL from starting over.
    """

    def __init__(self, path: str, log: Log) -> None:
        """Open the file at `path` of an open `log`. Raises what `open_log` raises."""
        self._log = log
        self._storage = SqliteStorage(
            usable_path(path, url=log.name, create=False),
            name=log.name,
            synchronous=Synchronous.FULL,
            boot=this_boot(),
            create=False,
        )

    def end(self) -> int:
        """Return the position after the newest entry; in an empty log, the first one."""
        with self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds:
            return (bounds.newest or bounds.start - 1) + 1

    def read(
        self, position: int, below: int, *, entries_max: int, bytes_max: int
    ) -> tuple[list[Arrival], int]:
        """Return the entries from `position` to `below` (exclusive) in order, at most so many, and
        the next position. At least one entry is included.

        A record with a wrong checksum has no value: its contents cannot be trusted, but its
        position is known. Raises `LogWentBack` if the log ends below `position`.
        """
        end = self._log.end()
        if position > end + 1:
            raise LogWentBack(log=self._log.name, position=position, end=end)
        found: list[Arrival] = []
        held_bytes = 0
        while len(found) < entries_max:
            rows = self._rows(position, below, min(entries_max - len(found), ROWS_AT_ONCE))
            if not rows:
                break
            for row in rows:
                held_bytes += len(row.value or b"")
                if found and held_bytes > bytes_max:
                    return found, position
                found.append(row)
                position = row.offset + 1
        return found, position

    def _rows(self, begin: int, end: int, limit: int) -> list[Arrival]:
        found: list[Arrival] = []
        held_bytes = 0
        query = (
            "SELECT offset, data, checksum, appended_ms FROM entries WHERE offset >= ? AND offset <"
            " ? ORDER BY offset LIMIT ?"
        )
        # Close the cursor before the transaction ends: an open cursor prevents its end.
        with (
            self._storage.transaction("BEGIN", timeout_ms=READ_MS_MAX) as bounds,
            ExitStack() as taken,
        ):
            # Entries below the start are gone, even if a truncation has not removed them yet.
            begin = max(begin, bounds.start)
            cursor = taken.enter_context(
                closing(self._storage.connection.execute(query, (begin, end, limit)))
            )
            for offset, data, checksum, appended_ms in cursor:
                # A damaged page may point backwards. Following it would loop for ever.
                if offset < begin:
                    raise LogDamaged(
                        log=self._log.name,
                        problem=f"the entry at offset {offset} is out of order",
                        offset=offset,
                    )
                is_whole = type(data) is bytes and checksum_of(offset, data) == checksum
                begin = offset + 1
                value = data if is_whole else None
                found.append(Arrival(_CHANNEL, offset, time_ms(appended_ms), value))
                held_bytes += len(value or b"")
                if held_bytes > BYTES_AT_ONCE:
                    break
        return found

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        """Wait until the log has an entry at or above `position`. Return whether it has."""
        return self._log.wait(max(position, self._log.start()), timeout_ms=timeout_ms)

    def close(self) -> None:
        """Close the file."""
        self._storage.close()


def time_ms(value: object) -> int:
    """Return a Unix time within Spark's range; 0 for an invalid value."""
    return min(max(value, 0), TIME_MS_MAX) if isinstance(value, int) else 0


class ChannelTopic:
    """The log of a channel in a topic, for use by one thread."""

    def __init__(self, url: str, log: Log) -> None:
        """Read the topic at `url` of an open `log`."""
        # Its client comes with an extra; `open_log` says so.
        from equipoise.channel.kafka.client import Clients, Taken  # noqa: PLC0415

        self._log = log
        self._nothing = Taken()
        address, self._settings = address_of(url), kafka_settings()
        clients = Clients(servers=address.servers, settings=self._settings)
        self._consumer = clients.consumer(address.topic)
        self._reached = -1  # The next offset that the consumer takes.
        self._held: deque[Arrival] = deque()

    def end(self) -> int:
        """See `ChannelFile.end`."""
        return self._log.end() + 1

    @property
    def _position(self) -> int:
        """The next offset that `read` gives away."""
        return self._held[0].offset if self._held else self._reached

    def read(
        self, position: int, below: int, *, entries_max: int, bytes_max: int
    ) -> tuple[list[Arrival], int]:
        """See `ChannelFile.read`."""
        at = max(position, self._log.start())
        if at != self._position:
            self._seek(at)
        found: list[Arrival] = []
        found_bytes, heard_s = 0, time.monotonic()
        while self._position < below and len(found) < entries_max and found_bytes <= bytes_max:
            if self._held:
                found.append(self._held.popleft())
                found_bytes += len(found[-1].value or b"")
            elif self._take(timeout_ms=_TAKE_MS):
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > SILENT_S_MAX:
                raise self._away(f"its entries from {self._position} on did not come")
        # Without an entry, a truncation moves nothing: what it took was not read.
        is_read = bool(found) or at == position
        return found, max(at, self._position) if is_read else position

    def _seek(self, at: int) -> None:
        self._held.clear()
        self._reached = at
        self._consumer.start_at(at)

    def _take(self, *, timeout_ms: int) -> bool:
        """Take some messages. Return whether the topic answered."""
        taken = self._consumer.take(_TAKEN_MAX, timeout_ms=timeout_ms) or self._nothing
        if taken.failure is not None:
            start = self._log.start()
            if start <= self._reached:
                self._reached = -1  # The next batch starts the consumer anew.
                raise self._away(without_secrets(taken.failure.problem, self._settings))
            self._seek(start)  # Truncated meanwhile. What is left follows.
            return True
        # A tombstone becomes an empty entry, which is no valid record, as for brokers.
        self._held.extend(
            Arrival(_CHANNEL, offset, max(message.timestamp()[1], 0), message.value() or b"")
            for offset, message in taken.messages
            if message.key() != HEADER_KEY
        )
        self._reached = max(self._reached, taken.reached)
        return taken.reached >= 0

    def _away(self, problem: str) -> LogUnavailable:
        return LogUnavailable(log=self._log.name, problem=problem, in_doubt=False)

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        """See `ChannelFile.wait`."""
        if position != self._position:
            self._seek(position)
        if not self._held:
            self._take(timeout_ms=timeout_ms)
        return bool(self._held)

    def close(self) -> None:
        """Release the consumer."""
        self._consumer.close()


class Reading:
    """One reader of a channel and its companions, for one thread. Each method raises
    `LogUnavailable` while the log is away, and what `channel.core.log.Log.read` raises.
    """

    def __init__(
        self,
        url: str,
        *,
        sources: Collection[Source] = tuple(Source),
        identity: str | None = None,
        entries_max: int,
        bytes_max: int,
    ) -> None:
        """Open the log at `url` for these `sources`. With `identity` it must be that log. A batch
        has at most `entries_max` entries and `bytes_max` bytes of each source, unless a single
        entry is larger.

        Raises what `open_log` raises for a log that is not there, and `OperatorError` for another
        log.
        """
        path = log_path(url)
        if path is None and not url.startswith("kafka:"):
            raise invalid_log_url(
                url=url, problem="a log of this kind lives in one process, and this is another"
            )
        self._entries_max, self._bytes_max = entries_max, bytes_max
        with ExitStack() as opened:
            self.log = opened.enter_context(closing(open_log(url, create=False)))
            if identity not in {None, self.log.identity}:
                raise OperatorError(
                    f"the log {self.log.name} is not the one that this job began to read"
                    f" ({self.log.identity}, expected {identity}): put the right one back, or give"
                    " the job another archive"
                )
            channel = ChannelTopic(url, self.log) if path is None else ChannelFile(path, self.log)
            self._channel: ChannelFile | ChannelTopic = opened.enter_context(closing(channel))
            self._beside: dict[Source, SideLog] = {
                source: opened.enter_context(closing(open_side_log(url, topic)))
                for source, topic in COMPANIONS.items()
                if source in sources
            }
            self._opened = opened.pop_all()

    def ends(self) -> dict[str, int]:
        """Return for each source the position after its newest entry; of a companion that cannot
        be read, the first one.
        """
        ends = {_CHANNEL: self._channel.end()}
        for source, side_log in self._beside.items():
            try:
                ends[source] = side_log.bounds()[1]
            except SideLogUnavailable:
                ends[source] = FIRST_OFFSET
        return ends

    def batch(self, position: Positions, *, until: Positions | None = None) -> Batch:
        """Return the next entries from `position`, below `until`; none at the end.

        Entries that the log no longer has are left out. Until the channel is read to its end,
        companion entries newer than the batch's last record wait. So a replay sees evidence
        together with its records, as a live reader does.
        """
        below = self._channel.end()
        if until is not None:
            below = min(below, until[_CHANNEL])
        found, end = self._channel.read(
            position.get(_CHANNEL, 0),
            below,
            entries_max=self._entries_max,
            bytes_max=self._bytes_max,
        )
        youngest_ms = found[-1].at_ms if found and end < below else None
        ends, away = {_CHANNEL: end}, None
        for source, side_log in self._beside.items():
            begin = position.get(source, 0)
            try:
                kept, ends[source] = self._documents(
                    source,
                    side_log,
                    begin,
                    until=None if until is None else until[source],
                    youngest_ms=youngest_ms,
                )
            except SideLogUnavailable as error:  # The channel does not wait for it.
                kept, ends[source], away = [], begin, error
            found += kept
        return Batch(found, ends, away)

    def _documents(
        self,
        source: Source,
        side_log: SideLog,
        begin: int,
        *,
        until: int | None,
        youngest_ms: int | None,
    ) -> tuple[list[Arrival], int]:
        """Return the documents of a companion from `begin`, and the next position.

        None of them is at or above `until`, or newer than `youngest_ms`. For a companion that was
        made anew return its first position, where the next batch begins.
        """
        first, end = side_log.bounds()
        if first == end:  # Nothing is there, or the file is away.
            return [], begin
        if begin > end:
            return [], first
        position, below = begin, end if until is None else min(end, until)
        left_bytes = self._bytes_max
        if source is Source.LOADS:
            left_bytes = min(left_bytes, LOADS_BYTES_MAX)
        found: list[Arrival] = []
        while position < below and len(found) < self._entries_max:
            kept = side_log.read(position, limit=min(self._entries_max - len(found), PIECE))
            if not kept and side_log.bounds()[1] >= below:  # What was there was deleted.
                return found, below
            if not kept or kept[0].position < position:  # All was deleted meanwhile, or made anew.
                break
            for each in kept:
                left_bytes -= len(each.value or b"")
                at_ms = time_ms(each.at_ms)
                is_late = youngest_ms is not None and at_ms > youngest_ms
                if each.position >= below or is_late or (found and left_bytes < 0):
                    return found, position
                found.append(Arrival(source.value, each.position, at_ms, each.value))
                position = each.position + 1
        return found, position

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        """Wait until the channel has an entry at or above `position`. Return whether it has."""
        return self._channel.wait(position, timeout_ms=timeout_ms)

    def close(self) -> None:
        """Release everything."""
        self._opened.close()
