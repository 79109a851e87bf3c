"""Print rows as a table or JSON, and facts as a sentence or JSON.

`outcome` prints errors.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Final

import typer

from equipoise.brokers.cli.outcome import printable

Row = Mapping[str, object]
"""Names and JSON values."""

_PIPE_COLUMNS: Final = 10_000
"""Without a terminal nothing is wrapped: one row is one line, for grep and awk."""


def print_json(document: object) -> None:
    """Print a document on one line of ASCII, which every terminal and encoding accepts."""
    typer.echo(json.dumps(document))


def print_line(text: str, *, color: str | None = None) -> None:
    """Print one line with unprintable characters escaped. Color applies on a terminal only."""
    typer.secho(printable(text), fg=color)


def print_heading(text: str) -> None:
    """Print an empty line and a heading, bold on a terminal."""
    typer.echo()
    print_wrapped(text, bold=True)


def print_wrapped(text: str, *, indent: int = 0, bold: bool = False) -> None:
    """Print a sentence wrapped to the terminal, with later lines indented; on one line without a
    terminal.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_COLUMNS
    for line in textwrap.wrap(
        printable(text), width, subsequent_indent=" " * indent, break_on_hyphens=False
    ):
        typer.secho(line, bold=bold or None)


def print_fact(sentence: str, document: Row, *, as_json: bool) -> None:
    """Print a fact as a sentence, or as JSON."""
    if as_json:
        print_json(document)
    else:
        print_line(sentence)


def print_rows(
    rows: Sequence[Row],
    *,
    columns: Sequence[str],
    as_json: bool,
    nothing: str,
    sometimes: Sequence[str] = (),
) -> None:
    """Print rows as a JSON list, or their `columns` as a table, and those of `sometimes` that any
    row has.

    Without rows print `nothing` instead of a table.
    """
    if as_json:
        print_json(rows)
    elif not rows:
        print_line(nothing)
    else:
        shown = [*columns, *(column for column in sometimes if any(row[column] for row in rows))]
        print_table(
            [column.replace("_", " ") for column in shown],
            [[cell(row[column]) for column in shown] for row in rows],
        )


def print_document(document: Row, *, as_json: bool) -> None:
    """Print the fields of one document, one per line."""
    if as_json:
        print_json(document)
    else:
        print_table(
            None, [[name.replace("_", " "), cell(value)] for name, value in document.items()]
        )


def print_table(header: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> None:
    """Print a table fitted to the terminal, or one row per line without a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = (
        Console(highlight=False)
        if sys.stdout.isatty()
        else Console(highlight=False, width=_PIPE_COLUMNS)
    )
    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        show_header=header is not None,
        header_style="bold",
    )
    for name in header or rows[0]:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(text)) for text in row))
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        typer.echo(line.rstrip())


def cell(value: object) -> str:
    """Return a value as text for a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={cell(item)}" for name, item in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value) or "-"
    return str(value)
