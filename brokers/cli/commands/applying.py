"""Carry out a plan that `equipoise plan --output` wrote, batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from threading import Event

import typer

from equipoise.brokers.balancing.planning import moving_in
from equipoise.brokers.balancing.saved_plans import SavedPlan
from equipoise.brokers.cli.channel_options import Admin
from equipoise.brokers.cli.outcome import ExitCode
from equipoise.brokers.errors import Rejected
from equipoise.brokers.operations.access import until
from equipoise.brokers.operations.moves import transfer_batch
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.channel.core.records import Reason
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import read_on
from equipoise.channel.system.stop_signals import first_stop_signal
from equipoise.shedder.plan import Move


def apply_plan(plan: SavedPlan, admin: Admin) -> None:
    """Carry out a plan, batch by batch, and print what became of each bundle."""
    failed = False
    with admin.acting() as access, first_stop_signal() as interrupted:
        _check_unchanged(plan, access.view, plan.moves)
        left = list(plan.moves)
        while left:
            # Each batch has its own time.
            in_time = replace(access, deadline=admin.deadline())
            read_on(access.log, access.reader, deadline=in_time.deadline)
            batch = until(
                in_time,
                partial(_next_batch, plan, left, interrupted),
                what="room for the next moves of the plan",
            )
            left = [move for move in left if move not in batch]
            _check_unchanged(plan, access.view, batch)
            reported = run(transfer_batch(ChannelPort(in_time), batch))
            outcomes = {outcome.bundle: outcome for outcome in reported}
            for move in batch:
                outcome = outcomes.get(move.bundle)
                failed = failed or outcome is None or outcome.owner != move.destination
                sentence = (
                    f"{move.bundle} did not move: somebody else moves it"
                    if outcome is None
                    else outcome.sentence()
                )
                document: dict[str, object] = (
                    {"bundle": move.bundle, "problem": sentence}
                    if outcome is None
                    else {**outcome.document()}
                )
                admin.print_fact(sentence, document)
            if interrupted.is_set():
                raise KeyboardInterrupt
    if failed:
        raise typer.Exit(ExitCode.REFUSED)


def _next_batch(
    plan: SavedPlan, left: Sequence[Move], interrupted: Event, view: View
) -> Sequence[Move] | None:
    """Return the moves that may start now; None while all must wait for others."""
    if interrupted.is_set():
        raise KeyboardInterrupt
    return plan.next_batch(left, moving_in(view)) or None


def _check_unchanged(plan: SavedPlan, view: View, moves: Sequence[Move]) -> None:
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
