"""Write what a broker records of its serving in threads, so that it never delays the serving."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, Literal, TypeVar

import orjson

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.runtime.clock import Clock
from equipoise.brokers.runtime.service import Evidence
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.side_log import Document, SideLog, SideLogUnavailable
from equipoise.channel.system import private_files
from equipoise.channel.system.failures import LoggedFailures

_logger: Final = logging.getLogger(__name__)

# What waits: an observation of every bundle of a largest namespace at once, in 20 MB, or one second
# of the busiest benchmark.
_WAITING_MAX: Final = 65_536

# Documents per write: 300 bytes each make 300 KB, which take some milliseconds.
_BATCH_MAX: Final = 1_000

# Retry for a minute: another process may have been stopped while it wrote to the file. New
# observations wait; then the batch is lost.
_RETRY_S: Final = 1.0
_ATTEMPTS_MAX: Final = 60

CLOSE_S: Final = 1.0
"""Time for the last documents when a broker ends. A thread that needs longer dies with its
process."""

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


ItemT = TypeVar("ItemT")


class BackgroundWriter(Generic[ItemT]):
    """Takes items on the loop, and writes them in batches in a thread."""

    def __init__(
        self, write: Callable[[Sequence[ItemT], int], None], *, name: str, broker: str
    ) -> None:
        """`write` takes a batch and how many items were dropped since the last one, because too
        many waited. It is called in the thread, and raises nothing. `name`, with its verb, begins
        the line about what is left at the end.
        """
        self._write = write
        self._name = name
        self._broker = broker
        self._waiting: queue.Queue[ItemT | None] = queue.Queue(maxsize=_WAITING_MAX)
        # One thread writes each: `_dropped` the loop's, `_dropped_reported` the writer's.
        self._dropped = 0
        self._dropped_reported = 0
        self.closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=name.split(maxsplit=1)[0], daemon=True
        )
        self._thread.start()

    def put(self, item: ItemT) -> None:
        """Queue an item without blocking."""
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._dropped += 1

    def close(self) -> bool:
        """Write what waits, for at most `CLOSE_S`. Return whether that is done. Call it in a
        thread.
        """
        self.closing.set()
        with suppress(queue.Full):
            self._waiting.put(None, timeout=CLOSE_S)
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            _logger.warning(
                "%s still being written when the broker ends",
                self._name,
                extra={"broker": self._broker},
            )
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            batch = [self._waiting.get()]
            with suppress(queue.Empty):
                while len(batch) < _BATCH_MAX:
                    batch.append(self._waiting.get_nowait())
            dropped, self._dropped_reported = self._dropped - self._dropped_reported, self._dropped
            self._write([item for item in batch if item is not None], dropped)
            if None in batch:
                return


class EvidenceFile:
    """Appends evidence of work that passed both checks to a file, one JSON object per line, for a
    checker. The broker never reads it, and a killed process loses the last moments.
    """

    def __init__(self, path: Path, *, broker: str) -> None:
        """Open `path` for appending. Raise `InvalidConfig` if that is not possible."""
        self._broker = broker
        self._dropped = 0
        self._has_failed = False
        try:
            private_files.make(path)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise InvalidConfig(problems=(f"evidence: {error}",)) from error
        self._writer = BackgroundWriter(self._take, name="evidence is", broker=broker)
        self.write = self._writer.put

    def close(self) -> None:
        """Write what is queued and close the file, in bounded time. Call it in a thread."""
        if self._writer.close():
            self._file.close()

    def _take(self, batch: Sequence[Evidence], dropped: int) -> None:
        lines = [self._line(evidence) for evidence in batch]
        if dropped:
            # So that a checker knows of gaps: evidence must not look complete when it is not.
            self._dropped += dropped
            fields = {"broker": self._broker, "dropped": self._dropped}
            _logger.warning("evidence was dropped", extra=fields)
            lines.append(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
        if lines and not self._has_failed:
            self._has_failed = not self._write(b"".join(lines))

    def _write(self, lines: bytes) -> bool:
        """Return whether all was written. A disk error ends the evidence, never the broker."""
        try:
            while lines:
                lines = lines[self._file.write(lines) :]
        except OSError as error:
            _logger.warning("evidence ends: %s", error, extra={"broker": self._broker})
            return False
        return True

    def _line(self, evidence: Evidence) -> bytes:
        line = {
            "broker": self._broker,
            "bundle": evidence.bundle,
            # The key as callers name it, unique over all namespaces.
            "key": f"{evidence.bundle.rpartition('/')[0]}/{evidence.key}",
            "token": evidence.token,
            "started_ns": evidence.started_ns,
            "answered_ns": evidence.answered_ns,
            "lease_deadline_ns": evidence.lease_deadline_ns,
        }
        if evidence.message is not None:
            line["message"] = evidence.message
        if evidence.by_token:
            line["by_token"] = True
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


class ObservationWriter:
    """Writes what one broker serves beside its log."""

    def __init__(self, open_store: Callable[[], SideLog], *, broker: str, clock: Clock) -> None:
        """`open_store` is called in the thread, once there is something to write."""
        self._open = open_store
        self._clock = clock
        self._store: SideLog | None = None
        self._failures = LoggedFailures(
            _logger,
            broker=broker,
            failed="observations not stored",
            over="observations are stored again",
        )
        self._writer = BackgroundWriter(self._write, name="observations are", broker=broker)
        self.served = self._writer.put
        self.close = self._writer.close

    def _write(self, batch: Sequence[Served], dropped: int) -> None:
        """Write a batch, with retries. Try only once more when the broker is ending."""
        if dropped:
            self._failed(
                PeerError(
                    f"{dropped} observations were dropped, because at most {_WAITING_MAX} may wait;"
                    " audits miss them"
                )
            )
        for _ in range(_ATTEMPTS_MAX if batch else 0):
            was_closing = self._writer.closing.is_set()
            try:
                self._store = self._store or self._open()
                self._store.append([Document(each.broker, orjson.dumps(each)) for each in batch])
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
            self._writer.closing.wait(_RETRY_S)

    def _failed(self, error: Exception) -> None:
        self._failures.failed(error, self._clock.now().boot_ms)
