"""Define `equipoise decisions`: show what balancing decided, and why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.cli.moments import ago, local_time
from equipoise.brokers.cli.options import LogOption, handle
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import Output, print_json, print_line, print_wrapped
from equipoise.brokers.decision_log import document_of, newest_decisions
from equipoise.brokers.errors import counted
from equipoise.shedder.reported import format_percent

app = group("Show what the balancer decided, and why.")

LIMIT: Final = 20
LIMIT_MAX: Final = 10_000
"""A decision document takes some kilobytes."""


@app.command()
def decisions(
    *,
    log: LogOption,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", metavar="N", min=1, max=LIMIT_MAX, help="Number of decisions to show."
        ),
    ] = LIMIT,
    results: Output,
) -> None:
    """Show what the balancer decided, and why.

    Shows the newest decisions, oldest first: the leader's about moves, and each broker's about its
    splits and merges. Includes rounds in which nothing moved. Some seconds after the moves of a
    round, its outcome follows: the load of each broker as it was predicted and as it was measured.
    """
    with handle(log):  # Errors of the channel are reported as in all commands.
        found = newest_decisions(log, limit)
    if results.as_json:
        print_json([document_of(decision) for decision in found])
        return
    if not found:
        print_line("nothing has been decided yet")
    now_ms = time.time_ns() // 1_000_000
    for decision in found:
        print_wrapped(_heading(decision, now_ms), indent=2, bold=True)
        for line in _lines(decision):
            print_wrapped(f"  {line}", indent=4)


def _heading(decision: Decision, now_ms: int) -> str:
    when = f"{local_time(decision.at_ms)}, {ago(now_ms - decision.at_ms)}"
    if decision.kind == "outcome":
        return f"{when}: outcome of a round by {decision.broker} ({decision.strategy})"
    result, cause = decision.outcome
    return f"{when}: {decision.kind} by {decision.broker} ({decision.strategy}): {result}, {cause}"


def _level(decision: Decision) -> Iterator[str]:
    """Yield what is known about the spread of the load."""
    if decision.plan.mean is not None:
        yield f"mean {format_percent(decision.plan.mean)}"
    if decision.plan.deviation is not None:
        after = (
            f" -> {format_percent(decision.plan.deviation_after)}"
            if decision.plan.moves and decision.plan.deviation_after is not None
            else ""
        )
        yield f"deviation {format_percent(decision.plan.deviation)}{after}"


def _lines(decision: Decision) -> Iterator[str]:
    level = ", ".join(_level(decision))
    if level:
        yield level
    if decision.plan.idle is not None:
        yield decision.plan.idle.reason
    yield from (each.sentence for each in decision.brokers)
    yield from map(decision.move_line, decision.plan.moves)
    if decision.moves_left_out:
        yield f"and {counted(decision.moves_left_out, 'move')} more"
    for stay in decision.plan.stays:
        if decision.plan.idle is None or stay.reason != decision.plan.idle.reason:
            yield f"{stay.subject} stays: {stay.reason}"
    if decision.stays_left_out:
        yield f"and {counted(decision.stays_left_out, 'other')} that stay"
