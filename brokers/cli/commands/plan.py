"""Define `equipoise plan`: forecast a balancing round from the channel and the load reports, without a broker.

`shedder` plans the round, `brokers.balancing.forecast` computes its effect, `brokers.cli.commands.forecasts` prints it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from equipoise.brokers.balancing.controls import controls_in
from equipoise.brokers.balancing.decisions import Decision
from equipoise.brokers.balancing.forecast import Forecast
from equipoise.brokers.balancing.planning import cluster_snapshot_of, foreseen, fresh
from equipoise.brokers.balancing.settings.balancing_settings import SHEDDERS, BalancingSettings, placement_of
from equipoise.brokers.balancing.settings.setting_values import Value, with_values
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.cli.broker_conf import read_broker_conf
from equipoise.brokers.cli.commands.broker import pairs
from equipoise.brokers.cli.commands.forecasts import Seen, document_of, print_forecast
from equipoise.brokers.cli.options import TIMEOUT_S, BrokerConfOption, JsonOption, LogOption, TimeoutOption, reading
from equipoise.brokers.cli.outcome import group
from equipoise.brokers.cli.output import print_json
from equipoise.brokers.decision_log import open_decision_log
from equipoise.brokers.errors import NoFreshLoad
from equipoise.brokers.load.bus import open_load_bus
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.view import View

app = group("Show what the balancer would move now, and what blocks further moves.")


@app.command()
def plan(
    *,
    log: LogOption,
    shedder: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Plan with this shedder: {', '.join(SHEDDERS)}.  [default: the cluster's]", show_default=False),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Override a setting for this dry run. Repeatable.", show_default=False),
    ] = None,
    broker_conf: BrokerConfOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
    as_json: JsonOption = False,
) -> None:
    """Show what the balancer would move now, and what blocks further moves.

    This is a dry run: it reads the channel and the load reports, and changes nothing. The settings on the channel
    override those of --broker-conf, which override the defaults. It does not know the settings that brokers got when they started.
    Exit code 1: no broker has sent a fresh load report.
    """
    given = pairs("--set", changes or ()) | ({} if shedder is None else {"balancing.shedder": shedder})
    base = with_values(BalancingSettings(), {} if broker_conf is None else _settings_of(broker_conf))
    with reading(log, timeout) as access:
        settings = with_values(settings_in(access.view, base), given)
        summaries = open_load_bus(log).latest()
        now_ms = time.time_ns() // 1_000_000
        cluster = cluster_snapshot_of(access.view, summaries, settings, now_ms=now_ms)
        placement = placement_of(settings, fresh(summaries, settings, now_ms=now_ms))
        strategy, forecast = foreseen(cluster, settings, placement)
        paused = controls_in(access.view, now_ms).why_paused
        leader, last = _leader(access.view), _last_decision(log)
        seen = Seen(log=log, at_ms=now_ms, offset=access.view.offset, leader=leader, last=last, strategy=strategy, paused=paused)
    if forecast.before is None:
        raise _without_load(log, forecast)
    if as_json:
        print_json(document_of(seen, settings, forecast))
    else:
        print_forecast(seen, settings, forecast)


def _settings_of(broker_conf: Path) -> Mapping[str, Value]:
    """Return the settings of balancing in a file. Only these have a dot in their name."""
    return {name: value for name, value in read_broker_conf(broker_conf).read.settings.items() if "." in name}


def _leader(view: View) -> str | None:
    leader = view.leader()
    return None if leader is None else leader.broker


def _last_decision(log: str) -> Decision | None:
    """Return the last decision about moves, or None. Unreadable decisions count as none, because a plan does not need them."""
    try:
        newest: Sequence[Decision] = open_decision_log(log).newest(_SEARCHED)
    except PeerError:
        return None
    return next((decision for decision in reversed(newest) if decision.kind == "shed"), None)


# How many decisions to search: between two rounds of the leader, all brokers record their splits and merges.
_SEARCHED = 100


def _without_load(log: str, forecast: Forecast) -> NoFreshLoad:
    apart = [f"{broker.broker}: {broker.apart}" for broker in forecast.brokers]
    others = f" (and likewise {len(apart) - 1} others)" if len(apart) > 1 else ""
    problem = f"{apart[0]}{others}" if apart else "no broker is alive"
    advice = (
        f"start a load worker (equipoise load-worker --log {quote(log)}), and read what the brokers log about their reports"
        if log.startswith("kafka:")
        else "read what the brokers log about their reports, and check the clock of this machine"
    )
    return NoFreshLoad(log=log, problem=problem, advice=advice if apart else "start one (equipoise broker)")
