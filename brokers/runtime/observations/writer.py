"""Write a broker's observations in a thread, so that they never delay serving."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.failures import LoggedFailures
from equipoise.brokers.runtime.observations.records import (
    Kind,
    Observations,
    ObservationsUnavailable,
    Served,
)
from equipoise.channel.core.errors import PeerError

_logger: Final = logging.getLogger(__name__)

# Waiting observations: every bundle of a largest namespace at once, in 20 MB.
_WAITING_MAX: Final = 65_536

# Observations per write: 300 bytes each make 300 KB, which take some milliseconds.
_BATCH_MAX: Final = 1_000

# Retry for a minute: another process may have been stopped while it wrote to the file. New
# observations wait; then the batch is lost.
_RETRY_S: Final = 1.0
_ATTEMPTS_MAX: Final = 60

CLOSE_S: Final = 1.0
"""Time for the last observations when a broker ends. A thread that needs longer dies with its
process."""


class ObservationWriter:
    """Takes what one broker serves on its loop, and writes it in a thread."""

    def __init__(
        self, open_observations: Callable[[], Observations], *, broker: str, clock: Clock
    ) -> None:
        """`open_observations` is called in the thread, once there is something to write."""
        self._open = open_observations
        self._broker = broker
        self._clock = clock
        self._waiting: queue.Queue[Served | None] = queue.Queue(maxsize=_WAITING_MAX)
        self._closing = threading.Event()
        self._observations: Observations | None = None
        # One thread writes each: `_dropped` the loop's, `_dropped_reported` the writer's.
        self._dropped = 0
        self._dropped_reported = 0
        self._failures = LoggedFailures(
            _logger,
            broker=broker,
            failed="observations not stored",
            over="observations are stored again",
        )
        self._thread = threading.Thread(target=self._run, name="observations", daemon=True)
        self._thread.start()

    def served(self, served: Served) -> None:
        """Queue an observation without blocking."""
        try:
            self._waiting.put_nowait(served)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what waits, for at most `CLOSE_S`. Call it in a thread."""
        self._closing.set()
        with suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            _logger.warning(
                "observations are still being written when the broker ends",
                extra={"broker": self._broker},
            )

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
        """Write a batch, with retries. Try only once more when the broker is ending."""
        for _ in range(_ATTEMPTS_MAX):
            was_closing = self._closing.is_set()
            try:
                self._observations = self._observations or self._open()
                self._observations.write(Kind.SERVING, [served.observation() for served in batch])
                self._report_dropped()
            except ObservationsUnavailable as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - a failed batch must not end the thread
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

    def _report_dropped(self) -> None:
        """Raise `PeerError` if observations were dropped since the last call."""
        dropped, self._dropped_reported = self._dropped - self._dropped_reported, self._dropped
        if dropped:
            raise PeerError(
                f"{dropped} observations were dropped, because at most {_WAITING_MAX} may wait;"
                " audits miss them"
            )
