"""What is said while no batch of a stream ends: whether its log is there, which Spark does not tell.

May live here: a look at the log, and what follows from looks and batches. Spark waits without a word, for minutes, for a Kafka or a
file that is away; so the driver looks at the log itself. When it looks, and who prints, is `spark_jobs.streams.progress`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from equipoise.channel.core.errors import EquipoiseError, LogNotBegun, LogUnavailable
from equipoise.channel.log.open_log import open_log

LOOK_MS: Final = 10_000
"""After how long without a batch the log is looked at, and how often at most from then on: it costs a connection."""

SILENCE_MS: Final = 30_000
"""After how long without a batch somebody is told although the log is there: brokers renew every few seconds, so it is never so quiet.
Also how long a look may take before that is told."""

REMIND_MS: Final = 60_000
"""How often it is said again that nothing can be read. Not each new problem: Kafka's client spells one outage in many ways."""

_ABSENT: Final = (LogUnavailable, LogNotBegun)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at a log found: the problem, None where it answered; and whether it is away, or there and cannot be read."""

    problem: str | None = None
    is_away: bool = True


_NO_ANSWER: Final = Seen(f"it has not answered within {SILENCE_MS // 1_000} s")


def look(url: str) -> Seen:
    """Ask the log at `url` whether it is there. Takes as long as opening a log does: some 10 s for a Kafka that is away."""
    try:
        with closing(open_log(url, create=False)) as log:
            log.end()
    except _ABSENT as error:
        return Seen(error.problem)
    except (EquipoiseError, OSError) as error:  # Whatever it is: the stream itself says when it cannot go on.
        return Seen(str(error), is_away=False)
    return Seen()


class Silence:
    """What is known of the log called `name` since the last batch. Times are ms of one clock that only rises."""

    def __init__(self, name: str, now_ms: int) -> None:
        """The stream starts now."""
        self._name = name
        self._batch_ms = self._quiet_ms = self._there_ms = self._looked_ms = now_ms
        self._has_batches = False
        self._is_looking = False
        self._idle_ms: int | None = None
        self._lack: Seen | None = None
        self._lack_told_ms = 0
        self._told: str | None = None

    @property
    def missed_since_ms(self) -> int | None:
        """Since when nothing has come from a log that does not answer; None while it does, as far as is known."""
        return None if self._lack is None else self._there_ms

    def batch(self, now_ms: int, *, began_ms: int) -> Iterator[str]:
        """A batch has ended; what is to be said about that. That the log was there is known of its beginning, and of nothing later."""
        if self._lack is None or began_ms > self._looked_ms:
            yield from self._there(began_ms, now_ms)
        self._batch_ms = self._quiet_ms = now_ms
        self._has_batches, self._idle_ms, self._told = True, None, None

    def idle(self, now_ms: int) -> None:
        """Spark has found nothing new in its sources, which it says every 10 s: it does not work on a batch."""
        self._idle_ms = now_ms

    def wants_look(self, now_ms: int) -> bool:
        """Whether it is time to look at the log; who asks does it, and says with `seen` what came of it. One look at a time."""
        if self._is_looking or min(now_ms - self._batch_ms, now_ms - self._looked_ms) < LOOK_MS:
            return False
        self._is_looking, self._looked_ms = True, now_ms
        return True

    def seen(self, now_ms: int, seen: Seen) -> Iterator[str]:
        """The look has ended; what is to be said."""
        self._is_looking = False
        if seen.problem is None:
            yield from self._there(now_ms, now_ms)
            yield from self._quiet(now_ms)
        elif self._looked_ms >= self._there_ms:  # Else a batch has begun since the look did, and what it found is past.
            yield from self._missed(now_ms, seen)

    def wait(self, now_ms: int) -> Iterator[str]:
        """Time has passed; what is to be said about a look that takes too long."""
        if self._is_looking and now_ms - max(self._looked_ms, self._there_ms) >= SILENCE_MS:
            yield from self._missed(now_ms, _NO_ANSWER)

    def _missed(self, now_ms: int, lack: Seen) -> Iterator[str]:
        is_known = self._lack is not None
        self._lack = lack
        if is_known and now_ms - self._lack_told_ms < REMIND_MS:
            return
        self._lack_told_ms = now_ms
        what = "is away" if lack.is_away else "cannot be read"
        missed_s = (now_ms - self._there_ms) // 1_000
        yield f"{self._name} {what}, and nothing has come from it for {missed_s} s: {lack.problem}; waiting for it"

    def _there(self, at_ms: int, now_ms: int) -> Iterator[str]:
        """It was there at `at_ms`, which is known since `now_ms`."""
        if self._lack is not None:
            yield f"{self._name} is there again; nothing came from it for {(at_ms - self._there_ms) // 1_000} s"
            self._lack = None
            self._quiet_ms = now_ms  # What was waited for until now has been told.
        self._there_ms = max(self._there_ms, at_ms)

    def _quiet(self, now_ms: int) -> Iterator[str]:
        if now_ms - self._quiet_ms < SILENCE_MS:
            return
        if self._idle_ms is not None and now_ms - self._idle_ms < SILENCE_MS:
            why = f"nothing new is on {self._name}; waiting for it"
        elif self._has_batches:
            why = f"{self._name} answers, and this machine takes long over what is on it; waiting"
        else:
            why = "the first takes the longest, the more so where this machine is busy; waiting"
        if why != self._told:
            self._told = why
            yield f"no batch has ended for {(now_ms - self._batch_ms) // 1_000} s: {why}"
