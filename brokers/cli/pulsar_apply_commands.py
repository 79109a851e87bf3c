"""Define `equipoise pulsar apply`: carry out a plan.

It is the only command that writes to the cluster, with `--send`: the unloads of a plan that was
shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from equipoise.brokers.cli.commands.forecasts import plan_in
from equipoise.brokers.cli.options import existing_file, file
from equipoise.brokers.cli.outcome import ExitCode
from equipoise.brokers.cli.output import Row, print_heading, print_json, print_line, print_wrapped
from equipoise.brokers.cli.pulsar_options import Cluster
from equipoise.brokers.cli.pulsar_plan_commands import live_on
from equipoise.brokers.errors import counted
from equipoise.channel.system.clocks import unix_ms
from equipoise.channel.system.stop_signals import first_stop_signal
from equipoise.pulsar_cluster.admin import PulsarAdmin
from equipoise.pulsar_cluster.applying import (
    SHEDDING,
    AuditFile,
    Watch,
    apply_plan,
    audit_file,
    entries_in,
    is_shedding,
    settings_of_leader,
)
from equipoise.pulsar_cluster.moving import MoveOutcome, Status
from equipoise.pulsar_cluster.planning import command_of
from equipoise.pulsar_cluster.saved_plans import (
    Now,
    SavedPlan,
    changes,
    read_plan,
    rest_of,
    undoing,
)
from equipoise.pulsar_cluster.sources import LiveCluster, admin_of

_AT_ONCE: Final = 3
_AT_ONCE_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """The options that say which moves are sent, and how."""

    send: Annotated[
        bool,
        typer.Option("--send", help="Send the moves. Without it, only show what would be sent."),
    ] = False
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with a plan that stopped: only with what was not moved yet."
        ),
    ] = False
    undo: Annotated[
        Path | None,
        existing_file(
            metavar="AUDIT", text="Move back what the last plan in this audit file moved."
        ),
    ] = None
    at_once: Annotated[
        int, typer.Option(min=1, max=_AT_ONCE_MAX, metavar="N", help="The most moves at a time.")
    ] = _AT_ONCE
    audit: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            parser=file,
            help="Append a line for each request and outcome to this file.",
        ),
    ] = Path("pulsar-moves.jsonl")


def apply(
    path: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            parser=file,
            help="A plan that `plan --output` wrote.",
            show_default=False,
        ),
    ] = None,
    *,
    cluster: Cluster,
    options: Sending,
) -> None:
    """Carry out a plan: a few moves at a time, each awaited on the channel, while the cluster is
    watched.

    Without --send it is a dry run. It stops when anything else changes, and when the cluster gets
    worse. Ctrl-C stops after the moves under way. --timeout is the limit of each move.

    Exit code 1: the cluster has changed since the plan, Pulsar's own shedding is on, or the plan
    stopped before its end.
    """
    undo = options.undo
    if (path is None) == (undo is None) or (undo is not None and options.resume):
        raise typer.BadParameter(
            "name one of: a plan, a plan with --resume, or an audit file with --undo"
        )
    if not cluster.address_with_admin.admin_urls:
        raise typer.BadParameter("name the cluster's admin API with --admin: moves are sent there")
    audit = options.audit if undo is None else undo
    given = None if path is None else plan_in(path, read_plan)
    admin = admin_of(cluster.address_with_admin)
    assert admin is not None, "its URL was given"
    with live_on(cluster, admin) as live:
        saved, notes = given, list[str]()
        if saved is None or options.resume:
            now = Now(live.table.bundles, admin.brokers(), admin.leader(), unix_ms())
            entries = entries_in(audit)
            saved, notes = (
                undoing(entries, now, cluster.address.service_url)
                if saved is None
                else (rest_of(saved, entries, now), [])
            )
        for note in notes:
            cluster.print_fact(note, {"plan": saved.id, "note": note})
        problem = _why_not(saved, admin, live)
        if not options.send:
            _print_dry_run(saved, problem, cluster)
        elif problem is not None:
            cluster.print_fact(
                f"nothing was sent: {problem}", {"plan": saved.id, "stopped": problem}
            )
        else:
            with audit_file(audit, plan=path) as lines:
                problem = _send(saved, admin, live, lines, cluster=cluster, options=options)
    if problem is not None:
        raise typer.Exit(ExitCode.REFUSED)


def _why_not(saved: SavedPlan, admin: PulsarAdmin, cluster: LiveCluster) -> str | None:
    """Return why the plan must not be applied now; None if it may."""
    changed = changes(saved, cluster.table.bundles, admin.brokers(), admin.leader())
    if changed is not None:
        return f"the cluster has changed since the plan: {changed}; make a new plan"
    if is_shedding(settings_of_leader(admin)):
        return (
            "Pulsar's own shedding is on, and two balancers would fight; switch it off meanwhile:"
            f" pulsar-admin brokers update-dynamic-config --config {SHEDDING} --value false"
        )
    return None


def _send(
    saved: SavedPlan,
    admin: PulsarAdmin,
    live: LiveCluster,
    lines: AuditFile,
    *,
    cluster: Cluster,
    options: Sending,
) -> str | None:
    """Carry out a plan, print the outcomes, and return why it stopped, or None."""
    stopped, moved = None, 0
    with first_stop_signal() as interrupted:
        watch = Watch(admin, live.reports, saved.moves)
        for event in apply_plan(
            saved,
            admin,
            table=live.table,
            read=live.read,
            look=watch,
            audit=lines,
            at_once=options.at_once,
            timeout_ms=cluster.timeout_s * 1_000,
            is_interrupted=interrupted.is_set,
        ):
            if isinstance(event, MoveOutcome):
                _print_outcome(event, cluster)
            else:
                stopped = event
                cluster.print_fact(f"stopped: {event}", {"plan": saved.id, "stopped": event})
            moved += isinstance(event, MoveOutcome) and event.status is Status.MOVED
    if not cluster.as_json:
        print_heading(
            f"{moved} of {counted(len(saved.moves), 'move')} done; each request and its outcome is"
            f" a line of {lines.path}"
        )
    return stopped


def _print_outcome(outcome: MoveOutcome, cluster: Cluster) -> None:
    took = f" ({outcome.took_ms} ms)" if outcome.status is Status.MOVED else ""
    document: Row = {
        "bundle": outcome.move.bundle,
        "status": outcome.status,
        "text": outcome.text,
        "took_ms": outcome.took_ms,
    }
    cluster.print_fact(f"{outcome.text}{took}", document)


def _print_dry_run(saved: SavedPlan, problem: str | None, cluster: Cluster) -> None:
    commands = [command_of(move) for move in saved.moves]
    if cluster.as_json:
        print_json({"plan": saved.id, "would_send": commands, "problem": problem})
        return
    for command in commands:
        print_line(command)
    print_heading(
        f"This is a dry run of plan {saved.id} with {len(commands)} moves: --send sends them."
    )
    if problem is not None:
        print_wrapped(f"It would be refused now: {problem}")
