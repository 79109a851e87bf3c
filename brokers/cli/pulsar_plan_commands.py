"""Define `equipoise pulsar plan`: plan the moves that even out a cluster. It only reads."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from equipoise.brokers.balancing.settings.balancing_settings import SHEDDERS, BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import with_values
from equipoise.brokers.cli.commands.forecasts import (
    PlanOptions,
    conclusion,
    differing,
    effect_document,
    print_effect,
)
from equipoise.brokers.cli.moments import local_time
from equipoise.brokers.cli.options import TIMEOUT_S_MAX
from equipoise.brokers.cli.output import (
    Row,
    print_heading,
    print_json,
    print_line,
    print_wrapped,
    progress,
)
from equipoise.brokers.cli.pulsar_options import Cluster
from equipoise.brokers.errors import counted, no_fresh_load
from equipoise.channel.core.errors import CallerError
from equipoise.channel.system.clocks import unix_ms
from equipoise.pulsar_cluster.archive import open_archive
from equipoise.pulsar_cluster.planning import EVEN, ClusterPlan, command_of, plan_moves
from equipoise.pulsar_cluster.planning import Cluster as PlannedFor
from equipoise.pulsar_cluster.reading import is_url
from equipoise.pulsar_cluster.saved_plans import SavedPlan
from equipoise.pulsar_cluster.sources import admin_of

if TYPE_CHECKING:
    from equipoise.pulsar_cluster.admin import PulsarAdmin
    from equipoise.pulsar_cluster.sources import LiveCluster
    from equipoise.pulsar_cluster.table import Table

_HOUR_MS: Final = 3_600_000
_NAMED_MAX: Final = 3
_WAIT_S: Final = 70
"""Brokers measure their load once a minute by default, and report it if it has changed."""


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
    admin = admin_of(cluster.address_with_admin)
    known, notes, as_of_ms = _gathered(cluster, admin, wait * 1_000, may_measure=may_measure)
    planned = plan_moves(known, settings, now_ms=as_of_ms)
    leader = None if admin is None else admin.leader()
    if planned.forecast.before is None:
        apart = [f"{broker.broker}: {broker.apart}" for broker in planned.forecast.brokers]
        advice = (
            "wait longer for the reports of its brokers (--wait), or record them first (equipoise"
            " pulsar record)"
        )
        raise no_fresh_load(
            log=source, problem=apart[0] if apart else "no broker is alive", advice=advice
        )
    saved = SavedPlan(
        source=source,
        made_ms=unix_ms(),
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


def _gathered(
    cluster: Cluster, admin: PulsarAdmin | None, wait_ms: int, *, may_measure: bool
) -> tuple[PlannedFor, list[str], int]:
    """Return what to plan from, what is not known, and as of when to plan: Unix time."""
    from equipoise.pulsar_cluster.sources import archived, cluster_in, cluster_of

    source = cluster.address.service_url
    if is_url(source):
        if admin is None:
            raise CallerError(
                "a plan for a running cluster needs its admin API, for its policies: name it with"
                " --admin"
            )
        with (
            live_on(cluster, admin) as live,
            progress("waiting for load reports", unit="brokers") as note,
        ):
            live.await_reports(admin, wait_ms, note)
            known = cluster_of(live.table, live.reports, admin, may_measure=may_measure)
            return known, _unknown(admin, known, live.table), unix_ms()
    with open_archive(Path(source)) as archive:
        table, reports = archived(archive)
        if admin is not None:
            known = cluster_of(table, reports, admin, may_measure=may_measure)
            return known, _unknown(admin, known, table), unix_ms()
        notes = [
            (
                "isolation policies and anti-affinity groups are not known, because --admin was not"
                " given: check each move"
            )
        ]
        last_ms = max((report.at_ms for report in archive.reports()), default=None)
        if last_ms is None:
            return cluster_in(archive, table, reports), notes, unix_ms()
        age_h = (unix_ms() - last_ms) / _HOUR_MS
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


def live_on(cluster: Cluster, admin: PulsarAdmin) -> AbstractContextManager[LiveCluster]:
    """Open a running cluster, in the time that the command has."""
    from equipoise.pulsar_cluster.sources import live_cluster

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
