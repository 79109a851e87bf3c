"""Read a channel and its companions in batches, live, from any log that processes share.

A batch ends at `ENTRIES_MAX` entries or `BYTES_MAX` bytes of a source, whichever is first, so
memory does not depend on the sizes of records.
"""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Final, NamedTuple, Self

from equipoise.channel.core.errors import (
    CallerError,
    EquipoiseError,
    LogReplaced,
    LogStorageFull,
    LogUnavailable,
    PeerError,
    invalid_log_url,
)
from equipoise.channel.core.side_log import SideLog, SideLogUnavailable
from equipoise.channel.kafka.settings import HEADER_KEY, address_of, without_secrets
from equipoise.channel.log.open_log import kafka_settings, log_path, open_log, open_side_log
from equipoise.spark_jobs.sequence.rows import Arrival, Positions, Source
from equipoise.spark_jobs.sources.channel_files import (
    COMPANIONS,
    PIECE,
    ChannelFiles,
    check_identity,
)

ENTRIES_MAX: Final = 4_000
"""Most entries of a source in a batch: 0.2 s of auditing, in some megabytes."""

BYTES_MAX: Final = 8 << 20
"""Most bytes of a source in a batch, unless a single entry is larger. A reader holds one batch and
what it makes of it."""

SILENT_S_MAX: Final = 30.0
"""How long a topic may withhold entries that it is known to have, before it counts as away."""

_TAKE_MS: Final = 100

_CHANNEL: Final = Source.CHANNEL.value

_TAKEN_MAX: Final = 256
"""Messages that one call takes from the client of Kafka: some 60 kB, at most 256 MiB."""


class Batch(NamedTuple):
    """Entries in order (the channel's first), and the next offset to read of each source."""

    arrivals: list[Arrival]
    ends: dict[str, int]


class FileReading:
    """One reader of a channel in a file, for one thread. Each method raises `LogUnavailable` while
    the log is away, and what `channel.core.log.Log.read` raises.
    """

    def __init__(
        self, url: str, path: str, *, sources: Collection[Source], identity: str | None
    ) -> None:
        self._sources = [source for source in Source if source in sources]
        self.log = open_log(url, create=False)
        try:
            self._files = ChannelFiles(
                path, name=url, identity=identity, sources=sources, bytes_max=BYTES_MAX
            )
        except BaseException:
            self.log.close()
            raise

    def ends(self) -> dict[str, int]:
        """Return the position after the newest entry of each source."""
        return self._files.ends()

    def batch(self, position: Positions, *, until: Positions | None = None) -> Batch:
        """Return the next entries from `position`, below `until`; none at the end.

        Entries that the log no longer has are left out. Evidence that is newer than the batch's
        last record waits until the channel is read to its end.
        """
        begin = {source.value: position.get(source, 1) for source in self._sources}
        ends = self._files.batch_end(begin, limit=ENTRIES_MAX, until=until)
        arrivals = [
            arrival
            for source in self._sources
            for arrival in self._files.rows(source, min(begin[source], ends[source]), ends[source])
        ]
        return Batch(arrivals, ends)

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        """Wait until the channel has an entry at or above `position`. Return whether it has."""
        return self.log.wait(max(position, self.log.start()), timeout_ms=timeout_ms)

    def close(self) -> None:
        """Release everything."""
        self._files.close()
        self.log.close()


class TopicReading:
    """The same for a channel in a topic."""

    def __init__(self, url: str, *, sources: Collection[Source], identity: str | None) -> None:
        with ExitStack() as opened:
            # Its client comes with an extra; `open_log` says so.
            self.log = opened.enter_context(closing(open_log(url, create=False)))
            check_identity(self.log.name, self.log.identity, identity)
            from equipoise.channel.kafka.client import Clients, Taken  # noqa: PLC0415

            self._nothing = Taken()
            address, self._settings = address_of(url), kafka_settings()
            clients = Clients(servers=address.servers, settings=self._settings)
            self._consumer = opened.enter_context(closing(clients.consumer(address.topic)))
            self._beside: dict[Source, SideLog] = {
                source: opened.enter_context(closing(open_side_log(url, topic)))
                for source, topic in COMPANIONS.items()
                if source in sources
            }
            self._opened = opened.pop_all()
        self._reached = -1  # The next offset that the consumer takes.
        self._held: deque[Arrival] = deque()

    def ends(self) -> dict[str, int]:
        """See `FileReading.ends`."""
        ends = {source.value: side_log.bounds()[1] for source, side_log in self._beside.items()}
        return {_CHANNEL: self.log.end() + 1, **ends}

    def batch(self, position: Positions, *, until: Positions | None = None) -> Batch:
        """See `FileReading.batch`."""
        at = max(position.get(Source.CHANNEL, 0), self.log.start())
        below = self.log.end() + 1
        if until is not None:
            below = min(below, until[Source.CHANNEL])
        found = self._channel(at, below)
        ends = {_CHANNEL: max(at, self._position)}
        youngest_ms = found[-1].at_ms if found and self._position < below else None
        for source, side_log in self._beside.items():
            begin = position.get(source, 0)
            bound = None if until is None else until[source]
            try:
                kept, ends[source] = beside(
                    source, side_log, begin, until=bound, youngest_ms=youngest_ms
                )
            except SideLogUnavailable:  # Read later. The channel does not wait for it.
                kept, ends[source] = [], begin
            found += kept
        return Batch(found, ends)

    @property
    def _position(self) -> int:
        """The next offset that `_channel` gives away."""
        return self._held[0].offset if self._held else self._reached

    def _channel(self, at: int, below: int) -> list[Arrival]:
        if at != self._position:
            self._seek(at)
        found: list[Arrival] = []
        found_bytes, heard_s = 0, time.monotonic()
        while self._position < below and len(found) < ENTRIES_MAX and found_bytes <= BYTES_MAX:
            if self._held:
                found.append(self._held.popleft())
                found_bytes += len(found[-1].value or b"")
            elif self._take(timeout_ms=_TAKE_MS):
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > SILENT_S_MAX:
                raise self._away(f"its entries from {self._position} on did not come")
        return found

    def _seek(self, at: int) -> None:
        self._held.clear()
        self._reached = at
        self._consumer.start_at(at)

    def _take(self, *, timeout_ms: int) -> bool:
        """Take some messages. Return whether the topic answered."""
        taken = self._consumer.take(_TAKEN_MAX, timeout_ms=timeout_ms) or self._nothing
        if taken.failure is not None:
            start = self.log.start()
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
        return LogUnavailable(log=self.log.name, problem=problem, in_doubt=False)

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        """See `FileReading.wait`."""
        if position != self._position:
            self._seek(position)
        if not self._held:
            self._take(timeout_ms=timeout_ms)
        return bool(self._held)

    def close(self) -> None:
        """See `FileReading.close`."""
        self._opened.close()


Reading = FileReading | TopicReading


def open_reading(
    url: str, *, sources: Collection[Source] = tuple(Source), identity: str | None = None
) -> Reading:
    """Open the log at `url` for these `sources`. With `identity` it must be that log.

    Raises what `open_log` raises for a log that is not there, and `OperatorError` for another log.
    """
    path = log_path(url)
    if path is not None:
        return FileReading(url, path, sources=sources, identity=identity)
    if not url.startswith("kafka:"):
        raise invalid_log_url(
            url=url, problem="a log of this kind lives in one process, and this is another"
        )
    return TopicReading(url, sources=sources, identity=identity)


def beside(
    source: Source,
    side_log: SideLog,
    begin: int,
    *,
    until: int | None,
    youngest_ms: int | None,
) -> tuple[list[Arrival], int]:
    """Return the documents of a companion from `begin`, and the next position.

    None of them is at or above `until`, or newer than `youngest_ms`. A companion that was made anew
    is read from its beginning.
    """
    first, end = side_log.bounds()
    position = begin if begin <= end else first
    below = end if until is None else min(end, until)
    found: list[Arrival] = []
    held_bytes = 0
    while position < below and len(found) < ENTRIES_MAX:
        kept = side_log.read(position, limit=PIECE)
        if not kept:
            return found, below
        for each in kept:
            held_bytes += len(each.value or b"")
            is_late = youngest_ms is not None and each.at_ms > youngest_ms
            if each.position >= below or is_late or (found and held_bytes > BYTES_MAX):
                return found, position
            found.append(Arrival(source.value, each.position, max(each.at_ms, 0), each.value))
            position = each.position + 1
    return found, position


STEP_MS: Final = 100
"""Time between two reads at the end of the log: ten a second, so that a finding is 0.1 s late at
most and an idle log costs nothing."""

WAIT_MS: Final = 500
"""Longest wait for an entry of the channel. Notes that come without one wait as long."""

AWAY_S_MAX: Final = 900
"""How long a process waits for its log: longer than Kafka takes to restart."""

RETRY_S: Final = 0.5
_AWAY: Final = (CallerError, LogUnavailable, LogReplaced, LogStorageFull, SideLogUnavailable)
"""What passes once the log is back. A caller error: no log is there (yet)."""


class Patience:
    """Waits while somebody is away. `note` gets a line for each failure."""

    def __init__(self, note: Callable[[str], None] = lambda _: None) -> None:
        self._note = note
        self._since_s: float | None = None

    def failed(self, what: str, error: EquipoiseError) -> None:
        """Wait for a moment. Raises `error` once that has gone on for `AWAY_S_MAX`."""
        now_s = time.monotonic()
        self._since_s = self._since_s or now_s
        if now_s - self._since_s > AWAY_S_MAX:
            raise error
        self._note(f"{what}: {error}")
        time.sleep(RETRY_S)

    def over(self) -> None:
        """Begin to count anew."""
        self._since_s = None


class Tail:
    """Read a log to its end, or live, over its outages.

    As a context manager it releases the log.
    """

    def __init__(
        self, url: str, *, identity: str, to_end: bool, sources: Collection[Source] = tuple(Source)
    ) -> None:
        """Open the log. With `to_end` nothing is read that comes later.

        Raises as `open_reading`.
        """
        self._open = partial(open_reading, url, sources=sources, identity=identity)
        self._reading: Reading | None = self._open()
        self._until = self._reading.ends() if to_end else None
        self._read_s = 0.0
        self._patience = Patience()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._close()

    def after(self, position: Positions) -> Batch | None:
        """Return the next batch from `position`; after `WAIT_MS` an empty one; None at the end.

        Raises `PeerError` once the log has been away for `AWAY_S_MAX`, and what `Reading` raises.
        """
        try:
            reading = self._reading = self._reading or self._open()
            if self._until is None:
                time.sleep(max(0.0, self._read_s + STEP_MS / 1_000 - time.monotonic()))
            batch = self._some(reading, position)
        except _AWAY as error:
            self._close()
            away = PeerError(
                f"the log was away for {AWAY_S_MAX} s: {error}; start again once it is back: it"
                " continues where it stopped"
            )
            self._patience.failed("", away)
            return Batch([], dict(position))
        self._patience.over()
        return batch

    def _some(self, reading: Reading, position: Positions) -> Batch | None:
        batch = reading.batch(position, until=self._until)
        if not batch.arrivals and self._until is None:
            reading.wait(batch.ends[_CHANNEL], timeout_ms=WAIT_MS)
            batch = reading.batch(batch.ends)
        # A full batch means that more is there already: read on at once.
        is_full = len(batch.arrivals) >= ENTRIES_MAX
        self._read_s = 0.0 if is_full else time.monotonic()
        is_over = self._until is not None and not batch.arrivals
        return None if is_over and batch.ends == dict(position) else batch

    def end(self) -> int | None:
        """Return the last offset of the log now; None if it does not answer."""
        with suppress(EquipoiseError):
            self._reading = self._reading or self._open()
            return self._reading.log.end()
        return None

    def _close(self) -> None:
        if self._reading is not None:
            with suppress(EquipoiseError, OSError, sqlite3.Error):
                self._reading.close()
        self._reading = None
