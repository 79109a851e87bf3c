"""Define `equipoise plan`: forecast a balancing round from the channel and the load reports,
without a broker.

`shedder` plans the round, `brokers.balancing.forecast` computes its effect,
`brokers.cli.commands.forecasts` prints it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from threading import Event
from typing import Annotated, TypeVar

import typer

from equipoise.brokers.balancing.controls import standing_controls
from equipoise.brokers.balancing.decisions import Decision, Kind
from equipoise.brokers.balancing.forecast import Forecast
from equipoise.brokers.balancing.planning import cluster_snapshot_of, foreseen, fresh, moving_in
from equipoise.brokers.balancing.saved_plans import SavedPlan, read_plan, saved_plan
from equipoise.brokers.balancing.settings.balancing_settings import (
    SHEDDERS,
    BalancingSettings,
    placement_of,
)
from equipoise.brokers.balancing.settings.setting_values import with_values
from equipoise.brokers.balancing.settings.settings_records import settings_in
from equipoise.brokers.cli.broker_conf import read_broker_conf
from equipoise.brokers.cli.commands.forecasts import ForecastBasis, document_of, print_forecast
from equipoise.brokers.cli.options import Admin, BrokerConfOption, file, pairs
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import print_json
from equipoise.brokers.decision_log import newest_decisions
from equipoise.brokers.errors import InvalidRequest, NoFreshLoad, Rejected
from equipoise.brokers.load.bus import LoadBus
from equipoise.brokers.operations.access import until
from equipoise.brokers.operations.moves import transfer_batch
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.channel.core.errors import PeerError
from equipoise.channel.core.records import Reason
from equipoise.channel.core.view import View
from equipoise.channel.log.blocking_view import read_on
from equipoise.channel.system.stop_signals import first_stop_signal
from equipoise.shedder.plan import Budget, Move

app = group("Show what the balancer would move now, and what blocks further moves.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of a command that makes a plan."""

    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Override a setting for this dry run. Repeatable.",
            show_default=False,
        ),
    ] = None
    broker_conf: BrokerConfOption = None
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=file,
            help="Write the plan to this file, to apply it.",
            show_default=False,
        ),
    ] = None

    @property
    def is_given(self) -> bool:
        """Whether any of these options is given."""
        return bool(self.changes) or self.broker_conf is not None or self.output is not None

    def given(self, shedder: str | None) -> dict[str, str]:
        """Return the settings that `--set` and a shedder override."""
        return pairs("--set", self.changes or ()) | (
            {} if shedder is None else {"balancing.shedder": shedder}
        )

    def base(self, defaults: BalancingSettings) -> BalancingSettings:
        """Return the default settings with those of `--broker-conf`."""
        if self.broker_conf is None:
            return defaults
        # Only settings of balancing have a dot in their name.
        read = read_broker_conf(self.broker_conf).read.settings
        return with_values(defaults, {name: value for name, value in read.items() if "." in name})

    def write(self, text: str) -> None:
        """Write a plan to the file of `--output`, if there is one. Raise `InvalidRequest`."""
        if self.output is not None:
            try:
                self.output.write_text(text, encoding="utf-8")
            except OSError as error:
                raise InvalidRequest(
                    what=f"the file {self.output}",
                    problem=f"the plan cannot be written to it: {error.strerror}",
                ) from error


_Plan = TypeVar("_Plan")


def plan_in(path: Path, read: Callable[[bytes], _Plan]) -> _Plan:
    """Return the plan in a file. Raise `InvalidRequest`."""
    try:
        return read(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(
            what=f"the plan {path}", problem=f"its file cannot be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise InvalidRequest(what=f"the plan {path}", problem=str(error)) from error


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
    apply: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=file,
            help="Carry out the plan in this file, unless the cluster has changed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show what the balancer would move now, and what blocks further moves.

    Without --apply, this is a dry run: it reads the channel and the load reports, and changes
    nothing. The settings on the channel override those of --broker-conf, which override the
    defaults. It does not know the settings that brokers got when they started.

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
        _apply(plan_in(apply, read_plan), admin)
        return
    given, base = options.given(shedder), options.base(BalancingSettings())
    with admin.reading() as access:
        view = access.view
        settings = with_values(settings_in(view, base), given)
        summaries = LoadBus(admin.log).latest()
        now_ms = time.time_ns() // 1_000_000
        newest = _newest_decisions(admin.log)
        cluster = cluster_snapshot_of(view, summaries, settings, now_ms=now_ms)
        placement = placement_of(settings, fresh(summaries, settings, now_ms=now_ms))
        budget, at_ms = _budget(view, newest.get("shed"))
        strategy, forecast = foreseen(cluster, settings, placement, budget=budget, at_ms=at_ms)
        controls = standing_controls(view, now_ms)
        saved, leader = saved_plan(view, forecast.plan, settings.balancing), _leader(view)
        seen = ForecastBasis(
            plan=saved.id,
            log=admin.log,
            at_ms=now_ms,
            offset=view.offset,
            leader=leader,
            newest=newest,
            strategy=strategy,
            controls=controls,
        )
    if forecast.before is None:
        raise _without_load(admin.log, forecast)
    options.write(saved.text())
    if admin.as_json:
        print_json(document_of(seen, settings, forecast))
    else:
        print_forecast(seen, settings, forecast)


def _apply(plan: SavedPlan, admin: Admin) -> None:
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


def _leader(view: View) -> str | None:
    leader = view.leader()
    return None if leader is None else leader.broker


def _budget(view: View, decision: Decision | None) -> tuple[Budget | None, int]:
    """Return the leader's budget of moved load and its time, if its last decision has it."""
    leader = view.leader()
    if leader is None or decision is None or decision.broker != leader.broker:
        return None, 0
    is_its_own = decision.at_ms >= leader.joined.timestamp_ms
    return (decision.budget, decision.at_ms) if is_its_own else (None, 0)


def _newest_decisions(log: str) -> Mapping[Kind, Decision]:
    """Return the newest decision of each kind. Unreadable decisions count as none, because a plan
    does not need them.
    """
    try:
        return {decision.kind: decision for decision in newest_decisions(log, _SEARCHED)}
    except PeerError:
        return {}


# How many decisions to search: between two rounds of the leader, all brokers record their splits
# and merges.
_SEARCHED = 100


def _without_load(log: str, forecast: Forecast) -> NoFreshLoad:
    apart = [f"{broker.broker}: {broker.apart}" for broker in forecast.brokers]
    others = f" (and likewise {len(apart) - 1} others)" if len(apart) > 1 else ""
    problem = f"{apart[0]}{others}" if apart else "no broker is alive"
    advice = (
        f"start a load worker (equipoise load-worker --log {quote(log)}), and read what the brokers"
        " log about their reports"
        if log.startswith("kafka:")
        else "read what the brokers log about their reports, and check the clock of this machine"
    )
    return NoFreshLoad(
        log=log, problem=problem, advice=advice if apart else "start one (equipoise broker)"
    )
