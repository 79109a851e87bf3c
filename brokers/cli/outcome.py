"""Turn errors into exit codes and error lines.

A command lets an `EquipoiseError` pass; the error is caught and printed here.
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
    InvalidConfig,
    Rejected,
)
from equipoise.channel.core.errors import Bug, CallerError, EquipoiseError, OperatorError
from equipoise.channel.system.log_lines import printable

if TYPE_CHECKING:
    from typer._click import Context

JSON_FLAG: Final = "--json"

_JSON_WANTED: Final = "equipoise.json"
"""The key in a context's `meta` that stores whether errors are printed as JSON."""

# The library's usage error has no public name, but a public subclass.
_UsageError: Final = cast("type[typer.BadParameter]", typer.BadParameter.__base__)

_match_negative: Final = re.compile(r"-\d").match

STANDARD_OUTPUT: Final = "the standard output"

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors that only a write can cause. An error without a file name comes from standard output,
because all other outputs are named."""

# A shell reports a program that a signal ended as this plus the signal's number.
_KILLED_BY: Final = 128


class ExitCode(IntEnum):
    """The exit codes of commands. 130 (Ctrl-C) and 141 (closed pipe) are the shell's own."""

    OK = 0
    REFUSED = 1
    """The channel refused the request, a move was cancelled, or a check found something."""
    USAGE = 2
    """The command line is wrong: an option, a name, or a missing file."""
    UNAVAILABLE = 3
    """The log, a broker or the answer was not available in time. Trying again may help."""
    OPERATOR = 4
    """An operator must act first: damaged log, full disk, process still running. Also used for
    bugs."""


_CODES: Final[tuple[tuple[type[EquipoiseError], ExitCode], ...]] = (
    (Rejected, ExitCode.REFUSED),
    (CallerError, ExitCode.USAGE),
    # In commands, settings come from the command line.
    (InvalidConfig, ExitCode.USAGE),
    (OperatorError, ExitCode.OPERATOR),
    (Bug, ExitCode.OPERATOR),
)

_REFUSALS: Final = frozenset({"Cancelled", "DestinationForbidden", "NoFreshLoad"})
"""The codes of other errors that are refusals: the state of the cluster forbids it."""


def exit_code_of(error: EquipoiseError) -> ExitCode:
    """Return the exit code for an error, by who must act. A refusal has its own code; other errors
    may be temporary.
    """
    if error.code in _REFUSALS:
        return ExitCode.REFUSED
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.UNAVAILABLE)


def print_error(error: Exception, *, as_json: bool) -> None:
    """Print one line to standard error, or a JSON object with the error's attributes."""
    if as_json:
        attributes = dict(vars(error)) if isinstance(error, EquipoiseError) else {}
        code = attributes.pop("code", type(error).__name__)
        typer.echo(
            json.dumps({"error": code, "message": str(error), **attributes}, default=str), err=True
        )
    else:
        typer.secho(f"error: {printable(str(error))}", fg=typer.colors.RED, err=True)


@contextmanager
def _usage_errors(*, as_json: bool) -> Iterator[None]:
    """Print a usage error as a JSON object, or as the library does, with the usage line."""
    try:
        yield
    except _UsageError as error:
        # The parser reads a negative number as an option.
        if _match_negative(getattr(error, "option_name", "")):
            error.message = f"{error.message} (negative numbers are not allowed)"
        if not as_json:
            raise
        usage = "" if error.ctx is None else error.ctx.get_usage().removeprefix("Usage: ")
        typer.echo(
            json.dumps(
                {"error": type(error).__name__, "message": error.format_message(), "usage": usage}
            ),
            err=True,
        )
        raise typer.Exit(ExitCode.USAGE) from error


@contextmanager
def _ended(*, as_json: bool) -> Iterator[None]:
    """Turn an expected error into one error line and an exit code."""
    try:
        with _usage_errors(as_json=as_json):
            yield
    except EquipoiseError as error:
        print_error(error, as_json=as_json)
        raise typer.Exit(exit_code_of(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(_KILLED_BY + signal.SIGINT) from None
    except BrokenPipeError:
        # Discard buffered output, so that flushing it does not fail again when the interpreter
        # ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(_KILLED_BY + signal.SIGPIPE) from None
    except OSError as error:
        is_output = error.filename is None and error.errno in _FULL
        print_error(output_failed(STANDARD_OUTPUT, error) if is_output else error, as_json=as_json)
        raise typer.Exit(ExitCode.OPERATOR) from error


def output_failed(output: str, error: OSError) -> OperatorError:
    """Return the error for a failed write to `output`."""
    problem = error.strerror or str(error)
    advice = "free space on its disk, or write to another place, and run the command again"
    return OperatorError(f"{output} cannot be written: {problem}; {advice}")


def wants_json(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for JSON. This runs before parsing, because parse errors
    are printed as JSON too.
    """
    return JSON_FLAG in arguments[: arguments.index("--") if "--" in arguments else None]


def group(text: str) -> typer.Typer:
    """Create a group of commands, or a single one, whose help begins with `text`.

    Help is plain text: it fits a narrow terminal, shows brackets unchanged, and starts twice as
    fast.
    """
    return typer.Typer(help=text, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


class Commands(TyperGroup):
    """All commands. Expected errors become a line and an exit code; Ctrl-C and a closed pipe print
    none.
    """

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: object
    ) -> Context:
        """Parse what precedes the name of a command."""
        as_json = wants_json(args)
        with _ended(as_json=as_json):
            context = super().make_context(info_name, args, parent, **extra)
        context.meta[_JSON_WANTED] = as_json
        return context

    # Typer hands over its own context, and no other.
    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]
        """Run the command of the command line."""
        as_json: bool = ctx.meta[_JSON_WANTED]
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                # Characters missing from the encoding must not end a command.
                stream.reconfigure(errors="backslashreplace")
        with _ended(as_json=as_json):
            result = super().invoke(ctx)
            typer.echo(nl=False)  # Flush, so that an output error is raised here.
        return result
