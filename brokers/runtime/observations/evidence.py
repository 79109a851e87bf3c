"""Write evidence of work that passed both checks to a file, one JSON object per line, for a
checker.

It is off by default. The broker never reads it.
"""

from __future__ import annotations

import logging
import queue
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import orjson

from equipoise.brokers.errors import InvalidConfig
from equipoise.brokers.runtime.service import Evidence
from equipoise.channel.system import private_files

_logger: Final = logging.getLogger(__name__)

# Waiting lines: one second of the busiest benchmark. More are dropped and counted in a line:
# evidence must not slow the work, nor look complete when it is not.
_LINES_MAX: Final = 65_536

# Time for the disk to take the last lines. A thread that needs longer dies with its process.
_CLOSE_S: Final = 1.0


class EvidenceFile:
    """Appends evidence to a file in its own thread. A killed process loses the last moments."""

    def __init__(self, path: Path, *, broker: str) -> None:
        """Open `path` for appending. Raise `InvalidConfig` if that is not possible."""
        self._broker = broker
        self._lines: queue.Queue[Evidence | None] = queue.Queue(maxsize=_LINES_MAX)
        # One thread writes each: `_dropped` the worker's, `_dropped_reported` the file's.
        self._dropped = 0
        self._dropped_reported = 0
        try:
            private_files.make(path)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise InvalidConfig(problems=(f"evidence: {error}",)) from error
        self._thread = threading.Thread(target=self._run, name="evidence", daemon=True)
        self._thread.start()

    def write(self, evidence: Evidence) -> None:
        """Queue one piece of evidence without blocking."""
        try:
            self._lines.put_nowait(evidence)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what is queued and close the file, in bounded time. Call it in a thread."""
        if self._thread.is_alive():
            with suppress(queue.Full):
                self._lines.put(None, timeout=_CLOSE_S)
            self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _logger.warning(
                "evidence is still being written when the broker ends",
                extra={"broker": self._broker},
            )
            return
        self._file.close()

    def _run(self) -> None:
        while True:
            batch = [self._lines.get()]
            while not self._lines.empty():
                batch.append(self._lines.get())
            lines = [self._line(evidence) for evidence in batch if evidence is not None]
            if self._dropped > self._dropped_reported:
                self._dropped_reported = self._dropped
                lines.append(self._dropped_line(self._dropped_reported))
            if lines and not self._write(b"".join(lines)):
                return
            if None in batch:
                return

    def _write(self, lines: bytes) -> bool:
        """Return whether all was written. A disk error ends the evidence, never the broker."""
        try:
            while lines:
                lines = lines[self._file.write(lines) :]
        except OSError as error:
            _logger.warning("evidence ends: %s", error, extra={"broker": self._broker})
            return False
        return True

    def _dropped_line(self, dropped: int) -> bytes:
        """Return a line with the number dropped so far, so that a checker knows of gaps."""
        _logger.warning("evidence was dropped", extra={"broker": self._broker, "dropped": dropped})
        return orjson.dumps(
            {"broker": self._broker, "dropped": dropped}, option=orjson.OPT_APPEND_NEWLINE
        )

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
