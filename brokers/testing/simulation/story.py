"""Write the story of a run: what happened, when, to which part, and why, in readable lines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from equipoise.brokers.testing.simulation.clock import MICROSECONDS_PER_SECOND, Schedule
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import (
    QUIET_REASONS,
    AnyRecord,
    BrokerRecord,
    BundleTransition,
    Genesis,
    Joined,
    LevelRecord,
    Merge,
    NamespaceRecord,
    PolicyRecord,
    Renewed,
    Split,
    Unreadable,
)

# Lines kept for the report of a violation: enough to show a lease and a transfer.
TAIL_LINES_MAX: Final = 400

Line = tuple[int, str, str, tuple[object, ...]]


class Story:
    """Collects lines, and passes each to `on_line` if given. Lines are formatted only when they are read."""

    def __init__(self, schedule: Schedule, on_line: Callable[[str], None] | None) -> None:
        self._schedule = schedule
        self._on_line = on_line
        self._tail: deque[Line] = deque(maxlen=TAIL_LINES_MAX)
        self._names: dict[int, str] = {}

    def say(self, who: str, what: str, *details: object) -> None:
        """Add a line. `details` fill the placeholders of `what`."""
        line = (self._schedule.now_us, who, what, details)
        self._tail.append(line)
        if self._on_line is not None:
            self._on_line(_formatted(line))

    def folded(self, folded: Folded) -> None:
        """Add a line for a record and its verdict. Accepted renewals get none."""
        record, verdict = folded.record, folded.verdict
        if isinstance(record, Joined) and verdict.accepted:
            self._names[folded.offset] = record.key
        if verdict.accepted and not isinstance(record, Renewed):
            self.say(record.publisher or "?", "{}  offset {}", _Proposal(record, self._names), folded.offset)
        elif verdict.reason is not None and verdict.reason not in QUIET_REASONS:
            problem = f" ({verdict.problem})" if verdict.problem else ""
            self.say(
                record.publisher or "?",
                "{}  offset {}  REJECTED {}{}",
                _Proposal(record, self._names),
                folded.offset,
                verdict.reason,
                problem,
            )

    def tail(self) -> tuple[str, ...]:
        """Return the last lines."""
        return tuple(_formatted(line) for line in self._tail)


def _formatted(line: Line) -> str:
    at_us, who, what, details = line
    return f"{at_us // MICROSECONDS_PER_SECOND:>5}.{at_us % MICROSECONDS_PER_SECOND:06}  {who:<12} {what.format(*details)}"


class _Proposal:
    """A record, formatted on demand: most lines are never read."""

    def __init__(self, record: AnyRecord | Unreadable, names: dict[int, str]) -> None:
        self._record = record
        self._names = names

    def __str__(self) -> str:
        """Return what the record proposes."""
        record = self._record
        if isinstance(record, Unreadable):
            return f"unreadable: {record.problem}"
        reason = getattr(record, "reason", None)
        return f"{self._proposal(record)}{f' because {reason}' if reason else ''}"

    def _proposal(self, record: AnyRecord) -> str:
        match record:
            case BundleTransition():
                source = "" if record.source is None else f" from {self._name(record.source)}"
                owner = "" if record.owner is None else f" {self._name(record.owner)}"
                return f"{record.key} is {record.state}{owner}{source}"
            case Split():
                return f"{record.key} is split at {', '.join(f'0x{cut:08x}' for cut in record.positions)}"
            case Merge():
                return f"{record.key} is merged with {record.right}"
            case NamespaceRecord():
                return f"{record.key} is {record.status}"
            case Joined():
                how = " replacing its predecessor" if record.replaces else " after silence" if record.after_silence else ""
                return f"{record.key} joins{how} with lease {record.lease_ms} ms"
            case Renewed():
                return f"{record.key} renews"
            case BrokerRecord():
                return f"{record.key} is {record.status}"
            case Genesis():
                return f"the channel of {record.cluster} begins"
            case PolicyRecord():
                return f"policy {record.key} is {record.status}"
            case LevelRecord():
                return f"level {record.raises_to}"

    def _name(self, incarnation: int) -> str:
        return f"{self._names.get(incarnation, 'nobody')}#{incarnation}"
