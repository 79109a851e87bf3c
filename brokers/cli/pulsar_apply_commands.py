"""Define `equipoise pulsar plan` and `equipoise pulsar apply`: even out an Apache Pulsar cluster
that already runs.

`plan` only reads. `apply` is the only command that writes to the cluster, with `--send`: the
unloads of a plan that was shown.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from equipoise.brokers.balancing.settings.balancing_settings import SHEDDERS, BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import with_values
from equipoise.brokers.cli.commands.forecasts import (
    conclusion,
    differing,
    effect_document,
    print_effect,
)
from equipoise.brokers.cli.commands.plan import PlanOptions, plan_in
from equipoise.brokers.cli.moments import local_time
from equipoise.brokers.cli.options import TIMEOUT_S_MAX, file
from equipoise.brokers.cli.outcome import ExitCode
from equipoise.brokers.cli.output import (
    Row,
    print_heading,
    print_json,
    print_line,
    print_wrapped,
)
from equipoise.brokers.cli.progress import progress
from equipoise.brokers.cli.pulsar_commands import app
from equipoise.brokers.cli.pulsar_options import Cluster
from equipoise.brokers.errors import NoFreshLoad, counted
from equipoise.channel.core.errors import CallerError
from equipoise.channel.system.stop_signals import first_stop_signal
from equipoise.pulsar_cluster.archive import open_archive
from equipoise.pulsar_cluster.audit_file import AuditFile, audit_file, entries_in
from equipoise.pulsar_cluster.moving import MoveOutcome, Status
from equipoise.pulsar_cluster.planning import EVEN, ClusterPlan, command_of, plan_moves
from equipoise.pulsar_cluster.planning import Cluster as PlannedFor
from equipoise.pulsar_cluster.reading import is_url
from equipoise.pulsar_cluster.saved_plans import (
    Now,
    SavedPlan,
    changes,
    read_plan,
    rest_of,
    undoing,
)
from equipoise.pulsar_cluster.sources import opened_admin

if TYPE_CHECKING:
    from equipoise.pulsar_cluster.admin import PulsarAdmin
    from equipoise.pulsar_cluster.gathering import LiveCluster
    from equipoise.pulsar_cluster.table import Table

_AT_ONCE: Final = 3
_AT_ONCE_MAX: Final = 64
_HOUR_MS: Final = 3_600_000
_NAMED_MAX: Final = 3
_WAIT_S: Final = 70
"""Brokers measure their load once a minute by default, and report it if it has changed."""


@app.command()
def plan(
    *,
    cluster: Cluster,
    shedder: Annotated[
        str, typer.Option(metavar="NAME", help=f"Plan with this policy: {', '.join(SHEDDERS)}.")
    ] = "BalancedShedder",
    options: PlanOptions,
    wait: Annotated[
        int,
        typer.Option(
            metavar="SECONDS",
            min=0,
            max=TIMEOUT_S_MAX,
            help="How long to wait for a load report of each broker.",
        ),
    ] = _WAIT_S,
) -> None:
    """Plan the moves that even out the cluster, and show their reasons, the load before and after,
    and the commands of pulsar-admin.

    It changes nothing. A cluster needs --admin, for its brokers, isolation policies and
    anti-affinity groups. With an archive and without --admin, these policies are not known.

    Exit code 1: no broker has sent a load report that counts.
    """
    settings = with_values(options.base(EVEN), options.given(shedder))
    # The settings of the cluster's own balancer say whether it acts. An operator's plan always
    # does.
    settings = replace(settings, balancing=replace(settings.balancing, enabled=True, shedding=True))
    may_measure = settings.policy.measure.kind == "cost"
    source = cluster.address.service_url
    with opened_admin(cluster.address_with_admin) as admin:
        known, notes, now_ms = _gathered(cluster, admin, wait * 1_000, may_measure=may_measure)
        planned = plan_moves(known, settings, now_ms=now_ms)
        leader = None if admin is None else admin.leader()
    if planned.forecast.before is None:
        apart = [f"{broker.broker}: {broker.apart}" for broker in planned.forecast.brokers]
        advice = (
            "wait longer for the reports of its brokers (--wait), or record them first (equipoise"
            " pulsar record)"
        )
        raise NoFreshLoad(
            log=source, problem=apart[0] if apart else "no broker is alive", advice=advice
        )
    saved = SavedPlan(
        source=source,
        made_ms=_now_ms(),
        leader=leader,
        members=tuple(sorted(known.members)),
        moves=planned.moves,
        versions=planned.versions,
    )
    options.write(saved.text())
    if cluster.as_json:
        print_json(
            _document(saved, settings, planned, notes, _conclusion(settings, planned, known))
        )
    else:
        _print_plan(saved, settings, planned, notes, _conclusion(settings, planned, known))


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
        typer.Option(
            metavar="AUDIT",
            exists=True,
            dir_okay=False,
            help="Move back what the last plan in this audit file moved.",
            show_default=False,
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
    switch_shedding_off: Annotated[
        bool,
        typer.Option(
            "--switch-shedding-off",
            help="Switch Pulsar's own shedding off, and restore it afterwards.",
        ),
    ] = False


@app.command()
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

    Without --send it is a dry run. It stops when anything changes that the plan did not foresee,
    and when the cluster gets worse. Ctrl-C stops after the moves under way. --timeout is the limit
    of each move. --resume and --undo go by the audit file of the former run, and by where the
    bundles are now.

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
    with opened_admin(cluster.address_with_admin) as admin:
        assert admin is not None, "its URL was given"
        with _live(cluster, admin) as live:
            saved, notes = given, list[str]()
            if saved is None or options.resume:
                now = Now(live.table.bundles, admin.brokers(), admin.leader(), _now_ms())
                entries = entries_in(audit)
                saved, notes = (
                    undoing(entries, now, cluster.address.service_url)
                    if saved is None
                    else (rest_of(saved, entries, now), [])
                )
            for note in notes:
                cluster.print_fact(note, {"plan": saved.id, "note": note})
            problem = _why_not(saved, admin, live, may_switch=options.switch_shedding_off)
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


def _why_not(
    saved: SavedPlan, admin: PulsarAdmin, cluster: LiveCluster, *, may_switch: bool
) -> str | None:
    """Return why the plan must not be applied now; None if it may."""
    from equipoise.pulsar_cluster.applying import SHEDDING, is_shedding, settings_of_leader

    changed = changes(saved, cluster.table.bundles, admin.brokers(), admin.leader())
    if changed is not None:
        return f"the cluster has changed since the plan: {changed}; make a new plan"
    if not may_switch and is_shedding(settings_of_leader(admin)):
        return (
            f"Pulsar's own shedding is on ({SHEDDING}), and two balancers would fight; use"
            " --switch-shedding-off, or switch it off"
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
    from equipoise.pulsar_cluster.applying import (
        SHEDDING,
        Watch,
        apply_plan,
        is_shedding,
        restore_shedding,
        settings_of_leader,
        shedding_off,
    )

    stopped, moved, switch = None, 0, options.switch_shedding_off
    with first_stop_signal() as interrupted, ExitStack() as stack:
        unrestored = lines.unrestored()
        if unrestored is not None and switch:
            restore_shedding(admin, lines, unrestored)
        elif unrestored is not None:
            value = unrestored.get("dynamic") or unrestored.get("value")
            command = (
                f"pulsar-admin brokers update-dynamic-config --config {SHEDDING} --value {value}"
            )
            sentence = (
                "Pulsar's own shedding is still off, because an earlier apply was killed; switch"
                f" it on afterwards: {command}"
            )
            cluster.print_fact(sentence, {"plan": saved.id, "warning": sentence})
        if switch and is_shedding(settings_of_leader(admin)):
            stack.enter_context(shedding_off(admin, lines))
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


def _gathered(
    cluster: Cluster, admin: PulsarAdmin | None, wait_ms: int, *, may_measure: bool
) -> tuple[PlannedFor, list[str], int]:
    """Return what to plan from, what is not known, and as of when to plan: Unix time."""
    from equipoise.pulsar_cluster.gathering import archived, cluster_in, cluster_of

    source = cluster.address.service_url
    if is_url(source):
        if admin is None:
            raise CallerError(
                "a plan for a running cluster needs its admin API, for its policies: name it with"
                " --admin"
            )
        with (
            _live(cluster, admin) as live,
            progress("waiting for load reports", unit="brokers") as note,
        ):
            live.await_reports(admin, wait_ms, note)
            known = cluster_of(live.table, live.reports, admin, may_measure=may_measure)
            return known, _unknown(admin, known, live.table), _now_ms()
    with open_archive(Path(source)) as archive:
        table, reports = archived(archive)
        if admin is not None:
            known = cluster_of(table, reports, admin, may_measure=may_measure)
            return known, _unknown(admin, known, table), _now_ms()
        notes = [
            (
                "isolation policies and anti-affinity groups are not known, because --admin was not"
                " given: check each move"
            )
        ]
        last_ms = max((report.at_ms for report in archive.reports()), default=None)
        if last_ms is None:
            return cluster_in(archive, table, reports), notes, _now_ms()
        age_h = (_now_ms() - last_ms) / _HOUR_MS
        notes += [
            (
                f"the plan is as of the last load report in the archive, at {local_time(last_ms)},"
                f" {age_h:.1f} hours ago"
            )
        ]
        return cluster_in(archive, table, reports), notes, last_ms


def _unknown(admin: PulsarAdmin, known: PlannedFor, table: Table) -> list[str]:
    """Return what could not be read, and what does not count."""
    found = []
    if admin.without_figures:
        brokers, why = ", ".join(admin.without_figures), next(iter(admin.without_figures.values()))
        found.append(
            f"the figures of the topics of {brokers} are not known, so the plan uses their load"
            f" reports: {why}"
        )
    found += [
        f"the figures of {topic} are no load ({why}): that of its bundle is not known"
        for topic, why in admin.implausible.items()
    ]
    leftovers = sorted(table.bundles.keys() - known.bundles.keys())
    if leftovers:
        named = ", ".join(leftovers[:_NAMED_MAX])
        found.append(
            f"{counted(len(leftovers), 'bundle')} ({named}) are left out, because their namespaces"
            " have no such bundles: `equipoise pulsar verify --admin URL` says how to remove them"
        )
    found += [
        f"{broker} takes no part: clients of {counted(count, 'bundle')} of it have connected"
        f" lately; {_settled(known)}"
        for broker, count in known.unsettled.items()
    ]
    return found


def _settled(known: PlannedFor) -> str:
    """Return when all loads are known, and what to do then."""
    if known.settles_ms is None:
        return "plan again when the brokers have reported again"
    return (
        f"their figures are settled at {local_time(known.settles_ms)} at the latest: plan again"
        " then"
    )


def _conclusion(settings: BalancingSettings, planned: ClusterPlan, known: PlannedFor) -> str:
    text = conclusion(settings, planned.forecast)
    if not planned.unknown:
        return text
    text = text.partition("; the deviation would")[0].rstrip(".")
    count = counted(len(planned.unknown), "bundle")
    return (
        f"{text}. What deviation it leaves is not known: nobody knows the load of {count};"
        f" {_settled(known)}."
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _live(cluster: Cluster, admin: PulsarAdmin) -> AbstractContextManager[LiveCluster]:
    from equipoise.pulsar_cluster.gathering import live_cluster

    return live_cluster(cluster.address, admin, cluster.deadline())


def _document(
    saved: SavedPlan,
    settings: BalancingSettings,
    planned: ClusterPlan,
    notes: list[str],
    ending: str,
) -> Row:
    effect = effect_document(planned.forecast)
    return {
        "id": saved.id,
        "source": saved.source,
        "made_ms": saved.made_ms,
        "leader": saved.leader,
        "shedder": settings.balancing.shedder,
        "settings": differing(settings),
        **effect,
        "commands": [command_of(move) for move in saved.moves],
        "versions": dict(saved.versions),
        "notes": [*notes, *planned.notes],
        "unknown": sorted(planned.unknown),
        "conclusion": ending,
    }


def _print_plan(
    saved: SavedPlan,
    settings: BalancingSettings,
    planned: ClusterPlan,
    notes: list[str],
    ending: str,
) -> None:
    leader = saved.leader or "not known"
    print_wrapped(
        f"{settings.balancing.shedder}, at {local_time(saved.made_ms)}; leader: {leader}; plan"
        f" {saved.id}",
        indent=2,
    )
    for name, row in differing(settings).items():
        print_wrapped(f"{name} is {row['value']} (default: {row['default']})", indent=2)
    for note in (*notes, *planned.notes):
        print_wrapped(note, indent=2)
    print_effect(planned.forecast)
    if saved.moves:
        print_heading("commands")
        for move in saved.moves:
            print_line(command_of(move))
    print_heading(ending)
