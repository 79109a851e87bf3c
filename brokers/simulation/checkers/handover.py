"""Section 9: what the former owner of a bundle leaves behind comes to the next one, and to no later one.

May live here: what is asked of the state that a service is given on opening a bundle.
"""

from __future__ import annotations

from brokers.agent.effects import Effect, Open
from brokers.simulation.checkers.violation import InvariantViolated
from brokers.simulation.host import Process
from channel.reader import Folded
from channel.records import BundleTransition


class Handovers:
    """Keeps what each tenure was handed, by its bundle and token: the offset of the record that began it."""

    def __init__(self) -> None:
        self._handed: dict[tuple[str, int], bytes] = {}

    def folded(self, folded: Folded) -> None:
        """Note what an accepted record hands over."""
        record = folded.record
        if isinstance(record, BundleTransition) and record.handover is not None and folded.verdict.accepted:
            self._handed[record.key, folded.offset] = record.handover

    def stepped(self, process: Process, effects: list[Effect]) -> None:
        """Check the state with which a service opens a bundle.

        It is what the record handed over that began the tenure; or what the same process left in the same tenure, if that
        goes on because the one to whom it was to pass has died.
        """
        for effect in effects:
            if type(effect) is Open and effect.handover is not None:
                tenure = effect.handle.bundle, effect.handle.token
                if effect.handover not in (self._handed.get(tenure), process.service.left.get(tenure)):
                    raise InvariantViolated(
                        invariant="section 9: a handover goes to the next owner",
                        what=f"{process.host.name} opens {tenure[0]} under token {tenure[1]} with {effect.handover!r}",
                    )
