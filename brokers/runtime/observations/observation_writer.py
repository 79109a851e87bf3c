"""The writer of observations: what a broker puts down about itself, written by a thread of its own, never in the way of serving.

May live here: the row between the event loop and that thread, and what is told when something is lost.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.failures.told_failures import ToldFailures
from equipoise.brokers.runtime.observations.observed import Kind, Observations, ObservationsUnavailable, Served
from equipoise.channel.core.errors import Overloaded

_logger: Final = logging.getLogger(__name__)

# What waits to be written: a broker that opens or closes every bundle of a namespace of the largest size at once, in 20 MB.
_WAITING_MAX: Final = 65_536

# Written at once: 300 bytes each make 300 KB, which take some milliseconds.
_BATCH_MAX: Final = 1_000

# A place that is away is tried again so often, for a minute in all: another process may have been stopped while it wrote to the
# same file. What comes meanwhile waits, and what still is not written then is lost.
_RETRY_S: Final = 1.0
_ATTEMPTS_MAX: Final = 60

CLOSE_S: Final = 1.0
"""What the last observations may take when a broker ends; a thread that is still at it then dies with its process."""


class ObservationWriter:
    """Takes what one broker served, in its loop, and writes it in a thread."""

    def __init__(self, open_observations: Callable[[], Observations], *, broker: str, clock: Clock) -> None:
        """`open_observations` is called in the thread, when there is something to write."""
        self._open = open_observations
        self._broker = broker
        self._clock = clock
        self._waiting: queue.Queue[Served | None] = queue.Queue(maxsize=_WAITING_MAX)
        self._closing = threading.Event()
        self._observations: Observations | None = None
        # Each is written by one thread only: the one by the loop, the other by the writer's.
        self._dropped = 0
        self._dropped_told = 0
        self._failures = ToldFailures(_logger, broker=broker, failed="observations are not kept", over="observations are kept again")
        self._thread = threading.Thread(target=self._run, name="observations", daemon=True)
        self._thread.start()

    def served(self, served: Served) -> None:
        """Have this written; never blocks."""
        try:
            self._waiting.put_nowait(served)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what waits, for `CLOSE_S` at most. To be called in a thread."""
        self._closing.set()
        with suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            _logger.warning("the last observations are still being written", extra={"broker": self._broker})

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get()]
            with suppress(queue.Empty):
                while len(batch) < _BATCH_MAX:
                    batch.append(self._waiting.get_nowait())
            self._write([served for served in batch if served is not None])
            if None in batch:
                return

    def _write(self, batch: Sequence[Served]) -> None:
        """Write a batch, if need be in several attempts; of one that a broker ends with only one more is made."""
        for _ in range(_ATTEMPTS_MAX):
            was_closing = self._closing.is_set()
            try:
                self._observations = self._observations or self._open()
                self._observations.write(Kind.SERVING, [served.observation() for served in batch])
                self._tell_dropped()
            except ObservationsUnavailable as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - what some of them meet must not end all that come after them.
                self._failed(error)
                return
            else:
                self._failures.succeeded()
                return
            if was_closing:
                return
            self._closing.wait(_RETRY_S)

    def _failed(self, error: Exception) -> None:
        self._failures.failed(error, self._clock.now().boot_ms)

    def _tell_dropped(self) -> None:
        """Raise `Overloaded` if something was dropped since this was last asked."""
        dropped, self._dropped_told = self._dropped - self._dropped_told, self._dropped
        if dropped:
            what = f"the row of observations to be written at broker {self._broker}, of which {dropped} were dropped"
            raise Overloaded(what=what, limit=_WAITING_MAX)
