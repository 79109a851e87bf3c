"""Check invariants 3 and 6 and section 1: one digest per offset, no trace of rejected records, and
errors that are final.
"""

from __future__ import annotations

from equipoise.channel.core.entries import DIGEST_MODULUS, BrokerChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import (
    ADMIN_WINDOW_OFFSETS,
    AnyRecord,
    Genesis,
    Joined,
    Unreadable,
)
from equipoise.channel.core.view import View
from tests.simulation.checkers.violation import InvariantViolated
from tests.simulation.host import Process


class Agreement:
    """Remembers the reference reader's digest at every offset."""

    def __init__(self) -> None:
        self._digests: dict[int, int] = {-1: View().digest()}

    def folded(self, folded: Folded, view: View) -> None:
        """Note the digest after a record."""
        self._digests[folded.offset] = view.digest()

    def read(self, who: str, view: View) -> None:
        """Check the digest of another reader."""
        expected = self._digests.get(view.offset)
        if view.digest() != expected:
            raise InvariantViolated(
                invariant="3 same offset, same digest",
                what=(
                    f"at offset {view.offset} {who} has digest {view.digest()}, the reference"
                    f" reader {expected}"
                ),
            )


class Beginnings:
    """Checks that a log has one genesis. Only a copied log has a second one; its snapshot then
    covers the first.
    """

    def __init__(self) -> None:
        self._genesis: int | None = None

    def folded(self, folded: Folded, view: View) -> None:
        """Check one record."""
        if not isinstance(folded.record, Genesis) or not folded.verdict.accepted:
            return
        if self._genesis is not None and self._genesis > view.base:
            raise InvariantViolated(
                invariant="section 7: a log begins once",
                what=(
                    f"the genesis at offset {folded.offset} is accepted, and the log had begun at"
                    f" {self._genesis}"
                ),
            )
        self._genesis = folded.offset


class Settlement:
    """Tracks the highest used sequence of each live incarnation by the rule alone, and compares."""

    def __init__(self) -> None:
        self._used: dict[int, int] = {}
        self._digest = View().digest()

    def folded(self, folded: Folded, view: View) -> None:
        """Check that settled attempts stay settled, and that a rejected record leaves no other
        trace.
        """
        record, verdict = folded.record, folded.verdict
        raised = self._use_up(folded, view)
        digest = view.digest()
        if not verdict.accepted:
            publisher = view.live.get(record.incarnation or 0)
            weight = 0 if publisher is None else publisher.sequence_weight
            if digest != (self._digest + raised * weight) % DIGEST_MODULUS:
                raise InvariantViolated(
                    invariant="6 rejections change nothing",
                    what=(
                        f"the rejected record at offset {folded.offset} ({verdict.reason}) changed"
                        " more than its publisher's sequence"
                    ),
                )
        self._digest = digest
        for change in verdict.changes:
            if isinstance(change, BrokerChanged):
                self._note(change)

    def _use_up(self, folded: Folded, view: View) -> int:
        """Note a sequence that was used. Return by how much it rose."""
        record = folded.record
        if isinstance(record, Genesis | Joined) or view.genesis is None:
            return 0
        if record.incarnation is None:
            if folded.verdict.accepted and not isinstance(record, Unreadable):
                _check_admin(record, folded.offset)
            return 0
        used, sequence = self._used.get(record.incarnation), record.sequence or 0
        if used is None:
            if folded.verdict.accepted:
                raise _settled(
                    f"the record at offset {folded.offset} of #{record.incarnation}, which is not"
                    " alive, is accepted"
                )
            return 0
        if sequence <= used:
            if folded.verdict.accepted:
                raise _settled(
                    f"attempt {sequence} of {record.publisher} is accepted at offset"
                    f" {folded.offset}, attempt {used} was read before"
                )
            return 0
        if folded.verdict.reason == "dead_publisher":
            return 0
        self._used[record.incarnation] = sequence
        return sequence - used

    def _note(self, change: BrokerChanged) -> None:
        if change.dead is not None:
            self._used.pop(change.dead, None)
        if change.after is not None and change.after.live:
            self._used.setdefault(change.after.incarnation, 0)


def _check_admin(record: AnyRecord, offset: int) -> None:
    if offset - (record.as_of or 0) > ADMIN_WINDOW_OFFSETS:
        raise _settled(
            f"a record of {record.publisher} made at offset {record.as_of} is accepted at offset"
            f" {offset}, when it has long died of age"
        )


def _settled(what: str) -> InvariantViolated:
    return InvariantViolated(invariant="section 1: a settled attempt stays settled", what=what)


class Answers:
    """Keeps each accepted attempt, and each that was answered with an error, by incarnation and
    sequence.
    """

    def __init__(self) -> None:
        self._accepted: dict[tuple[int, int], None] = {}
        self._disowned: dict[tuple[int, int], None] = {}

    def folded(self, folded: Folded) -> None:
        """Check that an accepted record was not answered with an error."""
        record = folded.record
        if (
            folded.verdict.accepted
            and record.incarnation is not None
            and record.sequence is not None
        ):
            attempt = record.incarnation, record.sequence
            self._accepted[attempt] = None
            if attempt in self._disowned:
                _lied(attempt)

    def stepped(self, process: Process) -> None:
        """Check that no request waits for an attempt of an incarnation whose end the process has
        read.
        """
        for ticket, served in process.served.items():
            if served[0] != process.agent.incarnation:
                raise InvariantViolated(
                    invariant="section 1: what a dead incarnation attempted is settled",
                    what=(
                        f"{process.host.name} has read the end of #{served[0]}, and has not"
                        f" answered request {ticket} of it"
                    ),
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
