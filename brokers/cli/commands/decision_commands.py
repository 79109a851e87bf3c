"""Define `equipoise decisions`: show what balancing decided, and why."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.cli.moments import ago, local_time
from equipoise.brokers.cli.options import LogOption, handle
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import Output, print_json, print_line, print_wrapped
from equipoise.brokers.decision_log import document_of, newest_decisions

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

    Shows the newest decisions, oldest first, also rounds in which nothing moved. Some seconds after
    the moves of a round, its outcome follows: the load of each broker as it was predicted and as it
    was measured.
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
        for line in decision.lines:
            print_wrapped(f"  {line}", indent=4)


def _heading(decision: Decision, now_ms: int) -> str:
    when = f"{local_time(decision.at_ms)}, {ago(now_ms - decision.at_ms)}"
    return f"{when}: {decision.title}"
