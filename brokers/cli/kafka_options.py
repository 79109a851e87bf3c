"""Add the options of Kafka's client to every command that opens a log.

The options set this process's environment, so that the log and child processes find them there.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from equipoise.brokers.cli.output import Row, print_json
from equipoise.channel.kafka.lines import LIBRARY_LOGGER
from equipoise.channel.kafka.settings import (
    CONFIG_FILE_VARIABLE,
    CONFIG_VARIABLE,
    as_text,
    checked,
    masked,
    parsed,
)

if TYPE_CHECKING:
    from typer._click import Command, Parameter

PrintConfigOption = Annotated[
    bool,
    typer.Option(
        "--print-config",
        help="Print the effective settings as JSON, with secrets masked, and exit.",
    ),
]

_LOGS: Final = frozenset({"log", "to"})
"""The parameters that name a log. A command that opens a log has one of them."""


def _set_config(given: list[str] | None) -> list[str] | None:
    """Put the given settings before those of the environment."""
    if given:
        settings = parsed(os.environ.get(CONFIG_VARIABLE, ""))
        for text in given:
            settings |= parsed(f"{text}\n")  # One line, so that a value may contain semicolons.
        os.environ[CONFIG_VARIABLE] = as_text(checked(settings))
    return given


def _set_config_file(given: Path | None) -> Path | None:
    if given is not None:
        # A child process may have another working directory.
        os.environ[CONFIG_FILE_VARIABLE] = str(given.absolute())
    return given


_pattern: Final = typer.Typer(add_completion=False)


@_pattern.command()
def _shared_options(
    *,
    kafka_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            callback=_set_config,
            help=(
                "Set an option of Kafka's client, by its librdkafka name. Repeatable. Also in"
                f" {CONFIG_VARIABLE}."
            ),
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
            help=(
                "Read such options from a file, for example passwords. Also in"
                f" {CONFIG_FILE_VARIABLE}."
            ),
            show_default=False,
        ),
    ] = None,
) -> None:
    """Declare the options that other commands get. Never called."""


def silence_kafka() -> None:
    """Keep the log of Kafka's library off a command's standard error: the command's one error line
    has the reason.

    Commands that set up logging, such as a broker, log it.
    """
    logging.getLogger(LIBRARY_LOGGER).addHandler(logging.NullHandler())


def add_kafka_options(command: Command) -> None:
    """Add the options to a command that opens a log, or to all such commands of a group."""
    for child in getattr(command, "commands", {}).values():
        add_kafka_options(child)
    at = next(
        (place for place, parameter in enumerate(command.params) if parameter.name in _LOGS), None
    )
    if at is not None:
        command.params[at + 1 : at + 1] = _options()


def _options() -> list[Parameter]:
    options = [
        parameter
        for parameter in typer.main.get_command(_pattern).params
        if parameter.name in _shared_options.__annotations__
    ]
    for option in options:
        # The value is in the environment; the command itself does not need it.
        option.expose_value = False
    return options


def print_config(settings: Row) -> None:
    """Print settings and those of Kafka's client. Raise `CallerError`."""
    from equipoise.channel.log.open_log import kafka_settings

    print_json({**settings, "kafka": masked(kafka_settings())})
