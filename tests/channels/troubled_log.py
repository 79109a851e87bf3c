"""A log in memory that has whatever trouble a test wants, and tells the test what its user does."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from equipoise.channel.core.errors import EquipoiseError, LogUnavailable
from equipoise.channel.core.log import Entry
from equipoise.channel.log.memory_log import MemoryLog

DEADLINE_SECONDS = 30.0


class TroubledLog(MemoryLog):
    """Switches: `read_error` and `append_error` are raised while they are set; a batch whose error
    leaves doubt may be kept.

    While `is_deaf` is set, a wait notices no entries, only a wake, so its reader lags behind.
    `gate` holds appends up while it is cleared. `batches` are the batches that were appended or
    refused, `closed` is set by `close`, and `failures` counts what `read` and `wait` raised.
    """

    def __init__(self, *, name: str) -> None:
        super().__init__(name=name)
        self.read_error: EquipoiseError | None = None
        self.append_error: Exception | None = None
        self.keeps_what_is_in_doubt = True
        self.is_deaf = False
        self.gate = threading.Event()
        self.gate.set()
        self.at_gate = threading.Event()
        self.batches: list[list[bytes]] = []
        self.closed = threading.Event()
        self.failures = 0

    def append(self, batch: Sequence[bytes], *, timeout_ms: int) -> Sequence[int]:
        self.batches.append(list(batch))
        self.at_gate.set()
        assert self.gate.wait(DEADLINE_SECONDS)
        error = self.append_error
        if error is None:
            return super().append(batch, timeout_ms=timeout_ms)
        if isinstance(error, LogUnavailable) and error.in_doubt and self.keeps_what_is_in_doubt:
            super().append(batch, timeout_ms=timeout_ms)
        raise error

    def read(self, position: int, *, limit: int) -> Sequence[Entry]:
        self._fail_if_asked_to()
        return super().read(position, limit=limit)

    def wait(self, position: int, *, timeout_ms: int) -> bool:
        self._fail_if_asked_to()
        if not self.is_deaf:
            return super().wait(position, timeout_ms=timeout_ms)
        with self._storage.changed:
            self._storage.changed.wait_for(lambda: self._woken, timeout_ms / 1_000)
            self._woken = False
        return False

    def end(self) -> int:
        self._fail_if_asked_to()
        return super().end()

    def close(self) -> None:
        super().close()
        self.closed.set()

    def _fail_if_asked_to(self) -> None:
        if self.read_error is not None:
            self.failures += 1
            raise self.read_error
