"""Carry out a saved plan, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from equipoise.brokers.balancing.planning import moving_in
from equipoise.brokers.balancing.saved_plans import SavedPlan
from equipoise.brokers.errors import Rejected
from equipoise.brokers.operations.moves import transfer_batch
from equipoise.brokers.operations.outcomes import BundleOutcome
from equipoise.brokers.operations.port import Port
from equipoise.channel.core.records import Reason
from equipoise.channel.core.view import View
from equipoise.shedder.plan import Move


async def apply_next(
    port: Port, plan: SavedPlan, left: Sequence[Move], *, proceed: Callable[[], object] = bool
) -> Sequence[tuple[Move, BundleOutcome | None]]:
    """Carry out those of the moves `left` that may start next, once some may. Return what became of
    each; None: somebody else moves it.

    `proceed` is called before the first move starts, and may raise. Raises `Rejected` if something
    has changed that concerns them, and what `moves.transfer_batch` raises.
    """

    def next_batch(view: View) -> Sequence[Move] | None:
        proceed()
        return plan.next_batch(left, moving_in(view)) or None

    batch = await port.until(next_batch, "room for the next moves of the plan")
    check_unchanged(plan, port.view, batch)
    outcomes = {outcome.bundle: outcome for outcome in await transfer_batch(port, batch)}
    return [(move, outcomes.get(move.bundle)) for move in batch]


def outcome_sentence(move: Move, outcome: BundleOutcome | None) -> str:
    """Return what became of a move."""
    return (
        f"{move.bundle} did not move: somebody else moves it"
        if outcome is None
        else outcome.sentence()
    )


def check_unchanged(plan: SavedPlan, view: View, moves: Sequence[Move]) -> None:
    """Raise `Rejected` if something has changed since the plan that concerns these of its moves."""
    changes = plan.changes(view, moves)
    if changes is not None:
        advice = "make a new plan with `equipoise plan --output`"
        raise Rejected(
            key=f"plan {plan.id}",
            reason=Reason.STALE,
            problem=changes,
            offset=None,
            action="apply the",
            advice=advice,
        )
