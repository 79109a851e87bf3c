"""Write the story of a run: what happened, when, to which part, and why, in readable lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import QUIET_REASONS, Renewed
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import Names, describe
from tests.simulation.clock import MICROSECONDS_PER_SECOND, Schedule

# Lines kept for the report of a violation: enough to show a lease and a transfer.
TAIL_LINES_MAX: Final = 400

Line = tuple[int, str, str, tuple[object, ...]]


class Story:
    """Collects lines, and passes each to `on_line` if given. Lines are formatted only when they are
    read.
    """

    def __init__(self, schedule: Schedule, on_line: Callable[[str], None] | None) -> None:
        self._schedule = schedule
        self._on_line = on_line
        self._tail: deque[Line] = deque(maxlen=TAIL_LINES_MAX)
        self._names = Names(View())

    def say(self, who: str, what: str, *details: object) -> None:
        """Add a line. `details` fill the placeholders of `what`."""
        line = (self._schedule.now_us, who, what, details)
        self._tail.append(line)
        if self._on_line is not None:
            self._on_line(_formatted(line))

    def folded(self, folded: Folded, view: View) -> None:
        """Add a line for a record that was just folded into `view`. Accepted renewals and quiet
        rejections get none.
        """
        record, verdict = folded.record, folded.verdict
        self._names.learn(folded)
        if (
            verdict.reason in QUIET_REASONS
            if verdict.reason is not None
            else isinstance(record, Renewed)
        ):
            return
        described = _Described(folded, view, self._names)
        # The view of this moment explains a rejection. An accepted record needs only its changes.
        self.say(
            record.publisher or "?",
            "{}  {}",
            folded.offset,
            described if verdict.accepted else str(described),
        )

    def tail(self) -> tuple[str, ...]:
        """Return the last lines."""
        return tuple(_formatted(line) for line in self._tail)


def _formatted(line: Line) -> str:
    at_us, who, what, details = line
    return (
        f"{at_us // MICROSECONDS_PER_SECOND:>5}.{at_us % MICROSECONDS_PER_SECOND:06}  {who:<12}"
        f" {what.format(*details)}"
    )


class _Described:
    """A record, described on demand: most lines are never read."""

    def __init__(self, folded: Folded, view: View, names: Names) -> None:
        self._folded = folded
        self._view = view
        self._names = names

    def __str__(self) -> str:
        """Return the record on one line."""
        text = "; ".join(line.strip() for line in describe(self._folded, self._view, self._names))
        # The first line names the reason already.
        return text.replace(f"; {self._folded.verdict.reason}: ", ": ")
