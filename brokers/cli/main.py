"""Define the command line `equipoise` and its table of command groups.

A group's module is imported only when one of its commands runs, which keeps `--help` and small
commands fast.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from equipoise.brokers.cli.kafka_options import add_kafka_options, silence_kafka
from equipoise.brokers.cli.outcome import JSON_FLAG, Commands

if TYPE_CHECKING:
    from typer._click import Command, Context

GROUPS: Final = {
    "broker": ("equipoise.brokers.cli.commands.broker", "Run one broker in the foreground."),
    "up": ("equipoise.brokers.cli.commands.up", "Run a cluster of brokers on this machine."),
    "namespaces": (
        "equipoise.brokers.cli.commands.namespaces",
        "Create and delete namespaces; move, split and merge their bundles.",
    ),
    "bundles": (
        "equipoise.brokers.cli.commands.bundles",
        "Show bundles and their owners; cancel moves.",
    ),
    "policies": (
        "equipoise.brokers.cli.commands.policy_commands",
        "Define which brokers may own which bundles.",
    ),
    "brokers": (
        "equipoise.brokers.cli.commands.broker_commands",
        "List brokers and their status; drain a broker; declare a dead one dead.",
    ),
    "plan": (
        "equipoise.brokers.cli.commands.plan",
        "Show what the balancer would move now, and what blocks further moves.",
    ),
    "decisions": (
        "equipoise.brokers.cli.commands.decision_commands",
        "Show what the balancer decided, and why.",
    ),
    "balancing": (
        "equipoise.brokers.cli.commands.balancing_commands",
        "Turn balancing on or off, and change its settings.",
    ),
    "lab": ("equipoise.brokers.cli.lab_commands", "Measure balancing policies on load traces."),
    "pulsar": (
        "equipoise.brokers.cli.pulsar_commands",
        "See, audit and balance an Apache Pulsar cluster.",
    ),
    "channel": (
        "equipoise.brokers.cli.commands.channel_commands",
        "Read the log, show a bundle's history, verify everything.",
    ),
    "archive": (
        "equipoise.brokers.cli.commands.history_commands:archive_app",
        "Store every record of a channel, and what it changed, in tables of Delta Lake.",
    ),
    "audit": (
        "equipoise.brokers.cli.commands.history_commands:audit_app",
        "Check every record of a channel as it arrives.",
    ),
    "rights": (
        "equipoise.brokers.cli.commands.policy_commands:rights",
        "Grant roles rights in the cluster, and list who may do what.",
    ),
    "tokens": (
        "equipoise.brokers.cli.commands.token_commands",
        "Make and check keys and tokens for authentication.",
    ),
    "report": (
        "equipoise.brokers.cli.commands.history_commands:report_app",
        "Write a page about a period: findings, moves and their reasons, owners.",
    ),
    "spark": (
        "equipoise.brokers.cli.commands.spark_commands",
        "Audit and archive a channel in Spark; run the laboratory.",
    ),
}
"""By name: the module whose `app` (or other attribute) implements it, and its text in `--help`."""

_HELP: Final = (
    "An event-sourced load balancer for services: one log decides who owns what. "
    "Exit codes: 0 done, 1 refused, 2 usage, 3 unavailable, 4 operator must act."
)


class Equipoise(Commands):
    """All commands. A group is imported when the command line names it."""

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Import and return the command that `args` begin with."""
        silence_kafka()
        if args and args[0] in GROUPS:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)


@cache
def load(name: str) -> Command:
    """Return the command or group with this name in the table."""
    module, _, attribute = GROUPS[name][0].partition(":")
    app = getattr(import_module(module), attribute or "app")
    command = typer.main.get_command(fill_options(app))
    command.name = name
    add_kafka_options(command)
    return command


app = typer.Typer(
    cls=Equipoise,
    name="equipoise",
    help=_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, (_, _help) in GROUPS.items():
    app.add_typer(typer.Typer(help=_help), name=_name)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"equipoise {version('equipoise')}")
        raise typer.Exit


@app.callback()
def equipoise(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that precede the name of a command."""


# --- sets of options ---
# A set is a dataclass: each field is an option, and the methods do what commands do with them. A
# command names a set as the type of a parameter, and gets it filled.


_LAST: Final = ("admin_name", "timeout", "as_json")
"""The options that end each command's list, in this order. All others are at the place of their
set."""

_ErrorsAsJson: Final = Annotated[bool, typer.Option(JSON_FLAG, help="Print errors as JSON.")]


def fill_options(app: typer.Typer) -> typer.Typer:
    """Give each command of a group the options of its sets, and `--json`, and return the group."""
    for command in app.registered_commands:
        assert command.callback is not None, "it was registered with its function"
        command.callback = with_options(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None, "it was registered with its commands"
        fill_options(group.typer_instance)
    return app


def with_options(command: Callable[..., object]) -> Callable[..., object]:
    """Return a command with the options of its sets in place of the sets, and with `--json`.

    A command without the set `Output` prints no results, so `--json` is about its errors alone.
    """
    own = inspect.signature(command, eval_str=True)
    sets: dict[str, type[Any]] = {
        name: each.annotation
        for name, each in own.parameters.items()
        if isinstance(each.annotation, type) and is_dataclass(each.annotation)
    }
    parameters: list[inspect.Parameter] = []
    for name, each in own.parameters.items():
        parameters += _options_of(sets[name]) if name in sets else [each]
    has_json = any(each.name == "as_json" for each in parameters)
    if not has_json:
        parameters.append(_parameter("as_json", _ErrorsAsJson, default=False))

    @functools.wraps(command)
    def run(**given: object) -> object:
        if not has_json:
            del given["as_json"]  # `outcome` has read it from the command line.
        filled = {
            name: kind(**{field.name: given.pop(field.name) for field in _fields(kind)})
            for name, kind in sets.items()
        }
        return command(**given, **filled)

    first = [each for each in parameters if each.name not in _LAST]
    last = sorted(
        (each for each in parameters if each.name in _LAST), key=lambda each: _LAST.index(each.name)
    )
    run.__signature__ = own.replace(parameters=[*first, *last])  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _options_of(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        _parameter(
            field.name,
            hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in _fields(kind)
    ]


def _fields(kind: type[Any]) -> list[Field[Any]]:
    return [field for field in fields(kind) if field.init]


def _parameter(name: str, annotation: object, *, default: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
