"""Section 9: what the former owner of a bundle leaves behind comes to the next one, and to no later one.

May live here: what is asked of the state that a service is given on opening a bundle.
"""

from __future__ import annotations

from equipoise.brokers.agent.effects import Effect, Open
from equipoise.brokers.testing.simulation.checkers.violation import InvariantViolated
from equipoise.brokers.testing.simulation.host import Process
from equipoise.channel.core.entries import BundleChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BundleTransition


class Handovers:
    """Keeps what each ownership was handed, by its bundle and token: the offset of the record that began it."""

    def __init__(self) -> None:
        self._handed: dict[tuple[str, int], bytes] = {}
        # A split and a merge may bring a bundle back under the same name and token. What a service left before is then out of date.
        self._reshaped: set[tuple[str, int]] = set()

    def folded(self, folded: Folded) -> None:
        """Note what an accepted record hands over."""
        record = folded.record
        if isinstance(record, BundleTransition) and record.handover is not None and folded.verdict.accepted:
            self._handed[record.key, folded.offset] = record.handover
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and change.before is not None and change.after is None:
                self._reshaped.add((change.name, change.before.token))

    def stepped(self, process: Process, effects: list[Effect]) -> None:
        """Check the state with which a service opens a bundle.

        A new owner is given what the record handed over that made it the owner, or nothing. A source goes on under the same token
        if the destination dies: then its service must be given what it left itself.
        """
        for effect in effects:
            if type(effect) is Open:
                ownership = effect.handle.bundle, effect.handle.token
                left = process.service.left.get(ownership)
                if left is not None and effect.handover != left and ownership not in self._reshaped:
                    raise InvariantViolated(
                        invariant="section 9: a service gets its own state back",
                        what=f"{process.host.name} goes on with {ownership[0]} under token {ownership[1]} with {effect.handover!r}, "
                        f"and left {left!r}",
                    )
                if effect.handover is not None and effect.handover not in (
                    self._handed.get(ownership),
                    process.service.left.get(ownership),
                ):
                    raise InvariantViolated(
                        invariant="section 9: a handover goes to the next owner",
                        what=f"{process.host.name} opens {ownership[0]} under token {ownership[1]} with {effect.handover!r}",
                    )
