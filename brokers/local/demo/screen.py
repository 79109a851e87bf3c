"""Show the demo as live tables on a terminal, or as plain lines in a pipe."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

# Plain lines: how often they sum up the whole. A whole run prints less than 60 lines.
_SUM_UP_S: Final = 60.0

# Column titles. Work is calls of counters, and messages in and out of topics. Use is that of the
# busiest resource on average.
_WORK: Final = "calls or messages/s"
_USE: Final = "in use"
_NUMBERS: Final = ("incarnation", "bundles", "token", _WORK, _USE)

# Indents a quotation below the line that introduces it.
_QUOTED: Final = " " * 10

# The latest lines stay on the live screen.
_LINES_MAX: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """One broker. `used` is the average use of its resources; None if it has not reported."""

    broker: str
    status: str
    leads: bool
    incarnation: int
    bundles: int
    work_per_second: float
    used: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRow:
    """One bundle: its state, its owner, and the work that the owner reports."""

    bundle: str
    phase: str
    owner: str
    token: int
    work_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What the screen shows at one moment. `headlines` sum it up; `bundles` are the busiest of
    `bundles_count`.
    """

    elapsed_s: float
    headlines: Sequence[str]
    brokers: Sequence[BrokerRow]
    bundles: Sequence[BundleRow]
    bundles_count: int
    newest: Sequence[str]


class Screen:
    """The output of the demo, as a context. A live screen shows tables that are redrawn, with the
    latest lines above them.
    """

    def __init__(self, *, plain: bool) -> None:
        """Show a live screen. Print plain lines if `plain`, or without a terminal."""
        is_live = not plain and sys.stdout.isatty()
        self._live = Live(auto_refresh=False, console=Console(highlight=False)) if is_live else None
        self._lines: deque[str] = deque(maxlen=_LINES_MAX)
        self._sum_up_at_s = _SUM_UP_S

    def say(self, elapsed_s: float, text: str) -> None:
        """Show what the demo does."""
        line = f"{elapsed_s:6.1f} s  {text}"
        self._lines.append(line)
        if self._live is None:
            print(line, flush=True)

    def quote(self, lines: Sequence[str]) -> None:
        """Show the output of another program unchanged, above the tables of a live screen."""
        if self._live is None:
            print("\n".join(f"{_QUOTED}{line}" for line in lines), flush=True)
        else:
            self._live.console.print(Padding(Text("\n".join(lines)), (0, 0, 0, len(_QUOTED))))

    def show(self, picture: Picture) -> None:
        """Show the current state: now on a live screen, and from time to time as plain lines."""
        if self._live is not None:
            self._live.update(draw(picture, self._lines), refresh=True)
        elif picture.elapsed_s >= self._sum_up_at_s:
            self._sum_up_at_s = picture.elapsed_s + _SUM_UP_S
            for line in picture.headlines:
                self.say(picture.elapsed_s, f"  {line}")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()


def draw(picture: Picture, lines: Sequence[str]) -> Group:
    """Return the live screen as rich renders it."""
    brokers = _table("broker", "status", "incarnation", "bundles", _WORK, _USE)
    for row in picture.brokers:
        status = f"{row.status}, leads" if row.leads else row.status
        style = None if row.status == "up" else "yellow" if row.status == "draining" else "dim"
        used = "" if row.used is None else f"{row.used:.0%}"
        brokers.add_row(
            row.broker,
            status,
            str(row.incarnation),
            str(row.bundles),
            f"{row.work_per_second:.0f}",
            used,
            style=style,
        )
    bundles = _table(
        f"the busiest of {picture.bundles_count} bundles", "state", "owner", "token", _WORK
    )
    for bundle in picture.bundles:
        style = None if bundle.phase == "owned" else "yellow"
        bundles.add_row(
            bundle.bundle,
            bundle.phase,
            bundle.owner,
            str(bundle.token),
            f"{bundle.work_per_second:.0f}",
            style=style,
        )
    return Group(
        Panel(
            Text("\n".join(picture.headlines), style="bold"),
            title=f"equipoise, {picture.elapsed_s:.1f} s",
        ),
        # A small terminal shows only the beginning.
        Panel(_text(lines), title="what is done", title_align="left"),
        brokers,
        bundles,
        Panel(_text(picture.newest), title="newest records", title_align="left"),
    )


def _text(lines: Sequence[str]) -> Text:
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True, justify="right" if column in _NUMBERS else "left")
    return table
