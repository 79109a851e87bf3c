"""Show the demo as a live screen on a terminal, or as plain lines in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

# Plain lines: how often they sum up the whole. A whole run prints 60 lines.
_SUM_UP_S: Final = 30.0

# Column titles. Work is calls of counters, and messages in and out of topics. Use is that of the busiest resource on average.
_WORK: Final = "calls or messages/s"
_USE: Final = "in use"

# Indents a quotation below the line that introduces it.
_QUOTED: Final = " " * 10

# The latest lines stay on the live screen.
_SAID_MAX: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRow:
    """One broker: `status` by the channel, `work_per_second` (calls, and messages in and out) by its own report.

    `used` is the average use of its resources; None if it has not reported.
    """

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
class MessagesShown:
    """What the screen shows of Pulsar clients: counts of messages with a receipt, and their fate.

    A pause is the time that a producer waited for a receipt, in milliseconds. Effects of kills are separate (see `messages`).
    """

    per_second: float
    receipted: int
    recent_pause_ms: float
    longest_pause_ms: float
    longest_pause_in_kills_ms: float
    lost: int
    lost_in_kills: int
    out_of_order: int

    @property
    def headlines(self) -> Sequence[str]:
        """A summary line, and a second one for the effects of kills."""
        whole = (
            f"Pulsar: {self.per_second:.0f} messages/s, {self.receipted} messages, {self.lost} lost, {self.out_of_order} out of order; "
            f"pause now {self.recent_pause_ms:.0f} ms, longest {self.longest_pause_ms:.0f} ms"
        )
        if not self.longest_pause_in_kills_ms:
            return [whole]
        return [whole, f"  in kill -9: {self.lost_in_kills} lost; longest pause {self.longest_pause_in_kills_ms:.0f} ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Everything that the screen shows at one moment. Pauses are those of callers, in milliseconds."""

    elapsed_s: float
    brokers: Sequence[BrokerRow]
    bundles: Sequence[BundleRow]
    bundles_count: int
    newest: Sequence[str]
    calls_per_second: float
    calls: int
    recent_pause_ms: float
    longest_pause_ms: float
    messages: MessagesShown | None

    @property
    def headlines(self) -> Sequence[str]:
        """The summary in a few lines."""
        alive = sum(row.status == "up" for row in self.brokers)
        calls = (
            f"{alive} brokers up, {self.bundles_count} bundles; counter: {self.calls_per_second:.0f} calls/s, {self.calls} calls; "
            f"pause now {self.recent_pause_ms:.0f} ms, longest {self.longest_pause_ms:.0f} ms"
        )
        return [calls] if self.messages is None else [calls, *self.messages.headlines]


class Screen(Protocol):
    """The output of the demo, as a context."""

    def say(self, elapsed_s: float, text: str) -> None:
        """Show what the demo does."""
        ...

    def quote(self, lines: Sequence[str]) -> None:
        """Show the output of another program unchanged."""
        ...

    def show(self, picture: Picture) -> None:
        """Show the current state."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def open_screen(*, plain: bool) -> Screen:
    """Return a live screen. Return plain lines if they are requested or there is no terminal."""
    return PlainScreen() if plain or not sys.stdout.isatty() else LiveScreen()


class PlainScreen:
    """Prints one line per action, and a summary from time to time."""

    def __init__(self) -> None:
        self._sum_up_at_s = _SUM_UP_S

    def say(self, elapsed_s: float, text: str) -> None:
        """See `Screen.say`."""
        print(f"{elapsed_s:6.1f} s  {text}", flush=True)

    def quote(self, lines: Sequence[str]) -> None:
        """See `Screen.quote`."""
        print("\n".join(f"{_QUOTED}{line}" for line in lines), flush=True)

    def show(self, picture: Picture) -> None:
        """See `Screen.show`."""
        if picture.elapsed_s >= self._sum_up_at_s:
            self._sum_up_at_s = picture.elapsed_s + _SUM_UP_S
            for line in picture.headlines:
                self.say(picture.elapsed_s, f"  {line}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return


class LiveScreen:
    """Shows tables that are redrawn, with the latest actions above them."""

    def __init__(self) -> None:
        self._live = Live(auto_refresh=False, console=Console(highlight=False))
        self._said: list[str] = []

    def say(self, elapsed_s: float, text: str) -> None:
        """See `Screen.say`."""
        self._said = [*self._said[1 - _SAID_MAX :], f"{elapsed_s:6.1f} s  {text}"]

    def quote(self, lines: Sequence[str]) -> None:
        """See `Screen.quote`. The text stays above the picture."""
        self._live.console.print(Padding(Text("\n".join(lines)), (0, 0, 0, len(_QUOTED))))

    def show(self, picture: Picture) -> None:
        """See `Screen.show`."""
        self._live.update(draw(picture, self._said), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()


def draw(picture: Picture, said: Sequence[str]) -> Group:
    """Return the live screen as rich renders it."""
    return Group(
        Panel(Text("\n".join(picture.headlines), style="bold"), title=f"equipoise, {picture.elapsed_s:.1f} s"),
        # A small terminal shows only the beginning.
        Panel(_lines(said), title="what is done", title_align="left"),
        _brokers(picture),
        _bundles(picture),
        Panel(_lines(picture.newest), title="newest records", title_align="left"),
    )


def _lines(lines: Sequence[str]) -> Text:
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


def _brokers(picture: Picture) -> Table:
    table = _table("broker", "status", "incarnation", "bundles", _WORK, _USE)
    for row in picture.brokers:
        status = f"{row.status}, leads" if row.leads else row.status
        style = None if row.status == "up" else "yellow" if row.status == "draining" else "dim"
        used = "" if row.used is None else f"{row.used:.0%}"
        table.add_row(row.broker, status, str(row.incarnation), str(row.bundles), f"{row.work_per_second:.0f}", used, style=style)
    return table


def _bundles(picture: Picture) -> Table:
    table = _table(f"the busiest of {picture.bundles_count} bundles", "state", "owner", "token", _WORK)
    for row in picture.bundles:
        style = None if row.phase == "owned" else "yellow"
        table.add_row(row.bundle, row.phase, row.owner, str(row.token), f"{row.work_per_second:.0f}", style=style)
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True, justify="right" if column in ("bundles", "token", _WORK, _USE, "incarnation") else "left")
    return table
