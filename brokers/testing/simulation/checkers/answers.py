"""Check section 1: an error in answer to a request means that nothing was done and nothing will be, and it comes at once."""

from __future__ import annotations

from equipoise.brokers.testing.simulation.checkers.violation import InvariantViolated
from equipoise.brokers.testing.simulation.host import Process
from equipoise.channel.core.reader import Folded


class Answers:
    """Keeps each accepted attempt, and each that was answered with an error, by incarnation and sequence."""

    def __init__(self) -> None:
        self._accepted: dict[tuple[int, int], None] = {}
        self._disowned: dict[tuple[int, int], None] = {}

    def folded(self, folded: Folded) -> None:
        """Check that an accepted record was not answered with an error."""
        record = folded.record
        if folded.verdict.accepted and record.incarnation is not None and record.sequence is not None:
            attempt = record.incarnation, record.sequence
            self._accepted[attempt] = None
            if attempt in self._disowned:
                _lied(attempt)

    def stepped(self, process: Process) -> None:
        """Check that no request waits for an attempt of an incarnation whose end the process has read."""
        for ticket, served in process.served.items():
            if served[0] != process.agent.incarnation:
                raise InvariantViolated(
                    invariant="section 1: what a dead incarnation attempted is settled",
                    what=f"{process.host.name} has read the end of #{served[0]}, and has not answered request {ticket} of it",
                )

    def disowned(self, incarnation: int, sequence: int) -> None:
        """Note that a broker has answered the request served by this attempt with an error."""
        attempt = incarnation, sequence
        self._disowned[attempt] = None
        if attempt in self._accepted:
            _lied(attempt)


def _lied(attempt: tuple[int, int]) -> None:
    raise InvariantViolated(
        invariant="section 1: after an error nothing was done",
        what=f"attempt {attempt[1]} of #{attempt[0]} was answered with an error, and is accepted",
    )
