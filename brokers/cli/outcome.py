"""How a command ends: its exit code, and the one line that it prints when it fails.

May live here: the exit codes, which error gives which, and the group of commands that turns errors into both. No command
catches an `EquipoiseError` to print it.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import TYPE_CHECKING, Final, cast

import typer
from typer.core import TyperGroup

from equipoise.brokers.errors import (
    Cancelled,
    DestinationForbidden,
    InvalidConfig,
    InvalidTiming,
    NoFreshLoad,
    OutputFailed,
    PolicyLeavesNobody,
    Rejected,
)
from equipoise.channel.core.errors import Bug, CallerError, EquipoiseError, OperatorError

if TYPE_CHECKING:
    from typer._click import Context

JSON_FLAG: Final = "--json"

_JSON_WANTED: Final = "equipoise.json"
"""The key in a context's `meta` under which it is remembered whether an error is to be printed as JSON."""

# What the library raises where a command line is wrong has no public name of its own, but a public child.
_UsageError: Final = cast("type[typer.BadParameter]", typer.BadParameter.__base__)

_match_negative: Final = re.compile(r"-\d").match

STANDARD_OUTPUT: Final = "the standard output"

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What only a write can meet. Where no file is named it was to the standard output: all that commands write to else is named."""

_KILLED_BY: Final = 128  # A shell's exit code for a program that a signal ended is this plus its number.


class ExitCode(IntEnum):
    """What the exit code of a command says. 130 (Ctrl-C) and 141 (nobody reads the output) are the shell's own."""

    OK = 0
    REFUSED = 1
    """The channel refused it, a move was cancelled, or a check found something."""
    USAGE = 2
    """The command line is wrong: an option, a name, a file that is not there."""
    UNAVAILABLE = 3
    """The log, a broker or the answer was not there in time; trying again later may work."""
    OPERATOR = 4
    """Somebody must act first: a damaged log, a full disk, a process that still runs. Also for a bug of ours."""


_CODES: Final[tuple[tuple[type[EquipoiseError], ExitCode], ...]] = (
    (Rejected, ExitCode.REFUSED),
    (Cancelled, ExitCode.REFUSED),
    (NoFreshLoad, ExitCode.REFUSED),
    # How the cluster is now stands against it, not how the command line is spelled.
    (DestinationForbidden, ExitCode.REFUSED),
    (PolicyLeavesNobody, ExitCode.REFUSED),
    (CallerError, ExitCode.USAGE),
    # Here it is the command line that settings come from.
    (InvalidConfig, ExitCode.USAGE),
    (InvalidTiming, ExitCode.USAGE),
    (OperatorError, ExitCode.OPERATOR),
    (Bug, ExitCode.OPERATOR),
)


def exit_code_of(error: EquipoiseError) -> ExitCode:
    """The exit code for an error: by who must act, but for a refusal, which is an answer. What remains may pass by itself."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.UNAVAILABLE)


def printable(text: str) -> str:
    """`text` on one line, with what a terminal would obey, or an encoding refuse, spelled out.

    Names, reasons and paths come from records, files and command lines, and may hold anything: line ends, escape sequences
    that rewrite the screen, lone surrogates.
    """
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def print_error(error: Exception, *, as_json: bool) -> None:
    """Print one line to the standard error; as JSON with the error's typed attributes."""
    if as_json:
        attributes = vars(error) if isinstance(error, EquipoiseError) else {}
        typer.echo(json.dumps({"error": type(error).__name__, "message": str(error), **attributes}, default=str), err=True)
    else:
        typer.secho(f"error: {printable(str(error))}", fg=typer.colors.RED, err=True)


@contextmanager
def _usage_errors(*, as_json: bool) -> Iterator[None]:
    """What is wrong with a command line: as JSON one object; otherwise as the library prints it, with the usage above."""
    try:
        yield
    except _UsageError as error:
        if _match_negative(getattr(error, "option_name", "")):  # The parser takes a number below zero for an option.
            error.message = f"{error.message} (and no number here is negative)"
        if not as_json:
            raise
        usage = "" if error.ctx is None else error.ctx.get_usage().removeprefix("Usage: ")
        typer.echo(json.dumps({"error": type(error).__name__, "message": error.format_message(), "usage": usage}), err=True)
        raise typer.Exit(ExitCode.USAGE) from error


@contextmanager
def _ended(*, as_json: bool) -> Iterator[None]:
    """What ends a command on purpose, as a line and an exit code."""
    try:
        with _usage_errors(as_json=as_json):
            yield
    except EquipoiseError as error:
        print_error(error, as_json=as_json)
        raise typer.Exit(exit_code_of(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(_KILLED_BY + signal.SIGINT) from None
    except BrokenPipeError:
        # Whatever is still buffered goes nowhere, instead of failing once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(_KILLED_BY + signal.SIGPIPE) from None
    except OSError as error:
        is_output = error.filename is None and error.errno in _FULL
        print_error(output_failed(STANDARD_OUTPUT, error) if is_output else error, as_json=as_json)
        raise typer.Exit(ExitCode.OPERATOR) from error


def output_failed(output: str, error: OSError) -> OutputFailed:
    """Our error for one that writing to `output` met."""
    return OutputFailed(output=output, problem=error.strerror or str(error))


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON, seen before it is parsed: an error of the parser is printed so, too."""
    return JSON_FLAG in arguments[: arguments.index("--") if "--" in arguments else None]


def group(text: str) -> typer.Typer:
    """A group of commands, or a lone one, whose help begins with `text`.

    Its help is plain text: that fits a narrow terminal, shows brackets as they are, and is there in half the time.
    """
    return typer.Typer(help=text, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


class Commands(TyperGroup):
    """All commands; an error that one raises on purpose becomes a line and an exit code, and Ctrl-C or a closed pipe neither."""

    def make_context(self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: object) -> Context:
        """Parse what stands before the name of a command."""
        as_json = wants_json(args)
        with _ended(as_json=as_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_JSON_WANTED] = as_json
        return context

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # Typer hands over its own context, and no other.
        """Run the command that the command line names."""
        as_json: bool = ctx.meta[_JSON_WANTED]
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")  # What an encoding does not have must not end a command.
        with _ended(as_json=as_json):
            result = super().invoke(ctx)
            typer.echo(nl=False)  # What is still buffered fails here, or not at all.
        return result
