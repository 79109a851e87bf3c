"""Carry out a plan that `equipoise plan --output` wrote, batch by batch."""

from __future__ import annotations

from dataclasses import replace
from threading import Event

import typer

from equipoise.brokers.balancing.saved_plans import SavedPlan
from equipoise.brokers.cli.channel_options import Admin
from equipoise.brokers.cli.outcome import ExitCode
from equipoise.brokers.operations.applying import apply_next, check_unchanged, outcome_sentence
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.channel.log.blocking_view import read_on
from equipoise.channel.system.stop_signals import first_stop_signal


def apply_plan(plan: SavedPlan, admin: Admin) -> None:
    """Carry out a plan, batch by batch, and print what became of each bundle."""
    failed = False
    with admin.acting() as access, first_stop_signal() as interrupted:
        check_unchanged(plan, access.view, plan.moves)
        left = list(plan.moves)
        while left:
            # Each batch has its own time.
            in_time = replace(access, deadline=admin.deadline())
            read_on(access.log, access.reader, deadline=in_time.deadline)
            made = run(
                apply_next(
                    ChannelPort(in_time), plan, left, proceed=lambda: _check_not(interrupted)
                )
            )
            for move, outcome in made:
                left.remove(move)
                failed = failed or outcome is None or outcome.owner != move.destination
                sentence = outcome_sentence(move, outcome)
                document: dict[str, object] = (
                    {"bundle": move.bundle, "problem": sentence}
                    if outcome is None
                    else {**outcome.document()}
                )
                admin.print_fact(sentence, document)
            _check_not(interrupted)
    if failed:
        raise typer.Exit(ExitCode.REFUSED)


def _check_not(interrupted: Event) -> None:
    if interrupted.is_set():
        raise KeyboardInterrupt
