"""Check sections 3 and 9: transfers, handovers, and one operation of a bundle at a time."""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.brokers.agent.effects import Close, Discard, Effect, Open, Prepare
from equipoise.channel.core.entries import BundleChanged, BundleEntry
from equipoise.channel.core.propose import is_refusal
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.records import BundleTransition
from tests.simulation.checkers.violation import InvariantViolated
from tests.simulation.host import Process

_ON_ITS_WAY = ("assigning", "transferring")


class Transfers:
    """Knows when each transfer began, which broker released each bundle, and what each service
    prepared.
    """

    def __init__(self) -> None:
        # By bundle and offset of the entry: the offset of the record that began the transfer.
        self._began: dict[tuple[str, int], int] = {}
        # By bundle and token: the incarnation that released the bundle to the owner under this
        # token.
        self._released: dict[tuple[str, int], int] = {}
        # By incarnation, bundle, and beginning of the transfer.
        self._prepared: dict[tuple[int, str, int], None] = {}

    def folded(self, folded: Folded) -> None:
        """Note what an accepted record begins or ends, and check that a destination's service was
        asked before it answers.
        """
        record = folded.record
        for change in folded.verdict.changes:
            if (
                not isinstance(change, BundleChanged)
                or change.after is None
                or change.before is None
            ):
                continue
            before, after = change.before, change.after
            if after.phase in _ON_ITS_WAY:
                # If the source dies, the transfer continues as an assignment. Everything else
                # begins anew.
                goes_on = before.phase == "transferring" and after.owner == before.owner
                self._began[after.name, after.last] = (
                    self._began[before.name, before.last] if goes_on else after.last
                )
            if isinstance(record, BundleTransition):
                if (
                    before.phase == "handing_over"
                    and after.phase == "owned"
                    and before.source is not None
                ):
                    self._released[after.name, after.token] = before.source
                if before.phase in _ON_ITS_WAY and _is_answer(record, before):
                    self._check_answer(folded, before)

    def stepped(self, process: Process, effects: Sequence[Effect]) -> None:
        """Note what a service is asked to prepare, and check the source of an opening."""
        incarnation = process.agent.incarnation
        for effect in effects:
            if type(effect) is Prepare and incarnation is not None:
                began = self._began[effect.bundle.name, effect.bundle.last]
                self._prepared[incarnation, effect.bundle.name, began] = None
            elif type(effect) is Open and effect.source is not None:
                released = self._released.get((effect.handle.bundle, effect.handle.token))
                if effect.source.incarnation != released:
                    raise InvariantViolated(
                        invariant="section 9: an opening's source released the bundle",
                        what=(
                            f"{process.host.name} opens {effect.handle.bundle} under token"
                            f" {effect.handle.token} with source #{effect.source.incarnation}, and"
                            f" #{released} released it"
                        ),
                    )

    def _check_answer(self, folded: Folded, before: BundleEntry) -> None:
        assert before.owner is not None, "what is on its way has a destination"
        began = self._began[before.name, before.last]
        if (before.owner, before.name, began) not in self._prepared:
            raise InvariantViolated(
                invariant="section 3: a destination answers for one transfer",
                what=(
                    f"at offset {folded.offset} #{before.owner} answers for the transfer of"
                    f" {before.name} that began at {began}, and its service was never asked about"
                    " that one"
                ),
            )


def _is_answer(record: BundleTransition, before: BundleEntry) -> bool:
    """Return whether a record carries the destination's answer. The destination may also cancel a
    transfer for an operator.
    """
    if record.incarnation is None or record.incarnation != before.owner:
        return False
    is_cancel = before.phase == "transferring" and record.state == "owned"
    return (
        is_refusal(record, before) if is_cancel else record.state in ("releasing", "owned", "free")
    )


class Handovers:
    """Keeps the handover of each ownership, by bundle and token (the offset of the record that
    began it).
    """

    def __init__(self) -> None:
        self._handed: dict[tuple[str, int], bytes] = {}
        # A split and a merge may restore a bundle's name and token. State that a service left
        # before is then out of date.
        self._reshaped: set[tuple[str, int]] = set()

    def folded(self, folded: Folded) -> None:
        """Note the handover of an accepted record."""
        record = folded.record
        if (
            isinstance(record, BundleTransition)
            and record.handover is not None
            and folded.verdict.accepted
        ):
            self._handed[record.key, folded.offset] = record.handover
        for change in folded.verdict.changes:
            if (
                isinstance(change, BundleChanged)
                and change.before is not None
                and change.after is None
            ):
                self._reshaped.add((change.name, change.before.token))

    def stepped(self, process: Process, effects: Sequence[Effect]) -> None:
        """Check the state with which a service opens a bundle.

        * A new owner gets the handover of the record that made it the owner, or nothing.
        * If the destination dies, the source continues under the same token. Its service must get
          the state that it left.
        """
        for effect in effects:
            if type(effect) is Open:
                ownership = effect.handle.bundle, effect.handle.token
                left = process.service.left.get(ownership)
                if left is not None and effect.handover != left and ownership not in self._reshaped:
                    raise InvariantViolated(
                        invariant="section 9: a service gets its own state back",
                        what=(
                            f"{process.host.name} goes on with {ownership[0]} under token"
                            f" {ownership[1]} with {effect.handover!r}, and left {left!r}"
                        ),
                    )
                if effect.handover is not None and effect.handover not in (
                    self._handed.get(ownership),
                    process.service.left.get(ownership),
                ):
                    raise InvariantViolated(
                        invariant="section 9: a handover goes to the next owner",
                        what=(
                            f"{process.host.name} opens {ownership[0]} under token {ownership[1]}"
                            f" with {effect.handover!r}"
                        ),
                    )


def one_at_a_time(process: Process, effects: Sequence[Effect]) -> None:
    """Check that no operation that a step began runs beside another of its bundle."""
    for effect in effects:
        match effect:
            case Prepare():
                bundle = effect.bundle.name
            case Open() | Close():
                bundle = effect.handle.bundle
            case Discard():
                bundle = effect.bundle
            case _:
                continue
        under_way = process.service.under_way.get(bundle, [])
        if len(under_way) > 1:
            raise InvariantViolated(
                invariant="section 9: one operation of a bundle at a time",
                what=(
                    f"the service of {process.host.name} at once"
                    f" {' and '.join(f'{running.verb}s' for running in under_way)} {bundle}"
                ),
            )
