"""Keep the time of a log, and notice when an entry contradicts it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from equipoise.spark_jobs.rules.facts import Raw

TIME_MS_MAX: Final = 9_223_372_036_854
"""The last time, in the year 2262, that a pandas frame holds. A later time is from a damaged entry and is ignored."""

LEAP_MS_MIN: Final = 60_000
"""A shorter step ahead is a pause of the writers."""

LEAPS_MAX: Final = 8
"""Leaps to remember. A clock that is ahead may write with pauses, and each pause looks like a leap."""


@dataclass(slots=True, kw_only=True)
class LogTime:
    """The log's time, which never falls: the greatest time of all entries so far.

    * `behind_ms`: how much older the last entry is than the log's time.
    * `before_leaps_ms`: the log's times before its last leaps ahead, rising; empty once a leap is reported.
    """

    now_ms: int = 0
    behind_ms: int = 0
    before_leaps_ms: list[int] = field(default_factory=list)

    def advance(self, at_ms: int) -> list[Raw]:
        """Take the time of the next entry. Return the events that it shows: the time fell, or an earlier entry let it leap."""
        events: list[Raw] = []
        if self.now_ms < at_ms <= TIME_MS_MAX:
            if self.now_ms and at_ms - self.now_ms > LEAP_MS_MIN:
                self.before_leaps_ms = [*self.before_leaps_ms[1 - LEAPS_MAX :], self.now_ms]
            self.now_ms = at_ms
        elif at_ms < self.now_ms:
            events = self._fallen(at_ms)
        self.behind_ms = max(0, self.now_ms - at_ms)
        return events

    def _fallen(self, at_ms: int) -> list[Raw]:
        by_ms = self.now_ms - at_ms
        events: list[Raw] = [{"event": "time_fell", "by_ms": by_ms}]
        # A leap may be a night without writers. It was a wrong clock if the time is now nearer to the time before the leap.
        before_ms = next((before for before in reversed(self.before_leaps_ms) if -LEAP_MS_MIN < at_ms - before < by_ms), None)
        if before_ms is not None:
            self.before_leaps_ms = []
            events.append({"event": "time_leapt", "by_ms": self.now_ms - before_ms, "stands_ms": by_ms})
        return events
