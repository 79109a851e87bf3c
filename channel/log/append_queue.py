"""Queue records to append within bounds, append them in batches, and give each attempt its outcome.

Nothing here is thread-safe: a caller that shares a queue between threads holds a lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from equipoise.channel.core.errors import CallerError, EquipoiseError, LogUnavailable, Overloaded
from equipoise.channel.core.log import BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, Log, check_batch

APPENDS_QUEUED_MAX: Final = 2 * BATCH_ENTRIES_MAX
"""Attempts that one queue holds: one batch that is being appended, and one that waits."""

APPENDS_QUEUED_BYTES_MAX: Final = 2 * BATCH_BYTES_MAX
"""Bytes of attempts that one queue holds: two batches, as above.

In practice queues stay small: a broker writes renewals and moves, and its largest record (1 MiB)
creates a namespace.
"""

APPEND_MS_MAX: Final = 500
"""How long an append, and with it tailing, waits for other writers.

Four busy writers delay one another by 50 ms, so after 500 ms one of them is stopped. A lease of 3 s
leaves time to decide again.
"""

ATTEMPT_AGE_MS_MAX: Final = 2 * APPEND_MS_MAX
"""The greatest age of an attempt when its append begins: one append that times out and one slow
read.

An older attempt dates from before an outage or a sleep of the machine. Its decision is out of date,
so it is refused.
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


class Settled(NamedTuple):
    """An attempt and its outcome."""

    attempt: Attempt
    outcome: AppendOutcome


class AppendQueue:
    """The attempts that wait to be appended to `log`, oldest first."""

    def __init__(self, log: str) -> None:
        """Create an empty queue. `log` is the log's name, for messages."""
        self._log = log
        self._attempts: deque[Attempt] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._attempts)

    def refusal(self, data: bytes) -> EquipoiseError | None:
        """Return why a record cannot be queued (`CallerError` if it is too large, or `Overloaded`),
        or None.
        """
        try:
            check_batch(self._log, [data])
        except CallerError as error:
            return error
        if len(self._attempts) >= APPENDS_QUEUED_MAX:
            return Overloaded(what=f"the queue of appends to {self._log}", limit=APPENDS_QUEUED_MAX)
        if self._bytes + len(data) > APPENDS_QUEUED_BYTES_MAX:
            return Overloaded(
                what=f"the queue of bytes to append to {self._log}", limit=APPENDS_QUEUED_BYTES_MAX
            )
        return None

    def put(self, attempt: Attempt) -> None:
        """Add an attempt that `refusal` accepts."""
        self._attempts.append(attempt)
        self._bytes += len(attempt.data)

    def take_batch(self) -> Sequence[Attempt]:
        """Remove and return as many of the oldest attempts as one append may hold."""
        batch: list[Attempt] = []
        batch_bytes = 0
        while (
            self._attempts
            and len(batch) < BATCH_ENTRIES_MAX
            and batch_bytes + len(self._attempts[0].data) <= BATCH_BYTES_MAX
        ):
            batch.append(self._attempts.popleft())
            batch_bytes += len(batch[-1].data)
        self._bytes -= batch_bytes
        return batch

    def drain(self) -> Sequence[Attempt]:
        """Remove and return all attempts."""
        drained = tuple(self._attempts)
        self._attempts.clear()
        self._bytes = 0
        return drained


def all_settled(attempts: Sequence[Attempt], outcome: AppendOutcome) -> Sequence[Settled]:
    """Give every attempt the same outcome."""
    return [Settled(attempt, outcome) for attempt in attempts]


def append_batch(log: Log, attempts: Sequence[Attempt], *, now_ns: int) -> Sequence[Settled]:
    """Append `attempts` as one batch, without those that are too old at `now_ns`. Raises only on a
    bug in the log's adapter.
    """
    oldest_ns = now_ns - ATTEMPT_AGE_MS_MAX * 1_000_000
    batch = [attempt for attempt in attempts if attempt.queued_ns >= oldest_ns]
    too_old = LogUnavailable(
        log=log.name,
        problem=f"the record waited for more than {ATTEMPT_AGE_MS_MAX} ms",
        in_doubt=False,
    )
    refused = all_settled(
        [attempt for attempt in attempts if attempt.queued_ns < oldest_ns],
        NotAppended(error=too_old),
    )
    if not batch:
        return refused
    try:
        offsets = log.append([attempt.data for attempt in batch], timeout_ms=APPEND_MS_MAX)
    except LogUnavailable as error:
        return [
            *refused,
            *all_settled(
                batch, InDoubt(error=error) if error.in_doubt else NotAppended(error=error)
            ),
        ]
    except EquipoiseError as error:
        return [*refused, *all_settled(batch, NotAppended(error=error))]
    return [
        *refused,
        *(
            Settled(attempt, Appended(offset=offset))
            for attempt, offset in zip(batch, offsets, strict=True)
        ),
    ]
