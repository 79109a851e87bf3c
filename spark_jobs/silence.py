"""What is said while no batch of a stream ends: whether its log is there, which Spark does not tell.

May live here: a look at the log, and what follows from looks and batches. Spark waits without a word, for minutes, for a Kafka or a
file that is away; so the driver looks at the log itself. When it looks, and who prints, is `spark_jobs.progress`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from channel.errors import EquipoiseError
from channel.open_log import open_log

LOOK_MS: Final = 10_000
"""After how long without a batch the log is looked at, and how often from then on: it costs a connection."""

SILENCE_MS: Final = 30_000
"""After how long without a batch somebody is told although the log is there: brokers renew every few seconds, so it is never so quiet."""

REMIND_MS: Final = 60_000
"""How often it is said again that a log is away."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at a log found: its last offset, or None and the problem that kept it from answering."""

    end: int | None
    problem: str = ""


def look(url: str) -> Seen:
    """Ask the log at `url` where it ends. Takes as long as opening a log does: some 10 s for a Kafka that is away."""
    try:
        with closing(open_log(url, create=False)) as log:
            return Seen(log.end())
    except EquipoiseError as error:  # Whatever it is, it keeps nobody from waiting: the stream itself says when it cannot go on.
        return Seen(None, str(getattr(error, "problem", error)))


class Silence:
    """What is known of the log called `name` since the last batch. Times are ms of one clock that only rises."""

    def __init__(self, name: str, now_ms: int) -> None:
        """The stream starts now."""
        self._name = name
        self._batch_ms = self._quiet_ms = self._there_ms = self._looked_ms = now_ms
        self._has_batches = False
        self._end: int | None = None
        self._problem: str | None = None
        self._told_ms: int | None = None

    def batch(self, now_ms: int) -> Iterator[str]:
        """A batch has ended; what is to be said about that."""
        yield from self._there(now_ms)
        self._batch_ms = self._quiet_ms = now_ms
        self._has_batches, self._end, self._told_ms = True, None, None

    def wants_look(self, now_ms: int) -> bool:
        """Whether it is time to look at the log; who asks does it."""
        if min(now_ms - self._batch_ms, now_ms - self._looked_ms) < LOOK_MS:
            return False
        self._looked_ms = now_ms
        return True

    def seen(self, now_ms: int, seen: Seen, *, is_behind: bool) -> Iterator[str]:
        """A look has ended; what is to be said. `is_behind` is whether the log held more than the last batch took."""
        if seen.end is None:
            yield from self._away(now_ms, seen.problem)
            return
        yield from self._there(now_ms)
        if self._end is None:
            self._end = seen.end
        has_new = is_behind or seen.end > self._end
        if self._told_ms is None and now_ms - self._quiet_ms >= SILENCE_MS:
            self._told_ms = now_ms
            waited = f"no batch has ended for {(now_ms - self._quiet_ms) // 1_000} s"
            if not self._has_batches:
                yield f"{waited}: the first takes the longest, the more so where this machine is busy; waiting"
            elif has_new:
                yield f"{waited}: {self._name} answers, and this machine takes long over what is on it; waiting"
            else:
                yield f"{waited}: nothing new is on {self._name}; waiting for it"

    def away_ms(self, now_ms: int) -> int | None:
        """How long nothing has come from the log; None while it is there, as far as is known."""
        return None if self._problem is None else now_ms - self._there_ms

    def _away(self, now_ms: int, problem: str) -> Iterator[str]:
        if problem == self._problem and self._told_ms is not None and now_ms - self._told_ms < REMIND_MS:
            return
        self._problem, self._told_ms = problem, now_ms
        yield f"{self._name} has been away for {(now_ms - self._there_ms) // 1_000} s: {problem}; waiting for it"

    def _there(self, now_ms: int) -> Iterator[str]:
        if self._problem is not None:
            yield f"{self._name} is there again, after {(now_ms - self._there_ms) // 1_000} s"
            self._problem = self._told_ms = None
            self._quiet_ms = now_ms  # What was waited for until now has been told.
        self._there_ms = now_ms
