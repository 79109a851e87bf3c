"""Draw the pictures of a report, each for a light page and for a dark one.

They are drawn with matplotlib on its own canvas, without a window or global state.

* Brokers have the colours of Okabe and Ito ("Color Universal Design", 2008), which are distinct for
  colour-blind people too. Further brokers get hatches.
* Heat maps use cividis, whose lightness rises monotonically (Nunez, 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from functools import partial
from io import BytesIO
from math import nan
from typing import TYPE_CHECKING, Any, Final

from matplotlib import colormaps, rc_context
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from equipoise.spark_jobs.report.figures import (
    BINS,
    Grid,
    Period,
    Report,
    Row,
    format_duration,
    pause_bar_ms,
    within_year_9999,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

WIDTH_INCHES: Final = 12.0
DOTS_PER_INCH: Final = 144
"""Twice the resolution of a common screen at the page's width, so that pictures are sharp on
high-resolution screens."""

_PAUSE_MS_MIN: Final = 0.75
"""Start of the logarithmic axis of pauses. The log's time has a resolution of 1 ms, so many pauses
are 0 ms."""

_LANE_INCHES: Final = 0.19
_HEAT_INCHES: Final = 0.26
_MAP_SHARE: Final = 0.915
"""Right edge of a heat map. The rest of the width holds the scale, its five-digit numbers and its
label."""
_LEGEND_COLUMNS: Final = 8
_LEGEND_CHARACTERS: Final = 150
"""Characters in a line of a legend. Each entry takes `_KEY_CHARACTERS` plus its name."""
_KEY_CHARACTERS: Final = 7
_CHARACTER_SHARE: Final = 0.0075
"""Width of one character above the strip chart, as a share of the picture's width."""
_LABEL_CHARACTERS_MAX: Final = 34

_HUES: Final = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#8C8C8C",
)
_HATCHES: Final = ("", "////", "....", "xxxx", "++++")
_RESULT_HUES: Final = {
    "done": "#0072B2",
    "unloaded": "#56B4E9",
    "cancelled": "#E69F00",
    "destination_died": "#D55E00",
    "destination_left": "#F0E442",
    "source_died": "#CC79A7",
    "source_left": "#009E73",
}
_OTHER_HUE: Final = "#8C8C8C"
_DEATH_LINE: Final[Mapping[str, Any]] = {"linewidth": 1, "linestyle": (0, (3, 2))}
_MARK_OF: Final = {
    "died": ("X", "death"),
    "split": ("D", "split"),
    "merged": ("^", "merge"),
    "unloaded": ("v", "unload"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """The colours of a page."""

    paper: str
    ink: str
    faint: str
    alarm: str

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Draw figures in these colours, without frames."""
        with rc_context({
            # Matplotlib parses text between two `$` as a formula, and a name may hold `$`.
            "text.parse_math": False,
            "text.color": self.ink,
            "figure.facecolor": self.paper,
            "axes.facecolor": self.paper,
            "axes.edgecolor": self.faint,
            "axes.labelcolor": self.ink,
            "axes.spines.left": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.grid": True,
            "grid.color": self.faint,
            "grid.linewidth": 0.6,
            "xtick.color": self.ink,
            "ytick.color": self.ink,
            "xtick.labelsize": 8.5,
            "ytick.labelsize": 8.5,
            "xtick.major.size": 3,
            "ytick.major.size": 0,
            "legend.frameon": False,
            "legend.fontsize": 8.5,
            "legend.handlelength": 1.4,
            "savefig.dpi": DOTS_PER_INCH,
        }):  # fmt: skip
            yield


LIGHT: Final = Theme(paper="#ffffff", ink="#1f2328", faint="#d5dae0", alarm="#b3261e")
DARK: Final = Theme(paper="#161b22", ink="#e6edf3", faint="#3a424c", alarm="#ff8a80")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One picture as two PNG files."""

    name: str
    light: bytes
    dark: bytes


Drawing = Callable[[Report, Theme, tzinfo], Figure]


def plots(report: Report, zone: tzinfo) -> tuple[Plot, ...]:
    """Draw the pictures that have data. Times are shown in `zone`."""
    if report.period is None:
        return ()
    drawings: tuple[tuple[str, Drawing, bool], ...] = (
        ("ownership", draw_ownership, bool(report.lanes.shown)),
        (
            "cpu",
            partial(_heat, grid=report.cpu, label="CPU used", form="{:.0%}"),
            bool(report.cpu.brokers),
        ),
        (
            "owned",
            partial(_heat, grid=report.owned, label="bundles", form="{:.0f}"),
            bool(report.owned.brokers),
        ),
        ("moves", draw_moves, report.moves.count > 0),
        ("pauses", draw_pauses, report.moves.pauses > 0),
    )
    return tuple(
        Plot(name=name, light=_png(draw, report, LIGHT, zone), dark=_png(draw, report, DARK, zone))
        for name, draw, has_data in drawings
        if has_data
    )


def draw_ownership(report: Report, theme: Theme, zone: tzinfo) -> Figure:
    """Draw the strip chart: a row per bundle in the colour of its server. Ends other than transfers
    are marked.
    """
    period, lanes = _period(report), report.lanes.shown
    brokers = list(report.owned.brokers)
    brokers += sorted(
        {ownership.broker for lane in lanes for ownership in lane.ownerships} - set(brokers)
    )
    figure = Figure(
        figsize=(
            WIDTH_INCHES,
            1.5
            + _LANE_INCHES * len(lanes)
            + 0.2 * (len(brokers) // _legend_columns(short_names(brokers).values())),
        ),
        layout="constrained",
    )
    axes = figure.add_subplot()
    for row, lane in enumerate(lanes):
        for number, broker in enumerate(brokers):
            spans = [
                _span(ownership.from_ms, ownership.to_ms, zone)
                for ownership in lane.ownerships
                if ownership.broker == broker
            ]
            axes.broken_barh(
                spans,
                (row - 0.42, 0.84),
                edgecolor=theme.paper,
                linewidth=0.3,
                facecolor=_hue(number),
                hatch=_hatch(number),
            )
    marked = _mark_ends(axes, lanes, theme, zone)
    names = short_names(brokers)
    has_deaths = _mark_deaths(axes, report, names, theme, zone)
    axes.set_yticks(
        range(len(lanes)), [_lane_label(lane) for lane in lanes], fontsize=7.5, family="monospace"
    )
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    for row in range(1, len(lanes)):
        if lanes[row].namespace != lanes[row - 1].namespace:
            axes.axhline(row - 0.5, color=theme.ink, linewidth=0.6)
    _time_axis(axes, period, zone)
    keys: list[Artist] = [
        Patch(
            label=names[broker], edgecolor=theme.paper, facecolor=_hue(number), hatch=_hatch(number)
        )
        for number, broker in enumerate(brokers)
    ]
    for how in marked:
        marker, label = _MARK_OF[how]
        keys.append(
            Line2D([], [], linestyle="", marker=marker, color=theme.ink, markersize=5, label=label)
        )
    if has_deaths:
        keys.append(Line2D([], [], color=theme.alarm, label="a broker died", **_DEATH_LINE))
    _legend(figure, keys)
    return figure


def draw_moves(report: Report, theme: Theme, zone: tzinfo) -> Figure:
    """Draw how many moves ended over time, by result."""
    period, bins = _period(report), report.moves.bins
    figure = Figure(figsize=(WIDTH_INCHES, 2.6), layout="constrained")
    axes = figure.add_subplot()
    edges = [
        _at(period.from_ms + round(number * period.bin_ms), zone) for number in range(BINS + 1)
    ]
    below = [0] * BINS
    order = [name for name in _RESULT_HUES if name in bins] + sorted(set(bins) - set(_RESULT_HUES))
    for name in order:
        axes.bar(
            edges[:-1],
            bins[name],
            width=(edges[-1] - edges[0]) / BINS,
            bottom=below,
            align="edge",
            color=_RESULT_HUES.get(name, _OTHER_HUE),
            edgecolor=theme.paper,
            linewidth=0.3,
            label=name.replace("_", " "),
        )
        below = [one + other for one, other in zip(below, bins[name], strict=True)]
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.set_ylabel("moves ended")
    _time_axis(axes, period, zone)
    _legend(figure, axes.get_legend_handles_labels()[0])
    return figure


# As the others.
def draw_pauses(report: Report, theme: Theme, zone: tzinfo) -> Figure:  # noqa: ARG001
    """Draw a histogram of pauses on a logarithmic axis, with the median, the 99th percentile and
    the maximum.
    """
    moves = report.moves
    figure = Figure(figsize=(WIDTH_INCHES, 2.8), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xscale("log")
    bars = [(*_drawn_ms(bar), count) for bar, count in sorted(moves.pause_bars.items())]
    for low, high, count in bars:
        axes.bar(
            low,
            count,
            width=high - low,
            align="edge",
            color=_HUES[0],
            edgecolor=theme.paper,
            linewidth=0.8,
        )
    # Wide enough for two ticks even around one bar. Else matplotlib picks its own ticks, many with
    # the same label.
    axes.set_xlim(bars[0][0] / 2, bars[-1][1] * 2)
    # Room for the labels above the bars.
    axes.set_ylim(0, 1.35 * max(moves.pause_bars.values(), default=1))
    for level, (name, value_ms, hue) in enumerate(
        (
            ("p50", moves.pause_p50_ms, _HUES[2]),
            ("p99", moves.pause_p99_ms, _HUES[1]),
            ("max", moves.pause_max_ms, theme.alarm),
        )
    ):
        if value_ms is not None:
            place = max(value_ms, _PAUSE_MS_MIN)
            axes.axvline(place, color=hue, linewidth=1.6)
            axes.annotate(
                f"{name} {format_duration(value_ms)}",
                (place, 1 - 0.12 * level),
                xycoords=("data", "axes fraction"),
                xytext=(5, -11),
                textcoords="offset points",
                fontsize=9,
                weight="bold",
                bbox={
                    "boxstyle": "round,pad=0.15",
                    "facecolor": theme.paper,
                    "edgecolor": "none",
                    "alpha": 0.8,
                },
            )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_duration(value)))
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.set_ylabel("moves")
    axes.set_xlabel("pause: from the request to release until the new owner serves")
    return figure


def _drawn_ms(bar: int) -> tuple[float, float]:
    low, high = pause_bar_ms(bar)
    return max(low, _PAUSE_MS_MIN), high


def _heat(
    report: Report, theme: Theme, zone: tzinfo, *, grid: Grid, label: str, form: str
) -> Figure:
    """Draw a heat map of a figure of brokers: their processor use, or the bundles that they
    served.
    """
    period = _period(report)
    greatest = max((cell for row in grid.rows for cell in row if cell is not None), default=0.0)
    figure = Figure(
        figsize=(WIDTH_INCHES, 1.1 + _HEAT_INCHES * len(grid.brokers)), layout="constrained"
    )
    axes = figure.add_subplot()
    columns = len(grid.rows[0])
    edges = [
        _at(period.from_ms + round(number * period.length_ms / columns), zone)
        for number in range(columns + 1)
    ]
    axes.set_facecolor(theme.faint)
    drawn = axes.pcolormesh(
        edges,
        range(len(grid.brokers) + 1),
        [[nan if cell is None else cell for cell in row] for row in grid.rows],
        cmap=colormaps["cividis"],
        vmin=0,
        vmax=max(1.0, greatest),
    )
    axes.hlines(range(1, len(grid.brokers)), edges[0], edges[-1], color=theme.paper, linewidth=1.5)
    axes.set_yticks(
        [row + 0.5 for row in range(len(grid.brokers))],
        [short_names(grid.brokers)[name] for name in grid.brokers],
    )
    axes.invert_yaxis()
    _time_axis(axes, period, zone)
    axes.grid(visible=False)
    bar = figure.colorbar(
        drawn,
        ax=axes,
        pad=0.01,
        aspect=max(6, 4 * len(grid.brokers)),
        format=FuncFormatter(lambda value, _: form.format(value)),
    )
    bar.set_label(label)
    bar.ax.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=form == "{:.0f}"))
    bar.ax.tick_params(labelsize=8, length=3.5)
    bar.outline.set_visible(False)
    # The layout engine finds the room for names. The scale's numbers get fixed room, so that all
    # maps end at the same place.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    place = axes.get_position()
    axes.set_position(Bbox.from_extents(place.x0, place.y0, _MAP_SHARE, place.y1))
    # Its aspect ratio sets its width.
    bar.ax.set_position(Bbox.from_extents(_MAP_SHARE + 0.01, place.y0, 1, place.y1))
    return figure


def _mark_ends(axes: Axes, lanes: Sequence[Row], theme: Theme, zone: tzinfo) -> list[str]:
    """Mark how ownerships ended. Return the kinds of marks used."""
    marked = []
    for how, (marker, _) in _MARK_OF.items():
        places = [
            (_at(ownership.to_ms, zone), row)
            for row, lane in enumerate(lanes)
            for ownership in lane.ownerships
            if ownership.how == how
        ]
        if places:
            marked.append(how)
            times, rows = zip(*places, strict=True)
            axes.scatter(
                times,
                rows,
                marker=marker,
                s=26,
                color=theme.ink,
                edgecolors=theme.paper,
                linewidths=0.6,
                zorder=3,
            )
    return marked


def _mark_deaths(
    axes: Axes, report: Report, names: Mapping[str, str], theme: Theme, zone: tzinfo
) -> bool:
    """Mark the deaths of brokers with lines, and with names where they do not overlap. Return
    whether there are any.
    """
    deaths = [death for death in report.deaths.shown if death.kind != "left"]
    for death in deaths:
        axes.axvline(_at(death.at_ms, zone), color=theme.alarm, **_DEATH_LINE)
    for death in _apart(deaths, _period(report), names):
        above = Annotation(
            names.get(death.broker, death.broker),
            (_at(death.at_ms, zone), 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=theme.alarm,
            clip_on=False,
        )
        axes.add_artist(above)
    return bool(deaths)


def _hue(number: int) -> str:
    """Return the colour of a broker by its place in the legend."""
    return _HUES[number % len(_HUES)]


def _hatch(number: int) -> str:
    """Return the hatch that separates brokers of the same colour."""
    return _HATCHES[(number // len(_HUES)) % len(_HATCHES)]


def short_names(brokers: Sequence[str]) -> dict[str, str]:
    """Return short names of brokers: without their common suffix, cut at a dot or a colon."""
    if not brokers:
        return {}
    first, shared = brokers[0], 0
    for place, character in enumerate(first):
        if (
            character in ".:"
            and place
            and all(
                name.endswith(first[place:]) and len(name) > len(first) - place for name in brokers
            )
        ):
            shared = len(first) - place
            break
    names = {
        name: _short(name[: len(name) - shared] if len(brokers) > 1 else name) for name in brokers
    }
    return names if len(set(names.values())) == len(names) else {name: name for name in brokers}


def _apart(deaths: Sequence[Row], period: Period, names: Mapping[str, str]) -> Iterator[Row]:
    """Yield the deaths whose labels do not overlap the previous label."""
    free = -1.0
    for death in deaths:
        half = _CHARACTER_SHARE * len(names.get(death.broker, death.broker)) / 2
        place = (death.at_ms - period.from_ms) / period.length_ms
        if place - half >= free:
            free = place + half
            yield death


def _legend_columns(names: Iterable[str]) -> int:
    longest = max((len(name) for name in names), default=0)
    return max(1, min(_LEGEND_COLUMNS, _LEGEND_CHARACTERS // (longest + _KEY_CHARACTERS)))


def _lane_label(lane: Row) -> str:
    return _short(lane.bundle.replace("0x", ""))


def _short(name: str) -> str:
    """Shorten a name to fit. Keep its end, which distinguishes bundles and brokers."""
    return name if len(name) <= _LABEL_CHARACTERS_MAX else "…" + name[1 - _LABEL_CHARACTERS_MAX :]


def _at(at_ms: int, zone: tzinfo) -> float:
    """Return a time as matplotlib counts it: days since 1970 in the zone's local time, so that
    matplotlib needs no zone.
    """
    at_ms = within_year_9999(at_ms)
    offset = datetime.fromtimestamp(at_ms / 1_000, zone).utcoffset() or timedelta()
    return (at_ms + offset / timedelta(milliseconds=1)) / 86_400_000


def _span(from_ms: int, to_ms: int, zone: tzinfo) -> tuple[float, float]:
    first = _at(from_ms, zone)
    return first, _at(to_ms, zone) - first


def _period(report: Report) -> Period:
    assert report.period is not None, "nothing is drawn of a report without a period"
    return report.period


def _time_axis(axes: Axes, period: Period, zone: tzinfo) -> None:
    axes.set_xlim(_at(period.from_ms, zone), _at(period.to_ms, zone))
    # Not typed yet.
    locator = AutoDateLocator(minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    # The same.
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def _legend(figure: Figure, keys: Sequence[Artist]) -> None:
    figure.legend(
        handles=keys,
        loc="outside upper left",
        ncols=_legend_columns(str(key.get_label()) for key in keys),
    )


def _png(draw: Drawing, report: Report, theme: Theme, zone: tzinfo) -> bytes:
    buffer = BytesIO()
    with theme.applied():
        # No metadata, so that the same figures give the same bytes.
        draw(report, theme, zone).savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
