"""Section 1: answers to requests are true, and come at once. An error means that nothing was done, and nothing will be.

Checks the answers to requests against the truth of the log.
"""

from __future__ import annotations

from equipoise.brokers.testing.simulation.checkers.violation import InvariantViolated
from equipoise.brokers.testing.simulation.host import Process
from equipoise.channel.core.reader import Folded


class Answers:
    """Keeps each accepted attempt, and each that its broker has disowned, by incarnation and sequence."""

    def __init__(self) -> None:
        self._accepted: dict[tuple[int, int], None] = {}
        self._disowned: dict[tuple[int, int], None] = {}

    def folded(self, folded: Folded) -> None:
        """An accepted record must not be one of which somebody was told that nothing will come of it."""
        record = folded.record
        if folded.verdict.accepted and record.incarnation is not None and record.sequence is not None:
            attempt = record.incarnation, record.sequence
            self._accepted[attempt] = None
            if attempt in self._disowned:
                _lied(attempt)

    def stepped(self, process: Process) -> None:
        """Check that no request waits for an attempt of an incarnation that the process has read the end of."""
        for ticket, served in process.asked.items():
            if served is not None and served[0] != process.agent.incarnation:
                raise InvariantViolated(
                    invariant="section 1: what a dead incarnation attempted is settled",
                    what=f"{process.host.name} has read the end of #{served[0]}, and has not answered request {ticket} of it",
                )

    def disowned(self, incarnation: int, sequence: int) -> None:
        """A broker has answered the request that this attempt served with an error."""
        attempt = incarnation, sequence
        self._disowned[attempt] = None
        if attempt in self._accepted:
            _lied(attempt)


def _lied(attempt: tuple[int, int]) -> None:
    raise InvariantViolated(
        invariant="section 1: after an error nothing was done",
        what=f"attempt {attempt[1]} of #{attempt[0]} was answered with an error, and is accepted",
    )
