"""Decide what to report while no batch of a stream ends.

Spark waits silently, for minutes, for a Kafka or a file that is unavailable. So the driver checks
the log itself. `spark_jobs.streams.progress` runs the checks and prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.errors import EquipoiseError, LogNotBegun, LogUnavailable
from equipoise.channel.log.open_log import open_log

LOOK_MS: Final = 10_000
"""Time without a batch before a check of the log, and the interval between checks. A check costs a
connection."""

SILENCE_MS: Final = 30_000
"""Time without a batch before a message although the log answers (brokers renew every few seconds),
and before one about a slow check."""

REMIND_MS: Final = 60_000
"""Interval of reminders that the log cannot be read. New problems do not shorten it: Kafka words
one outage in many ways."""

_ABSENT: Final = (LogUnavailable, LogNotBegun)


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a check: the problem (None if the log answers), and whether the log is away or
    unreadable.
    """

    problem: str | None = None
    is_away: bool = True


_NO_ANSWER: Final = Seen(f"it has not answered within {SILENCE_MS // 1_000} s")


def look(url: str) -> Seen:
    """Check whether the log at `url` answers. This takes as long as opening it: some 10 s for an
    unavailable Kafka.
    """
    try:
        with closing(open_log(url, create=False)) as log:
            log.end()
    except _ABSENT as error:
        return Seen(error.problem)
    except (EquipoiseError, OSError) as error:
        # Any other error: the stream itself reports when it cannot continue.
        return Seen(str(error), is_away=False)
    return Seen()


class Silence:
    """What is known of the log `name` since the last batch. Times are milliseconds of one monotonic
    clock.
    """

    def __init__(self, name: str, now_ms: int) -> None:
        """`now_ms` is the start of the stream."""
        self._name = name
        self._batch_ms = self._quiet_ms = self._there_ms = self._looked_ms = now_ms
        self._has_batches = False
        self._is_looking = False
        self._idle_ms: int | None = None
        self._outage: Seen | None = None
        self._outage_reported_ms = 0
        self._reported: str | None = None

    @property
    def missed_since_ms(self) -> int | None:
        """Since when nothing has come from a log that does not answer; None if it answers, as far
        as is known.
        """
        return None if self._outage is None else self._there_ms

    def batch(self, now_ms: int, *, began_ms: int) -> Iterator[str]:
        """Record the end of a batch and yield messages. It proves that the log was available when
        the batch began, not later.
        """
        if self._outage is None or began_ms > self._looked_ms:
            yield from self._there(began_ms, now_ms)
        self._batch_ms = self._quiet_ms = now_ms
        self._has_batches, self._idle_ms, self._reported = True, None, None

    def idle(self, now_ms: int) -> None:
        """Record that Spark found nothing new, which it reports every 10 s. No batch is running
        then.
        """
        self._idle_ms = now_ms

    def wants_look(self, now_ms: int) -> bool:
        """Return whether the caller should check the log now and pass the result to `seen`. One
        check runs at a time.
        """
        if self._is_looking or min(now_ms - self._batch_ms, now_ms - self._looked_ms) < LOOK_MS:
            return False
        self._is_looking, self._looked_ms = True, now_ms
        return True

    def seen(self, now_ms: int, seen: Seen) -> Iterator[str]:
        """Record the result of a check and yield messages."""
        self._is_looking = False
        if seen.problem is None:
            yield from self._there(now_ms, now_ms)
            yield from self._quiet(now_ms)
        elif self._looked_ms >= self._there_ms:
            # Else a batch has begun since the check did, and its result is outdated.
            yield from self._missed(now_ms, seen)

    def wait(self, now_ms: int) -> Iterator[str]:
        """Yield a message if a check takes too long."""
        if self._is_looking and now_ms - max(self._looked_ms, self._there_ms) >= SILENCE_MS:
            yield from self._missed(now_ms, _NO_ANSWER)

    def _missed(self, now_ms: int, outage: Seen) -> Iterator[str]:
        is_known = self._outage is not None
        self._outage = outage
        if is_known and now_ms - self._outage_reported_ms < REMIND_MS:
            return
        self._outage_reported_ms = now_ms
        what = "is unavailable" if outage.is_away else "cannot be read"
        missed_s = (now_ms - self._there_ms) // 1_000
        yield (
            f"{self._name} {what}, and nothing has come from it for {missed_s} s: {outage.problem};"
            " waiting"
        )

    def _there(self, at_ms: int, now_ms: int) -> Iterator[str]:
        """Record, at `now_ms`, that the log was available at `at_ms`."""
        if self._outage is not None:
            yield (
                f"{self._name} is available again; nothing came from it for"
                f" {(at_ms - self._there_ms) // 1_000} s"
            )
            self._outage = None
            self._quiet_ms = now_ms  # The wait until now has been reported.
        self._there_ms = max(self._there_ms, at_ms)

    def _quiet(self, now_ms: int) -> Iterator[str]:
        if now_ms - self._quiet_ms < SILENCE_MS:
            return
        if self._idle_ms is not None and now_ms - self._idle_ms < SILENCE_MS:
            why = f"{self._name} has no new entries; waiting"
        elif self._has_batches:
            why = f"{self._name} answers, but this machine is slow to process its entries; waiting"
        else:
            why = "the first batch takes longest, especially on a busy machine; waiting"
        if why != self._reported:
            self._reported = why
            yield f"no batch has ended for {(now_ms - self._batch_ms) // 1_000} s: {why}"
