"""What waits to be appended: one bounded queue for each who appends, and the next batch, for which they take turns.

May live here: attempts and their outcomes, `AppendQueue` with its bounds, and how a batch is drawn from several of them. Who
shares them between threads holds a lock; nothing here knows of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.errors import AppendTooLarge, EquipoiseError, LogUnavailable, Overloaded
from equipoise.channel.core.log import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, check_batch

APPENDS_QUEUED_MAX: Final = 2 * BATCH_ENTRIES_MAX
"""Attempts of one queue that wait for the log: what the next batch takes, and as many again while that one is under way.
Each queue has this bound for itself, so that nobody is refused because another appends much."""

APPENDS_QUEUED_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX
"""Bytes of the attempts that wait in one queue: as above. Twenty-five full queues hold 400 MiB, and nobody fills them: a
broker's records are its renewals and its moves, and the greatest one, of 1 MiB, creates a namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The record stands on the log at `offset`, a physical one."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAppended:
    """The record is not on the log, and never will be by this attempt."""

    error: EquipoiseError


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """The record may be on the log, or appear there later; only reading on tells."""

    error: LogUnavailable


AppendOutcome = Appended | NotAppended | InDoubt
Done = Callable[[AppendOutcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One record to append, since when it waits, and who is told what became of it; None if nobody asks."""

    data: bytes
    done: Done | None
    queued_ns: int

    def settle(self, outcome: AppendOutcome) -> None:
        """Tell who asked."""
        if self.done is not None:
            self.done(outcome)


class AppendQueue:
    """The attempts of one who appends to `log`, oldest first."""

    def __init__(self, log: str) -> None:
        """`log` is the log's name, for messages."""
        self._log = log
        self._attempts: deque[Attempt] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._attempts)

    def refusal(self, data: bytes) -> EquipoiseError | None:
        """Why a record cannot be queued: `AppendTooLarge`, or `Overloaded`."""
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
        """Add one that is not refused."""
        self._attempts.append(attempt)
        self._bytes += len(attempt.data)

    def take(self) -> Attempt:
        """Remove the oldest."""
        attempt = self._attempts.popleft()
        self._bytes -= len(attempt.data)
        return attempt

    @property
    def oldest_bytes(self) -> int:
        """The size of the oldest."""
        return len(self._attempts[0].data)

    def drain(self) -> Sequence[Attempt]:
        """Remove all."""
        drained = tuple(self._attempts)
        self._attempts.clear()
        self._bytes = 0
        return drained


def next_batch(waiting: deque[AppendQueue]) -> list[Attempt]:
    """Take as much as one append may hold from the queues that wait, none of them empty; an empty one waits no longer.

    Each gives one attempt and goes to the end of the row, so that a renewal is in the next batch however much another
    appends. Each one's attempts stay in their order.
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
