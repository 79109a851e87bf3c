"""Check section 5: the oldest live broker that does not drain leads; if all drain, the oldest leads."""

from __future__ import annotations

from equipoise.brokers.testing.simulation.checkers.violation import InvariantViolated
from equipoise.brokers.testing.simulation.host import Process
from equipoise.channel.core.entries import BrokerChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View


class Leadership:
    """Keeps the status of each live incarnation, and the resulting leader at each offset."""

    def __init__(self) -> None:
        self._statuses: dict[int, str] = {}
        self._leaders: dict[int, int | None] = {View().offset: None}

    def folded(self, folded: Folded, view: View) -> None:
        """Note the leader after a record, and check that the view names the same."""
        for change in folded.verdict.changes:
            if isinstance(change, BrokerChanged):
                self._note(change)
        up = [incarnation for incarnation, status in self._statuses.items() if status == "up"]
        leader = self._leaders[folded.offset] = min(up or self._statuses, default=None)
        named = view.leader()
        if leader != (None if named is None else named.incarnation):
            raise _wrong(f"at offset {folded.offset} the view names {named and named.incarnation} as the leader, which is #{leader}")

    def stepped(self, process: Process) -> None:
        """Check that a broker acts as the leader if and only if it leads at the offset that it has read."""
        agent = process.agent
        leader = self._leaders[agent.view.offset]
        if agent.leads != (leader is not None and leader == agent.incarnation):
            acts = "acts as the leader" if agent.leads else "does not act as the leader"
            raise _wrong(f"{process.host.name} (#{agent.incarnation}) {acts} at offset {agent.view.offset}, where #{leader} leads")

    def _note(self, change: BrokerChanged) -> None:
        if change.dead is not None:
            self._statuses.pop(change.dead, None)
        if change.after is not None and change.after.live:
            self._statuses[change.after.incarnation] = change.after.status


def _wrong(what: str) -> InvariantViolated:
    return InvariantViolated(invariant="section 5: the oldest that does not drain leads", what=what)
