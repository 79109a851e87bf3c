"""One append of a log's thread: what was drawn from the queues becomes one batch, and each attempt gets its outcome.

May live here: how long an append is waited for, which attempts are too old for one, and what the log's answer says of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from equipoise.channel.core.errors import EquipoiseError, LogUnavailable
from equipoise.channel.core.log import Log
from equipoise.channel.log.append_queue import Appended, AppendOutcome, Attempt, InDoubt, NotAppended

APPEND_MS_MAX: Final = 500
"""How long an append waits for other writers, and tailing with it. Four busy writers keep one another for 50 ms, so after
500 ms one of them is stopped; and of a lease of 3 s enough is left to decide anew."""

ATTEMPT_AGE_MS_MAX: Final = 2 * APPEND_MS_MAX
"""How old an attempt may be when its append begins: it waits for one append that times out, and one slow read. An older one
was overtaken by an outage, or by the machine's sleep, and must not speak as if it were decided now."""


class Settled(NamedTuple):
    """An attempt, and what became of it."""

    attempt: Attempt
    outcome: AppendOutcome


def all_settled(attempts: Sequence[Attempt], outcome: AppendOutcome) -> Sequence[Settled]:
    """The same outcome for each."""
    return [Settled(attempt, outcome) for attempt in attempts]


def appended(log: Log, drawn: Sequence[Attempt], *, now_ns: int) -> Sequence[Settled]:
    """Append what was drawn as one batch, but for what is too old at `now_ns`. Raises what only a fault of the log's adapter raises."""
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
