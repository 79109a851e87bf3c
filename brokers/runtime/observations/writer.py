"""Write a broker's observations in a thread, so that they never delay serving."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

import orjson

from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.failures import LoggedFailures
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.side_log import Document, SideLog, SideLogUnavailable, SideTopic

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

SERVING: Final = SideTopic(
    name="serving",
    content="the record of serving",
    consequence="brokers serve on, and audits miss what is lost meanwhile",
    kept_ms=7 * 86_400_000,  # How late an audit may still read it.
    rows_max=200_000,  # 60 MB, 100,000 openings.
)

Ended = Literal["closed", "reshaped", "lease_over", "abandoned", "stopped"]
"""Why serving ended: the bundle was moved or given back; split or merged; the lease ran out (a
renewal may continue the ownership); the service overran its deadline; the broker ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """When one incarnation of a broker served one bundle under one token, as stored: a flat JSON
    object with these fields. No verdict depends on it, and no broker reads it.

    * `started_ns`, `answered_ns`: boot time (CLOCK_BOOTTIME), comparable within one run of a
      machine, `boot`. `answered_ns` is None while the broker serves, then the last moment at which
      it served or may have.
    * `lease_deadline_ns`: end of the last lease, by the same clock.
    * `by_token`: served past the lease, because the namespace serves on. Only the token guards
      there.
    * `at_ms`, `at_ns`: one moment by wall and boot clock, to link the two.
    * `log`: identity of the log. Tokens of different logs are not comparable.
    """

    log: str
    broker: str
    incarnation: int
    bundle: str
    token: int
    boot: str
    started_ns: int
    answered_ns: int | None
    lease_deadline_ns: int
    ended: Ended | None
    by_token: bool
    at_ms: int
    at_ns: int


class ObservationWriter:
    """Takes what one broker serves on its loop, and writes it in a thread."""

    def __init__(self, open_store: Callable[[], SideLog], *, broker: str, clock: Clock) -> None:
        """`open_store` is called in the thread, once there is something to write."""
        self._open = open_store
        self._broker = broker
        self._clock = clock
        self._waiting: queue.Queue[Served | None] = queue.Queue(maxsize=_WAITING_MAX)
        self._closing = threading.Event()
        self._store: SideLog | None = None
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
                self._store = self._store or self._open()
                self._store.append([Document(each.broker, orjson.dumps(each)) for each in batch])
                self._report_dropped()
            except SideLogUnavailable as error:
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
