"""Read a channel and its companions live, over outages of the log."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Final, Self

from equipoise.channel.core.errors import EquipoiseError, PeerError
from equipoise.spark_jobs.sequence.rows import Positions, Source
from equipoise.spark_jobs.sources.reading import AWAY, Batch, Reading

ENTRIES_MAX: Final = 4_000
"""Most entries of a source in a batch: 0.2 s of auditing, in some megabytes."""

BYTES_MAX: Final = 8 << 20
"""Most bytes of a source in a batch, unless a single entry is larger. A reader holds one batch and
what it makes of it."""

_CHANNEL: Final = Source.CHANNEL.value

STEP_MS: Final = 100
"""Time between two reads at the end of the log: ten a second, so that a finding is 0.1 s late at
most and an idle log costs nothing."""

WAIT_MS: Final = 500
"""Longest wait for an entry of the channel. Notes that come without one wait as long."""

AWAY_S_MAX: Final = 900
"""How long a process waits for its log: longer than Kafka takes to restart."""

RETRY_S: Final = 0.5


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

        Raises as `Reading`.
        """
        self._open = partial(
            Reading,
            url,
            sources=sources,
            identity=identity,
            entries_max=ENTRIES_MAX,
            bytes_max=BYTES_MAX,
        )
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
        except AWAY as error:
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
