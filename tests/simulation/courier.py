"""Carry records to the simulated log: late, twice, or not at all.

Only faults of appending belong here. Reading has its own in `tests.simulation.host`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from equipoise.brokers.testing.agent_host import Failed, Failure
from equipoise.channel.core.errors import LogStorageFull, LogUnavailable
from tests.simulation.clock import MICROSECONDS_PER_MS
from tests.simulation.faults import NEVER
from tests.simulation.faulty_log import FaultyLog
from tests.simulation.parts import Parts

DOWN: Final = b'"status":"down"'
"""The status of a declaration of death, as encoded on the log. Quotation marks in other texts of
the record are escaped."""

# After this long a log client gives up an unanswered append and reports it.
_GIVE_UP_US: Final = 400 * MICROSECONDS_PER_MS
_NO_ANSWER: Final = LogUnavailable(log="simulated", problem="it gave no answer")


class Link:
    """One author's connection to the log. It is cut until `up_at_us`. Records that are not late
    arrive in order.
    """

    def __init__(self) -> None:
        self.up_at_us = 0
        self.last_arrival_us = 0

    def cut_until(self, up_at_us: int) -> None:
        """Cut the link, or extend the cut."""
        self.up_at_us = max(self.up_at_us, up_at_us)


class Courier:
    """Carries the records of all authors to the log."""

    def __init__(self, parts: Parts, log: FaultyLog) -> None:
        self._parts = parts
        self._log = log

    def send(self, data: bytes, link: Link, failed: Failed | None) -> None:
        """Send one record. Call `failed` if the author notices a failure, certain or in doubt."""
        parts, faults = self._parts, self._parts.faults
        chance, schedule = parts.chance, parts.schedule
        if chance.happens(faults.lost_permille):
            return
        if chance.happens(faults.refused_permille):
            self._fail(
                chance.microseconds(faults.append_ms), failed, LogStorageFull(log="simulated")
            )
            return
        if chance.happens(faults.doubtful_permille):
            self._fail(_GIVE_UP_US, failed, _NO_ANSWER)
        if chance.happens(faults.twice_permille):
            schedule.after(
                chance.long_within(faults.late_ms) * MICROSECONDS_PER_MS,
                lambda: self._arrive(data, link, None),
            )
        late_permille = faults.late_death_permille if DOWN in data else NEVER
        if chance.happens(max(late_permille, faults.late_permille)):
            arrival_us = schedule.now_us + chance.long_within(faults.late_ms) * MICROSECONDS_PER_MS
        else:
            arrival_us = max(
                link.last_arrival_us, schedule.now_us + chance.microseconds(faults.append_ms)
            )
            link.last_arrival_us = arrival_us
        schedule.at(arrival_us, lambda: self._arrive(data, link, failed))

    def _arrive(self, data: bytes, link: Link, failed: Failed | None) -> None:
        """Deliver a record. On a cut link it fails, waits for the link, or is lost silently."""
        schedule = self._parts.schedule
        if schedule.now_us >= link.up_at_us:
            self._log.append(data)
            return
        fate = self._parts.chance.one_of(("fails", "fails", "is kept", "is gone"))
        if fate == "fails":
            # The author cannot know the result, and a second copy may be on its way.
            self._fail(_GIVE_UP_US, failed, _NO_ANSWER)
        elif fate == "is kept":
            schedule.at(link.up_at_us, lambda: self._arrive(data, link, failed))

    def _fail(self, after_us: int, failed: Failed | None, error: Failure) -> None:
        if failed is not None:
            self._parts.schedule.after(after_us, partial(failed, error))
