"""Append one batch of queued attempts to a log, and give each attempt its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from equipoise.channel.core.errors import EquipoiseError, LogUnavailable
from equipoise.channel.core.log import Log
from equipoise.channel.log.append_queue import Appended, AppendOutcome, Attempt, InDoubt, NotAppended

APPEND_MS_MAX: Final = 500
"""How long an append, and with it tailing, waits for other writers.

Four busy writers delay one another by 50 ms, so after 500 ms one of them is stopped. A lease of 3 s leaves time to decide again.
"""

ATTEMPT_AGE_MS_MAX: Final = 2 * APPEND_MS_MAX
"""The greatest age of an attempt when its append begins: one append that times out and one slow read.

An older attempt dates from before an outage or a sleep of the machine. Its decision is out of date, so it is refused.
"""


class Settled(NamedTuple):
    """An attempt and its outcome."""

    attempt: Attempt
    outcome: AppendOutcome


def all_settled(attempts: Sequence[Attempt], outcome: AppendOutcome) -> Sequence[Settled]:
    """Give every attempt the same outcome."""
    return [Settled(attempt, outcome) for attempt in attempts]


def appended(log: Log, drawn: Sequence[Attempt], *, now_ns: int) -> Sequence[Settled]:
    """Append `drawn` as one batch, without attempts that are too old at `now_ns`. Raises only on a bug in the log's adapter."""
    oldest_ns = now_ns - ATTEMPT_AGE_MS_MAX * 1_000_000
    batch = [attempt for attempt in drawn if attempt.queued_ns >= oldest_ns]
    refused = all_settled([attempt for attempt in drawn if attempt.queued_ns < oldest_ns], NotAppended(error=_too_old(log)))
    return [*refused, *_appended(log, batch)] if batch else refused


def _appended(log: Log, batch: Sequence[Attempt]) -> Sequence[Settled]:
    try:
        offsets = log.append([attempt.data for attempt in batch], timeout_ms=APPEND_MS_MAX)
    except LogUnavailable as error:
        return all_settled(batch, InDoubt(error=error) if error.in_doubt else NotAppended(error=error))
    except EquipoiseError as error:
        return all_settled(batch, NotAppended(error=error))
    return [Settled(attempt, Appended(offset=offset)) for attempt, offset in zip(batch, offsets, strict=True)]


def _too_old(log: Log) -> LogUnavailable:
    return LogUnavailable(log=log.name, problem=f"the record waited for more than {ATTEMPT_AGE_MS_MAX} ms", in_doubt=False)
