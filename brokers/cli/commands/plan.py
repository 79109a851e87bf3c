"""Define `equipoise plan`: forecast a balancing round from the channel and the load reports,
without a broker.

`shedder` plans the round, `brokers.balancing.forecast` computes its effect,
`brokers.cli.commands.forecasts` prints it.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from equipoise.brokers.balancing.controls import standing_controls
from equipoise.brokers.balancing.forecast import Forecast
from equipoise.brokers.balancing.planning import cluster_snapshot_of, fresh, predicted_round
from equipoise.brokers.balancing.saved_plans import read_plan, saved_plan
from equipoise.brokers.balancing.settings.balancing_settings import (
    SHEDDERS,
    BalancingSettings,
    placement_of,
)
from equipoise.brokers.balancing.settings.setting_values import with_values
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.cli.channel_options import Admin
from equipoise.brokers.cli.commands.applying import apply_plan
from equipoise.brokers.cli.commands.forecasts import (
    ApplyOption,
    ForecastBasis,
    PlanOptions,
    document_of,
    plan_in,
    print_forecast,
)
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import print_json
from equipoise.brokers.decision_log import newest_by_kind
from equipoise.brokers.errors import no_fresh_load
from equipoise.brokers.load.bus import LoadBus
from equipoise.channel.core.errors import OperatorError
from equipoise.channel.core.view import View
from equipoise.channel.inspect.story import why_unserved

app = group("Show what the balancer would move now, and what blocks further moves.")


@app.command()
def plan(
    *,
    admin: Admin,
    shedder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Plan with this shedder: {', '.join(SHEDDERS)}.  [default: the cluster's]",
            show_default=False,
        ),
    ] = None,
    options: PlanOptions,
    apply: ApplyOption = None,
) -> None:
    """Show what the balancer would move now, and what blocks further moves.

    Without --apply, this is a dry run: it reads the channel and the load reports, and changes
    nothing. It does not know the settings that brokers got when they started.

    With --apply, it moves exactly what the file says, and Ctrl-C stops after the moves in flight.
    Exit code 1: no broker has sent a fresh load report; or the cluster has changed since the plan;
    or a bundle did not arrive.
    """
    if apply is not None:
        if shedder is not None or options.is_given:
            raise typer.BadParameter(
                "--apply carries out a plan as it is: give it only --log, --as, --timeout and"
                " --json"
            )
        apply_plan(plan_in(apply, read_plan), admin)
        return
    given, base = options.given(shedder), options.base(BalancingSettings())
    with admin.reading() as access:
        view, newest = access.view, newest_by_kind(admin.log)
        settings = with_values(settings_in(view, base), given)
        loads = LoadBus(admin.log).latest()
        now_ms = time.time_ns() // 1_000_000
        cluster = cluster_snapshot_of(view, loads, settings, now_ms=now_ms)
        placement = placement_of(settings, fresh(loads, settings, now_ms=now_ms))
        strategy, forecast = predicted_round(cluster, settings, placement, last=newest.get("shed"))
        saved = saved_plan(view, forecast.plan, settings.balancing)
        seen = ForecastBasis(
            plan=saved.id,
            log=admin.log,
            at_ms=now_ms,
            offset=view.offset,
            leader=_leader(view),
            newest=newest,
            strategy=strategy,
            controls=standing_controls(view, now_ms),
            unserved=[name for name in sorted(view.namespaces) if why_unserved(view, name)],
            units=cluster.units,
        )
    if forecast.before is None:
        raise _without_load(admin.log, forecast)
    options.write(saved.text())
    if admin.as_json:
        print_json(document_of(seen, settings, forecast))
    else:
        print_forecast(seen, settings, forecast)


def _leader(view: View) -> str | None:
    leader = view.leader()
    return None if leader is None else leader.broker


def _without_load(log: str, forecast: Forecast) -> OperatorError:
    apart = [f"{broker.broker}: {broker.apart}" for broker in forecast.brokers]
    others = f" (and likewise {len(apart) - 1} others)" if len(apart) > 1 else ""
    problem = f"{apart[0]}{others}" if apart else "no broker is alive"
    advice = "read what the brokers log about their reports, and check the clock of this machine"
    return no_fresh_load(
        log=log, problem=problem, advice=advice if apart else "start one (equipoise broker)"
    )
