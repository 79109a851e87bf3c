"""Call all checkers, and count records and ownership changes for the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from equipoise.brokers.agent.effects import Effect
from equipoise.brokers.agent.events import Instant
from equipoise.channel.core.entries import BundleChanged
from equipoise.channel.core.errors import EquipoiseError
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import Reason
from equipoise.channel.core.view import View
from tests.simulation.checkers.agreement import (
    Agreement,
    Answers,
    Beginnings,
    Settlement,
)
from tests.simulation.checkers.coverage import Coverage, Tokens
from tests.simulation.checkers.membership import Leadership, Membership, Programs
from tests.simulation.checkers.ownership import Ownership
from tests.simulation.checkers.quarantine import Quarantines
from tests.simulation.checkers.transfers import (
    Handovers,
    Transfers,
    one_at_a_time,
)
from tests.simulation.host import Process


class Checkers:
    """Calls every checker. Raises `InvariantViolated` from the step or record that breaks an
    invariant.
    """

    def __init__(
        self, made_instance_ids: Mapping[str, Process], *, nobody_dies: bool, nobody_fences: bool
    ) -> None:
        self.ownership = Ownership()
        self.membership = Membership(
            made_instance_ids,
            passing=self.ownership.passing,
            nobody_dies=nobody_dies,
            nobody_fences=nobody_fences,
        )
        self.ownership_changes = 0
        self.rejected: dict[Reason, int] = {}
        self._coverage = Coverage()
        self._tokens = Tokens()
        self._agreement = Agreement()
        self._beginnings = Beginnings()
        self._answers = Answers()
        self._handovers = Handovers()
        self._settlement = Settlement()
        self._leadership = Leadership()
        self._transfers = Transfers()
        self._quarantines = Quarantines()
        self._programs = Programs()

    def folded(self, folded: Folded, view: View) -> None:
        """Check a record that was appended to the log."""
        self._count(folded)
        self._agreement.folded(folded, view)
        self._beginnings.folded(folded, view)
        self._settlement.folded(folded, view)
        self._answers.folded(folded)
        self._leadership.folded(folded, view)
        if folded.verdict.accepted:
            self._programs.folded(folded)
            self._quarantines.folded(folded, view)
        if folded.verdict.changes:
            self._coverage.folded(folded, view)
            self._tokens.folded(folded)
            self._handovers.folded(folded)
            self._transfers.folded(folded)
            self.membership.folded(folded, view)

    def stepped(self, process: Process, effects: Sequence[Effect], now: Instant) -> None:
        """Check a step of a broker. `now` is the reading of its clocks."""
        self._agreement.read(process.host.name, process.agent.view)
        one_at_a_time(process, effects)
        self._handovers.stepped(process, effects)
        self._leadership.stepped(process)
        self._answers.stepped(process)
        self._transfers.stepped(process, effects)
        self._programs.stepped(process, effects)
        self.ownership.stepped(process, effects, now)
        self.membership.stepped(process, effects, now)

    def disowned(self, incarnation: int, attempt: int) -> None:
        """Note that the request served by an attempt of this incarnation was answered with an
        error.
        """
        self._answers.disowned(incarnation, attempt)

    def stopped(self, process: Process, error: EquipoiseError | None) -> None:
        """Check a process that ends at its agent's request."""
        self.membership.stopped(process, error)

    def ended(self, process: Process) -> None:
        """Note that a broker's process has ended."""
        self.ownership.ended(process)

    def _count(self, folded: Folded) -> None:
        reason = folded.verdict.reason
        if reason is not None:
            self.rejected[reason] = self.rejected.get(reason, 0) + 1
            return
        for change in folded.verdict.changes:
            if (
                isinstance(change, BundleChanged)
                and change.before is not None
                and change.after is not None
            ):
                # A token that rises marks the beginning of another broker's ownership.
                self.ownership_changes += change.after.token != change.before.token
