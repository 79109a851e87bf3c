"""Print a forecast as a page for people, or a document for programs.

`brokers.balancing.forecast` computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Final, TypeVar

import typer

from equipoise.brokers.balancing.controls import Controls
from equipoise.brokers.balancing.decisions import Decision, Kind
from equipoise.brokers.balancing.forecast import BrokerForecast, Forbidden, Forecast
from equipoise.brokers.balancing.planning import OF_POLICIES, groups_in_play
from equipoise.brokers.balancing.policies import PAUSE_KEY, Control
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import (
    SETTINGS,
    format_value,
    value_in,
    with_values,
)
from equipoise.brokers.cli.broker_conf import read_broker_conf
from equipoise.brokers.cli.moments import ago, local_time
from equipoise.brokers.cli.options import BrokerConfOption, file, pairs
from equipoise.brokers.cli.output import Row, print_heading, print_line, print_table, print_wrapped
from equipoise.brokers.cli.rows import control_line
from equipoise.brokers.decision_log import document_of as decision_document
from equipoise.brokers.errors import counted, invalid_request
from equipoise.shedder.costs import Exchange
from equipoise.shedder.plan import Move
from equipoise.shedder.reported import format_percent

ApplyOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        parser=file,
        help="Carry out the plan in this file, unless the cluster has changed.",
        show_default=False,
    ),
]


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
        """Write a plan to the file of `--output`, if there is one. Raise `CallerError`."""
        if self.output is not None:
            try:
                self.output.write_text(text, encoding="utf-8")
            except OSError as error:
                raise invalid_request(
                    what=f"the file {self.output}",
                    problem=f"the plan cannot be written to it: {error.strerror}",
                ) from error


_Plan = TypeVar("_Plan")


def plan_in(path: Path, read: Callable[[bytes], _Plan]) -> _Plan:
    """Return the plan in a file. Raise `CallerError`."""
    try:
        return read(path.read_bytes())
    except OSError as error:
        raise invalid_request(
            what=f"the plan {path}", problem=f"its file cannot be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise invalid_request(what=f"the plan {path}", problem=str(error)) from error


_RESTING: Final = (
    "only the leader knows which bundles rest and which brokers cool down after a move: here all of"
    " them take part"
)
_DUE: Final = (
    "planned as if the load had been uneven for the number of rounds that the strategy waits"
)

_Value = TypeVar("_Value")

_MEGABYTE: Final = 1_000_000
_NAMED_MAX: Final = 3
_STAYS_MAX: Final = 8
_CONTROLS_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastBasis:
    """The basis of a forecast: Unix time, the channel's offset, the leader, and the newest decision
    of each kind.

    `plan` is the plan's id. `strategy` is the strategy of the round; see
    `brokers.balancing.planning.BalancingRound`. `controls` are all that count now. `unserved` are
    the namespaces that no broker that is up serves. `units` are those in which costs are declared.
    """

    plan: str
    log: str
    at_ms: int
    offset: int
    leader: str | None
    newest: Mapping[Kind, Decision]
    strategy: str
    controls: Sequence[Control]
    unserved: Sequence[str] = ()
    units: Mapping[str, Exchange] = field(default_factory=dict)

    @property
    def paused(self) -> str | None:
        """Why balancing is paused, or None."""
        return Controls(
            pause=next((control for control in self.controls if control.name == PAUSE_KEY), None)
        ).why_paused


# --- for programs ---


def document_of(seen: ForecastBasis, settings: BalancingSettings, forecast: Forecast) -> Row:
    """Return the whole forecast. Rates are per second, times are Unix time in milliseconds,
    fractions are not percentages.
    """
    return {
        "id": seen.plan,
        "log": seen.log,
        "at_ms": seen.at_ms,
        "offset": seen.offset,
        "leader": seen.leader,
        "shedder": settings.balancing.shedder,
        "strategy": seen.strategy,
        "settings": differing(settings),
        "assumed": list(_assumed(settings)),
        **effect_document(forecast),
        "last_decision": _decision(seen, "shed"),
        "last_outcome": _decision(seen, "outcome"),
        "paused": seen.paused,
        "controls": [asdict(control) for control in seen.controls],
        "unserved": list(seen.unserved),
        "units": {unit: asdict(each) for unit, each in seen.units.items()},
        "conclusion": conclusion(settings, forecast, seen.paused),
    }


def effect_document(forecast: Forecast) -> Row:
    """Return what a plan would do, and what it leaves."""
    plan = forecast.plan
    return {
        "measure": forecast.measure.kind,
        "brokers": [_broker_row(broker) for broker in forecast.brokers],
        "before": None if forecast.before is None else asdict(forecast.before),
        "after": None if forecast.after is None else asdict(forecast.after),
        "moves": [_move_row(forecast, move) for move in plan.moves],
        "moved": {
            "bytes_per_second": forecast.moved_bytes_per_second,
            "messages_per_second": forecast.moved_messages_per_second,
            "share": forecast.moved_share,
        },
        "forbidden": [asdict(each) for each in forecast.forbidden],
        "stays": [asdict(stay) for stay in plan.stays],
        "idle": None if plan.idle is None else asdict(plan.idle),
        "budget": None if plan.budget is None else asdict(plan.budget),
    }


def _decision(seen: ForecastBasis, kind: Kind) -> Row | None:
    decision = seen.newest.get(kind)
    return None if decision is None else decision_document(decision)


def _assumed(settings: BalancingSettings) -> Iterator[str]:
    """Yield what a leader knows and a dry run does not."""
    if settings.policy.waits_rounds:
        yield _DUE
    yield _RESTING


def differing(settings: BalancingSettings) -> dict[str, Row]:
    """Return the settings of a round that differ from the defaults, as text."""
    groups = groups_in_play(settings)
    return {
        name: {
            "value": format_value(value_in(settings, name)),
            "default": format_value(setting.default),
        }
        for name, setting in SETTINGS.items()
        if name.partition(".")[0] in groups and value_in(settings, name) != setting.default
    }


def _broker_row(broker: BrokerForecast) -> Row:
    return {
        "broker": broker.broker,
        "capacity": broker.capacity,
        "takes_part": broker.apart is None,
        "why_not": broker.apart,
        "before": asdict(broker.before),
        "after": asdict(broker.after),
    }


def _move_row(forecast: Forecast, move: Move) -> Row:
    traffic = forecast.traffic.get(move.bundle)
    return {
        **asdict(move),
        "placed": move.bundle in forecast.placed,
        "bytes_per_second": None if traffic is None else traffic.bytes_per_second,
        "messages_per_second": None if traffic is None else traffic.messages_per_second,
    }


# --- for people ---


def print_forecast(seen: ForecastBasis, settings: BalancingSettings, forecast: Forecast) -> None:
    """Print the page: the basis, the brokers, planned moves, forbidden moves, and the
    conclusion.
    """
    for line in _preface(seen, settings):
        print_wrapped(line, indent=2)
    print_effect(forecast)
    print_heading(conclusion(settings, forecast, seen.paused))


def print_effect(forecast: Forecast) -> None:
    """Print the brokers before and after, the moves, why they are made, and what keeps others."""
    print_heading("brokers")
    _print_brokers(forecast)
    if forecast.plan.moves:
        print_heading("moves")
        print_table(
            ("bundle", "from", "to", "MB/s", "messages/s"),
            [_move_cells(forecast, move) for move in forecast.plan.moves],
        )
        print_heading("why")
        # What follows the semicolon is about the one bundle, whose figures the table has.
        for reason in dict.fromkeys(move.reason.partition("; ")[0] for move in forecast.plan.moves):
            print_wrapped(reason, indent=2)
    if forecast.forbidden:
        print_heading("kept by policies")
        for each in forecast.forbidden:
            print_wrapped(_rule(each), indent=2)
    reasons, budget = _why_not_more(forecast), forecast.plan.budget
    # Without moves, it is the reason of the whole round.
    blocked = (
        budget.reason if budget is not None and budget.blocks and forecast.plan.moves else None
    )
    if reasons or blocked:
        print_heading("why not more" if forecast.plan.moves else "why not")
        if blocked:
            print_wrapped(blocked, indent=2)
        for subject, reason in list(reasons.items())[:_STAYS_MAX]:
            print_wrapped(f"{subject}: {reason}", indent=2)
        if len(reasons) > _STAYS_MAX:
            print_line(f"and {len(reasons) - _STAYS_MAX} more (use --json)")


def conclusion(settings: BalancingSettings, forecast: Forecast, paused: str | None = None) -> str:
    """Return the result in one or two sentences. `paused` is why balancing is paused."""
    rounds = settings.balancing
    off = next((name for name in ("enabled", "shedding") if not getattr(rounds, name)), None)
    stopped = paused if off is None else f"balancing.{off} is false"
    closing = "" if stopped is None else f" But the balancer moves nothing: {stopped}."
    if not forecast.plan.moves:
        idle = forecast.plan.idle
        return (
            "Nothing would move:"
            f" {idle.reason if idle is not None else 'no broker has too much load'}.{closing}"
        )
    assert forecast.before is not None, "a move has a source, so a broker takes part"
    assert forecast.after is not None, "as above"
    before, after = forecast.before.deviation, forecast.after.deviation
    verb = "fall" if after < before else "rise" if after > before else "stay"
    moved = _rate(forecast.moved_bytes_per_second, forecast.moved_messages_per_second)
    unknown = len(forecast.plan.moves) - len(forecast.traffic)
    note = f" (excluding {unknown} of unknown traffic)" if unknown else ""
    return (
        f"{counted(len(forecast.plan.moves), 'bundle')} would move, {moved},"
        f" {format_percent(forecast.moved_share)} of all throughput{note}; the deviation would"
        f" {verb} from {format_percent(before)} to {format_percent(after)}.{closing}"
    )


def _preface(seen: ForecastBasis, settings: BalancingSettings) -> Iterator[str]:
    shedder = settings.balancing.shedder
    rule = (
        f"first the bundles that violate {OF_POLICIES}, then {shedder}"
        if seen.strategy == OF_POLICIES
        else shedder
    )
    yield (
        f"{rule}, at {local_time(seen.at_ms)}, offset {seen.offset}; leader:"
        f" {seen.leader or 'none'}; plan {seen.plan}"
    )
    others = ", ".join(
        f"{name} {row['value']} ({row['default']})" for name, row in differing(settings).items()
    )
    yield f"settings (defaults): {others}" if others else "all settings are the defaults"
    yield "; ".join(_assumed(settings))
    yield from map(control_line, seen.controls[:_CONTROLS_MAX])
    if len(seen.controls) > _CONTROLS_MAX:
        yield f"and {len(seen.controls) - _CONTROLS_MAX} more (use --json)"
    if seen.unserved:
        named = ", ".join(seen.unserved[:_CONTROLS_MAX])
        more = len(seen.unserved) - _CONTROLS_MAX
        yield f"no broker that is up serves {named}{f' and {more} more' if more > 0 else ''}"
    yield from (each.sentence(unit) for unit, each in sorted(seen.units.items()))
    last, outcome = seen.newest.get("shed"), seen.newest.get("outcome")
    if last is None:
        yield "there is no recorded decision about moves"
    else:
        result, cause = last.outcome
        what = (
            f"{counted(len(last.plan.moves) + last.moves_left_out, 'move')}"
            if last.plan.moves
            else f"{result}, {cause}"
        )
        reason = f": {last.reason}" if last.reason else ""
        yield (
            f"last decision: {ago(seen.at_ms - last.at_ms)} by {last.broker} ({last.strategy}):"
            f" {what}{reason}"
        )
    if outcome is not None:
        took = (
            f"took {median(outcome.durations_ms.values()):.0f} ms at the median"
            if outcome.durations_ms
            else "were not done"
        )
        loads = "".join(f"; {each.sentence}" for each in outcome.brokers[:_NAMED_MAX])
        yield f"last outcome: {ago(seen.at_ms - outcome.at_ms)}: the moves {took}{loads}"


def _print_brokers(forecast: Forecast) -> None:
    assert forecast.before is not None, "a broker takes part"
    assert forecast.after is not None, "as above"
    by_cost = forecast.measure.kind == "cost"
    header = (
        "broker",
        "capacity",
        "bundles",
        "use",
        *(("cost",) if by_cost else ("MB/s", "messages/s")),
    )
    print_table(header, [_cells(broker, by_cost=by_cost) for broker in forecast.brokers])
    for broker in forecast.brokers:
        if broker.apart is not None:
            print_wrapped(f"* {broker.broker} takes no part: {broker.apart}", indent=2)
    deviation = _change(forecast.before.deviation, forecast.after.deviation, format_percent)
    mean = (
        "of the mean cost per capacity"
        if by_cost
        else f"around the mean use of {format_percent(forecast.before.mean)}"
    )
    print_line(f"deviation {deviation} {mean}")


def _cells(broker: BrokerForecast, *, by_cost: bool) -> tuple[str, ...]:
    before, after = broker.before, broker.after
    carried = (
        (_change(before.cost, after.cost, _percent_of_core),)
        if by_cost
        else (
            _change(
                before.bytes_per_second / _MEGABYTE, after.bytes_per_second / _MEGABYTE, _tenths
            ),
            _change(before.messages_per_second, after.messages_per_second, _count),
        )
    )
    return (
        broker.broker if broker.apart is None else f"{broker.broker} *",
        "-" if broker.capacity is None else str(broker.capacity),
        _change(before.bundles, after.bundles, str),
        (
            "-"
            if before.used is None or after.used is None
            else _change(before.used, after.used, format_percent)
        ),
        *carried,
    )


def _move_cells(forecast: Forecast, move: Move) -> tuple[str, ...]:
    is_placed = move.bundle in forecast.placed and move.destination is not None
    traffic = forecast.traffic.get(move.bundle)
    return (
        move.bundle,
        move.source,
        f"{move.destination or '-'}{' (by placement)' if is_placed else ''}",
        "-" if traffic is None else _tenths(traffic.bytes_per_second / _MEGABYTE),
        "-" if traffic is None else _count(traffic.messages_per_second),
    )


def _rule(each: Forbidden) -> str:
    return (
        f"{counted(len(each.bundles), 'bundle')} ({_named(each.bundles)}) not to"
        f" {_named(each.brokers)}: {each.reason}"
    )


def _why_not_more(forecast: Forecast) -> Mapping[str, str]:
    """Return the reasons of bundles and brokers that stay, by subject.

    Brokers that take no part are printed above, the reason of the whole round below.
    """
    idle = forecast.plan.idle
    apart = {broker.broker for broker in forecast.brokers if broker.apart is not None}
    return {
        stay.subject: stay.reason
        for stay in forecast.plan.stays
        if stay.subject not in apart and (idle is None or stay.reason != idle.reason)
    }


def _named(names: tuple[str, ...]) -> str:
    left_out = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {left_out} more" if left_out > 0 else "")


def _change(before: _Value, after: _Value, formatted: Callable[[_Value], str]) -> str:
    """Return a figure before and after, or once if both look the same."""
    first, second = formatted(before), formatted(after)
    return first if first == second else f"{first} -> {second}"


def _rate(bytes_per_second: float, messages_per_second: float) -> str:
    return (
        f"{_tenths(bytes_per_second / _MEGABYTE)} MB/s and {_count(messages_per_second)} messages/s"
    )


def _tenths(number: float) -> str:
    return f"{number:,.1f}"


def _percent_of_core(cost: float) -> str:
    """Return a cost in the unit of capacities."""
    return _tenths(100 * cost)


def _count(number: float) -> str:
    return f"{number:,.0f}"
