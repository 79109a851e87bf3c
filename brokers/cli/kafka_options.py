"""The settings of Kafka's client on the command line: the same options on every command that opens a log.

May live here: those options, how commands get them, and how what was given is shown. They set the environment of this process, so
that what opens a log finds them there, and so do the processes that it starts.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from equipoise.brokers.cli.output import Row, print_json
from equipoise.channel.kafka.lines import LIBRARY_LOGGER
from equipoise.channel.kafka.settings import CONFIG_FILE_VARIABLE, CONFIG_VARIABLE, as_text, checked, masked, parsed

if TYPE_CHECKING:
    from typer._click import Command, Parameter

PrintConfigOption = Annotated[
    bool, typer.Option("--print-config", help="Print the settings in force as JSON, secrets masked, and start nothing.")
]

_LOGS: Final = frozenset({"log", "to"})
"""The parameters that name a log; a command that opens one has one of them."""


def _set_config(given: list[str] | None) -> list[str] | None:
    """Put what was given before what the environment says."""
    if given:
        settings = parsed(os.environ.get(CONFIG_VARIABLE, ""))
        for text in given:
            settings |= parsed(f"{text}\n")  # A line, so that a value may hold semicolons.
        os.environ[CONFIG_VARIABLE] = as_text(checked(settings))
    return given


def _set_config_file(given: Path | None) -> Path | None:
    if given is not None:
        os.environ[CONFIG_FILE_VARIABLE] = str(given.absolute())  # A child may have another working folder.
    return given


_pattern: Final = typer.Typer(add_completion=False)


@_pattern.command()
def _as_on_all_commands(
    *,
    kafka_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            callback=_set_config,
            help=f"A setting of Kafka's client, in librdkafka's names; may be repeated. Also in {CONFIG_VARIABLE}.",
            show_default=False,
        ),
    ] = None,
    kafka_config_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=_set_config_file,
            exists=True,
            dir_okay=False,
            help=f"A file of such lines; the place for passwords. Also in {CONFIG_FILE_VARIABLE}.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Never run: its options are what the other commands get."""


def hush_kafka() -> None:
    """Keep what the client's library logs from the standard error of a command, whose one line of error has the reason.

    Where a command sets up logging, as a broker does, it is logged there.
    """
    logging.getLogger(LIBRARY_LOGGER).addHandler(logging.NullHandler())


def add_kafka_options(command: Command) -> None:
    """Give the options to a command that opens a log, or to those within a group."""
    for child in getattr(command, "commands", {}).values():
        add_kafka_options(child)
    at = next((place for place, parameter in enumerate(command.params) if parameter.name in _LOGS), None)
    if at is not None:
        command.params[at + 1 : at + 1] = _options()


def _options() -> list[Parameter]:
    options = [parameter for parameter in typer.main.get_command(_pattern).params if parameter.name in _as_on_all_commands.__annotations__]
    for option in options:
        option.expose_value = False  # The environment has it; the command itself has nothing to do with it.
    return options


def print_config(settings: Row) -> None:
    """Print settings, and those of Kafka's client. Raises `InvalidKafkaSetting`."""
    from equipoise.channel.log.open_log import kafka_settings

    print_json({**settings, "kafka": masked(kafka_settings())})
