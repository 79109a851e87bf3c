"""Check section 9: the state that an owner leaves behind reaches the next owner, and no later one."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.brokers.agent.effects import Effect, Open
from equipoise.brokers.testing.simulation.checkers.violation import InvariantViolated
from equipoise.brokers.testing.simulation.host import Process
from equipoise.channel.core.entries import BundleChanged
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BundleTransition


class Handovers:
    """Keeps the handover of each ownership, by bundle and token (the offset of the record that began it)."""

    def __init__(self) -> None:
        self._handed: dict[tuple[str, int], bytes] = {}
        # A split and a merge may restore a bundle's name and token. State that a service left before is then out of date.
        self._reshaped: set[tuple[str, int]] = set()

    def folded(self, folded: Folded) -> None:
        """Note the handover of an accepted record."""
        record = folded.record
        if isinstance(record, BundleTransition) and record.handover is not None and folded.verdict.accepted:
            self._handed[record.key, folded.offset] = record.handover
        for change in folded.verdict.changes:
            if isinstance(change, BundleChanged) and change.before is not None and change.after is None:
                self._reshaped.add((change.name, change.before.token))

    def stepped(self, process: Process, effects: Sequence[Effect]) -> None:
        """Check the state with which a service opens a bundle.

        * A new owner gets the handover of the record that made it the owner, or nothing.
        * If the destination dies, the source continues under the same token. Its service must get the state that it left.
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
