"""Queue the records to append, one bounded queue per writer, and draw fair batches from the queues.

Nothing here is thread-safe: callers that share queues between threads hold a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.errors import AppendTooLarge, EquipoiseError, LogUnavailable, Overloaded
from equipoise.channel.core.log import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, check_batch

APPENDS_QUEUED_MAX: Final = 2 * BATCH_ENTRIES_MAX
"""Attempts that one queue holds: one batch that is being appended, and one that waits.

The bound applies per queue, so that a busy writer does not cause refusals for others.
"""

APPENDS_QUEUED_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX
"""Bytes of attempts that one queue holds: two batches, as above.

Twenty-five full queues would hold 400 MiB. In practice queues stay small: a broker writes renewals and moves, and its largest record (1
MiB) creates a namespace.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The record is on the log at the physical `offset`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAppended:
    """The record is not on the log, and this attempt will never put it there."""

    error: EquipoiseError


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """The record may be on the log or may still appear. Only reading on shows which."""

    error: LogUnavailable


AppendOutcome = Appended | NotAppended | InDoubt
Done = Callable[[AppendOutcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One record to append.

    * `done`: called with the outcome; None if nobody waits for it.
    * `queued_ns`: when the record was queued.
    """

    data: bytes
    done: Done | None
    queued_ns: int

    def settle(self, outcome: AppendOutcome) -> None:
        """Report the outcome to the caller."""
        if self.done is not None:
            self.done(outcome)


class AppendQueue:
    """The attempts of one writer to `log`, oldest first."""

    def __init__(self, log: str) -> None:
        """Create an empty queue. `log` is the log's name, for messages."""
        self._log = log
        self._attempts: deque[Attempt] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._attempts)

    def refusal(self, data: bytes) -> EquipoiseError | None:
        """Return why a record cannot be queued (`AppendTooLarge` or `Overloaded`), or None."""
        try:
            check_batch(self._log, [data])
        except AppendTooLarge as error:
            return error
        if len(self._attempts) >= APPENDS_QUEUED_MAX:
            return Overloaded(what=f"the queue of appends to {self._log}", limit=APPENDS_QUEUED_MAX)
        if self._bytes + len(data) > APPENDS_QUEUED_BYTES_MAX:
            return Overloaded(what=f"the queue of bytes to append to {self._log}", limit=APPENDS_QUEUED_BYTES_MAX)
        return None

    def put(self, attempt: Attempt) -> None:
        """Add an attempt that `refusal` accepts."""
        self._attempts.append(attempt)
        self._bytes += len(attempt.data)

    def take(self) -> Attempt:
        """Remove and return the oldest attempt."""
        attempt = self._attempts.popleft()
        self._bytes -= len(attempt.data)
        return attempt

    @property
    def oldest_bytes(self) -> int:
        """The size of the oldest attempt."""
        return len(self._attempts[0].data)

    def drain(self) -> Sequence[Attempt]:
        """Remove and return all attempts."""
        drained = tuple(self._attempts)
        self._attempts.clear()
        self._bytes = 0
        return drained


def next_batch(waiting: deque[AppendQueue]) -> list[Attempt]:
    """Take as many attempts as one append may hold from the `waiting` queues, which are not empty.

    The queues take turns, one attempt each, so that a renewal is in the next batch however much another writer appends. The attempts of one
    queue keep their order. A queue that becomes empty leaves `waiting`.
    """
    batch: list[Attempt] = []
    batch_bytes = 0
    while waiting and len(batch) < BATCH_ENTRIES_MAX and batch_bytes + waiting[0].oldest_bytes <= BATCH_BYTES_MAX:
        queue = waiting.popleft()
        attempt = queue.take()
        batch.append(attempt)
        batch_bytes += len(attempt.data)
        if queue:
            waiting.append(queue)
    return batch
