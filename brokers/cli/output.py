"""Print rows as a table or JSON, facts as a sentence or JSON, and the progress of long work.

`outcome` prints errors.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Final

import typer

from equipoise.brokers.cli.outcome import JSON_FLAG
from equipoise.channel.core.log import Progress, unwatched
from equipoise.channel.system.log_lines import printable

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The option of a command that prints results, and the ways to print them."""

    as_json: Annotated[
        bool,
        typer.Option(
            JSON_FLAG,
            help="Print results and errors as JSON: one document, or one line per record.",
        ),
    ] = False

    def print_fact(self, sentence: str, document: Row) -> None:
        """Print a fact as a sentence, or as JSON."""
        if self.as_json:
            print_json(document)
        else:
            print_line(sentence)

    def print_lines(self, document: object, lines: Iterable[str]) -> None:
        """Print a page of lines, or as JSON."""
        if self.as_json:
            print_json(document)
        else:
            for line in lines:
                print_line(line)

    def print_rows(
        self,
        rows: Sequence[Row],
        *,
        columns: Sequence[str],
        nothing: str,
        sometimes: Sequence[str] = (),
    ) -> None:
        """Print rows as a JSON list, or their `columns` as a table, and those of `sometimes` that
        any row has.

        Without rows print `nothing` instead of a table.
        """
        if self.as_json:
            print_json(rows)
        elif not rows:
            print_line(nothing)
        else:
            shown = [*columns, *(name for name in sometimes if any(row[name] for row in rows))]
            print_table(
                [name.replace("_", " ") for name in shown],
                [[cell(row[name]) for name in shown] for row in rows],
            )

    def print_document(self, document: Row) -> None:
        """Print the fields of one document, one per line."""
        if self.as_json:
            print_json(document)
        else:
            print_table(
                None, [[name.replace("_", " "), cell(value)] for name, value in document.items()]
            )


FOR_PEOPLE: Final = Output()
"""For parts of a page, which has no other form."""


def print_tables(tables: Iterable[tuple[str, Sequence[Row], Sequence[str]]]) -> None:
    """Print tables with an empty line before each: name, rows, and columns."""
    for name, rows, columns in tables:
        print_line("")
        FOR_PEOPLE.print_rows(rows, columns=columns, nothing=f"no {name}")


class DatedPage:
    """Prints entries, one after another, or as JSON. A line with the date stands above the first of
    each day.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._day = ""

    def show(
        self, offset: int, time: str, text: Sequence[str], *, color: str | None, document: Row
    ) -> None:
        """Print an entry: its offset, its local time with milliseconds or "", and lines of text; or
        its document.
        """
        if self._as_json:
            print_json(document)
            return
        day, _, time_of_day = time.partition(" ")
        if day not in ("", self._day):
            self._day = day
            print_line(day)
        print_line(f"{offset}  {time_of_day:{len('12:34:56.789')}}  {text[0]}", color=color)
        for line in text[1:]:
            print_line(f"    {line}")


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


@contextmanager
def progress(what: str, *, unit: str = "records") -> Iterator[Progress]:
    """Draw a progress bar for `what` while the block runs, then remove it."""
    if not sys.stderr.isatty():
        yield unwatched
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn(f"{what}  "),
        BarColumn(),
        TextColumn(f"{{task.completed:,}} {unit}"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
