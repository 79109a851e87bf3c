"""Define `equipoise balancing`: turn balancing on or off, and change its settings on the
channel.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from equipoise.brokers.balancing.controls import controls_in, standing_controls
from equipoise.brokers.balancing.policies import Control
from equipoise.brokers.balancing.settings.balancing_settings import BalancingSettings
from equipoise.brokers.balancing.settings.setting_values import (
    CHOICES,
    SETTINGS,
    format_value,
    value_in,
)
from equipoise.brokers.balancing.settings.settings_records import (
    KEY,
    Changed,
    Changes,
    SettingsChange,
    change_in,
    changed_by,
    differences,
    document_of,
    problems_in,
    settings_in,
    settings_of,
)
from equipoise.brokers.cli import broker_conf
from equipoise.brokers.cli.channel_options import Admin, Channel
from equipoise.brokers.cli.moments import duration, end_ms, time_of
from equipoise.brokers.cli.options import ReasonOption, pairs
from equipoise.brokers.cli.outcome import ExitCode, group
from equipoise.brokers.cli.output import FOR_PEOPLE, Output, Row, print_json, print_line
from equipoise.brokers.cli.rows import control_line
from equipoise.brokers.errors import counted
from equipoise.brokers.operations.access import Access, folded_to_end
from equipoise.brokers.operations.on_channel import ChannelPort, run
from equipoise.brokers.operations.verbs import change_settings, pause_balancing, resume_balancing
from equipoise.channel.core.reader import Folded
from equipoise.channel.core.view import View

app = group("Turn balancing on or off, and change its settings.")

DEFAULTS: Final = BalancingSettings()

_FIELD_CHARACTERS: Final = max(len(name.partition(".")[2]) for name in SETTINGS)
_VALUE_CHARACTERS: Final = max(len(choice) for choices in CHOICES.values() for choice in choices)

_ENABLED: Final = "balancing.enabled"
_PARTS: Final = ("balancing.shedding", "balancing.splitting", "balancing.merging")
_HISTORY_COLUMNS: Final = ("offset", "time", "by", "setting", "before", "after")


@app.command()
def on(*, admin: Admin) -> None:
    """Turn balancing on, and show what stays off."""
    _change(admin, {_ENABLED: True})


@app.command()
def off(*, admin: Admin) -> None:
    """Turn balancing off.

    The balancer then starts no moves, splits or merges. Running ones end, and bundles without an
    owner are still placed.
    """
    _change(admin, {_ENABLED: False})


@app.command()
def pause(
    *,
    admin: Admin,
    reason: ReasonOption,
    duration_ms: Annotated[
        int,
        typer.Option(
            "--for",
            metavar="DURATION",
            parser=duration,
            help="Resume after this time (30m; s, m, h, d, w).",
            show_default=False,
        ),
    ],
) -> None:
    """Pause balancing for a while.

    The balancer starts no moves, splits or merges until then. Pause again to change the end or the
    reason.
    """
    admin.carry_out(pause_balancing, reason=reason, until_ms=end_ms(duration_ms))


@app.command()
def resume(*, admin: Admin) -> None:
    """End a pause of balancing before its time."""
    admin.carry_out(resume_balancing)


@app.command("set")
def set_settings(
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="For example transfer.target_deviation=0.1.",
            show_default=False,
        ),
    ],
    *,
    admin: Admin,
) -> None:
    """Set settings on the channel, for all brokers at once and at run time.

    Sets all of them, or none. Write `none` for no limit, and separate namespaces with commas.
    """
    _change(admin, dict(pairs("balancing set", changes)))


@app.command()
def unset(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...", help="For example transfer.target_deviation.", show_default=False
        ),
    ],
    *,
    admin: Admin,
) -> None:
    """Remove settings from the channel. Each broker then uses its own, or the default."""
    _change(admin, dict.fromkeys(names))


def _change(admin: Admin, changes: Changes) -> None:
    with admin.acting() as access:
        change = run(change_settings(ChannelPort(access), changes))
        off, controls = _still_off(access.view) if changes.get(_ENABLED) else ((), ())
    if admin.as_json:
        still = (
            {"still_off": list(off), "controls": [asdict(control) for control in controls]}
            if changes.get(_ENABLED)
            else {}
        )
        print_json({**change.document, **still})
        return
    made = (
        f"{counted(len(change.made), 'setting')} changed"
        if change.made
        else "nothing changed, the channel had this already"
    )
    print_line(f"accepted at offset {change.offset}: {made}")
    for one in change.made:
        print_line(str(one))
    for name in off:
        print_line(
            f"{name} stays off: the channel has {name}=false; turn it on: equipoise balancing set"
            f" {name}=true"
        )
    for control in controls:
        print_line(f"still {control_line(control)}")


def _still_off(view: View) -> tuple[Sequence[str], Sequence[Control]]:
    """Return what the channel keeps from being balanced although balancing is on: settings, and the
    pause and freezes that count now.
    """
    held, settings = settings_of(document_of(view)), settings_in(view, DEFAULTS)
    controls = controls_in(view, time.time_ns() // 1_000_000)
    paused = () if controls.pause is None else (controls.pause,)
    off = [name for name in _PARTS if name in held and not value_in(settings, name)]
    return off, (*paused, *(controls.frozen[name] for name in sorted(controls.frozen)))


@app.command()
def show(
    *,
    channel: Channel,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help=(
                "Show all settings, and who set each at which offset, if the log still has the"
                " record."
            ),
        ),
    ] = False,
) -> None:
    """Show the settings on the channel.

    For all other settings a broker uses those that it was started with, or the default.
    """
    latest: dict[str, SettingsChange] = {}
    with channel.unread() if everything else channel.reading() as access:
        for _, change in _history(access) if everything else ():
            latest |= {one.setting: change for one in change.made}
        view = access.view
    rows = [row for row in _setting_rows(view, latest) if everything or row["is_set"]]
    entry = view.policies.get(KEY)
    problems = problems_in(view, DEFAULTS)
    controls = standing_controls(view, time.time_ns() // 1_000_000)
    last = None if entry is None else {"offset": entry.last, "by": changed_by(document_of(view))}
    if channel.as_json:
        print_json(
            {
                "settings": rows,
                "changed": last,
                "problems": list(problems),
                "controls": [asdict(control) for control in controls],
            }
        )
        return
    if everything:
        for line in _grouped(rows):
            print_line(line)
    else:
        nothing = (
            "the channel has no settings: each broker uses those that it was started with, or the"
            " defaults"
        )
        FOR_PEOPLE.print_rows(rows, columns=("setting", "value", "default"), nothing=nothing)
    for control in controls:
        print_line(control_line(control))
    for problem in problems:
        print_line(f"cannot be read: {problem}", color=typer.colors.RED)
    if last is not None:
        print_line(
            f"last changed at offset {last['offset']}" + (f" by {last['by']}" if last["by"] else "")
        )


def _setting_rows(view: View, latest: Mapping[str, SettingsChange]) -> list[Row]:
    """Return all settings, and of those on the channel their `latest` change, where it is known."""
    settings, held = settings_in(view, DEFAULTS), settings_of(document_of(view))
    changes = {name: change for name, change in latest.items() if name in held}
    return [
        {
            "setting": name,
            "value": format_value(value_in(settings, name)),
            "default": format_value(setting.default),
            "is_set": name in held,
            "by": changes[name].by if name in changes else None,
            "offset": changes[name].offset if name in changes else None,
        }
        for name, setting in SETTINGS.items()
    ]


@app.command()
def history(*, channel: Channel) -> None:
    """Show all changes of settings, with their author and the previous value, as far back as the
    log goes.
    """
    with channel.unread() as access:
        beginning, began_with = access.view.offset, document_of(access.view)
        changes = tuple(_history(access))
    rows: list[Row] = [
        {"offset": change.offset, "time": time_of(folded), "by": change.by, **_row(one)}
        for folded, change in changes
        for one in change.made
    ]
    if began_with:
        before = {"offset": beginning, "time": "", "by": changed_by(began_with)}
        rows = [{**before, **_row(one)} for one in differences({}, began_with)] + rows
    channel.print_rows(rows, columns=_HISTORY_COLUMNS, nothing="no setting was ever changed")


@app.command()
def read(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="A broker.conf of Pulsar.",
            show_default=False,
        ),
    ],
    *,
    results: Output,
) -> None:
    """Show which settings a broker would read from a broker.conf. Starts nothing.

    Entries without a meaning here are listed with the reason. Exit code 1: an entry was not
    understood.
    """
    conf = broker_conf.read_broker_conf(file)
    if results.as_json:
        print_json(broker_conf.document_of(conf))
    else:
        broker_conf.print_entries(conf)
    if conf.read.not_understood:
        raise typer.Exit(ExitCode.REFUSED)


def _grouped(rows: Iterable[Row]) -> Iterator[str]:
    """Yield all settings by group, one line each, with the default if it differs and who set the
    value.
    """
    group = ""
    for row in rows:
        above, _, field = str(row["setting"]).partition(".")
        if above != group:
            group = above
            yield group
        default = f"default {row['default']}" if row["value"] != row["default"] else ""
        by = (
            f"set by {row['by']} at offset {row['offset']}"
            if row["by"] is not None
            else "set"
            if row["is_set"]
            else ""
        )
        yield (
            f"  {field:<{_FIELD_CHARACTERS}}  {row['value']!s:<{_VALUE_CHARACTERS}} "
            f" {'; '.join(filter(None, (default, by)))}".rstrip()
        )


def _history(access: Access) -> Iterator[tuple[Folded, SettingsChange]]:
    """Yield all settings changes on the log that are not yet folded, in order."""
    for folded in folded_to_end(access):
        change = change_in(folded)
        if change is not None:
            yield folded, change


def _row(one: Changed) -> Row:
    return {"setting": one.setting, "before": one.before, "after": one.after}
