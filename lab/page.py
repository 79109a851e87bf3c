"""Write the page of a comparison: one HTML file with the table and the plots, which fetches
nothing. matplotlib draws the plots without a window.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from equipoise.lab.comparing import OURS, TUNED, Comparison
from equipoise.lab.results import Result

COLUMNS: Final = (
    "trace",
    "policy",
    "unevenness_ratio",
    "moved_ratio",
    "unevenness",
    "bound",
    "gap",
    "load_moved",
    "excess_p50",
    "excess_p90",
    "excess_p99",
    "balanced_s",
    "moves",
    "undone",
)
"""The columns of the table, also on the command line."""

PAGE: Final = "index.html"

_STYLE: Final = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 1240px; padding: 24px 20px; color: #1f2328;
  font: 15px/1.5 system-ui, sans-serif; }
table { border-collapse: collapse; font-size: 14px; }
th, td { padding: 4px 12px 4px 0; border-bottom: 1px solid #d5dae0; text-align: right;
  font-variant-numeric: tabular-nums; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
.wide { overflow-x: auto; }
img { width: 100%; height: auto; }
p { max-width: 95ch; }
"""

_ABOUT: Final = """
<p>Unevenness is the standard deviation of the brokers' use over their mean use, averaged over
time. Load moved is the share of all load that moves in an hour. The ratios are relative to the
more even one of TransferShedder and AvgShedder with their defaults. The bound is proven: no policy
that moves as much load has less unevenness. The gap is what is above it. The excess is (largest
use - mean use) / mean use, as quantiles over time. Figures are means over the seeds; undone moves
(back within 10 minutes) are a sum. The plots show the first seed.</p>
"""


# The colours of Okabe and Ito, distinct for colour-blind people too.
_HUES: Final = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#D55E00",
    "#56B4E9",
    "#8C8C8C",
    "#000000",
)
_LINES: Final = ("-", "--", ":", "-.")
_SIZE_INCHES: Final = (12.0, 8.0)
_DOTS_PER_INCH: Final = 110
_POINTS: Final = 120  # Of one line. More steps are averaged.
_TICKS: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_REFERENCE: Final = (1.0, 1.0)  # Where the reference itself is, on every trace.
# What our own policy shall reach: load moved and unevenness, relative to the reference.
_TARGET: Final = (1.5, 0.65)


def write_page(comparisons: Sequence[Comparison], folder: Path, *, seeds: Sequence[int]) -> Path:
    """Write the page, and each of its plots as PNG, to `folder`. Return the path of the page.
    Raises `OSError`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plots = {"overview": overview_plot(comparisons)}
    plots |= {_file_name(comparison.trace): runs_plot(comparison) for comparison in comparisons}
    for name, png in plots.items():
        (folder / f"{name}.png").write_bytes(png)
    rows = [row for comparison in comparisons for row in comparison.rows()]
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in COLUMNS)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{escape(_cell(row[column]))}</td>' for column in COLUMNS)}</tr>"
        for row in rows
    )
    images = "\n".join(
        f'<h2>{escape(name)}</h2>\n<img alt="{escape(name)}"'
        f' src="data:image/png;base64,{b64encode(png).decode()}">'
        for name, png in plots.items()
    )
    page = folder / PAGE
    page.write_text(
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:;'
        f" style-src 'unsafe-inline'\">"
        f"<title>Equipoise: balancing policies</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>Balancing policies on {len(comparisons)} load traces</h1>{_ABOUT}<p>Seeds:"
        f" {', '.join(map(str, seeds))}. The defaults of {OURS} were chosen on the seeds"
        f" {', '.join(map(str, TUNED))} of the generated traces.</p>\n"
        "<div"
        f' class="wide"><table><tr>{head}</tr>\n{body}\n</table></div>\n{images}\n</body></html>\n',
        encoding="utf-8",
    )
    return page


def _file_name(trace: str) -> str:
    """Return the name of a trace with only characters that every file system takes."""
    return "".join(each if each.isalnum() or each in "-_.@" else "_" for each in Path(trace).stem)


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def runs_plot(comparison: Comparison) -> bytes:
    """Return a PNG of one trace: unevenness, the worst broker, load moved and moves over time, of
    the first seed.
    """
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    for place, (policy, results) in enumerate(comparison.outcomes.items()):
        _draw_run(axes.ravel().tolist(), results[0], place, policy)
    for each, title in zip(
        axes.ravel(),
        (
            "Unevenness: standard deviation of use / mean use",
            "Fullest broker: its use / mean use - 1",
            "Load moved since the start, share of all load",
            "Moves since the start",
        ),
        strict=True,
    ):
        each.set_title(title, loc="left", fontsize=11)
        each.grid(alpha=0.3)
        each.set_ylim(bottom=0.0)
        each.margins(x=0)
    for each in axes[1]:
        each.set_xlabel("minutes")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(comparison.trace, x=0.01, ha="left", fontsize=14)
    return _png(figure)


def overview_plot(comparisons: Sequence[Comparison]) -> bytes:
    """Return a PNG of all traces: a point per trace and policy, unevenness against load moved,
    relative to the reference.
    """
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots()
    policies = list(dict.fromkeys(policy for each in comparisons for policy in each.outcomes))
    rows = [row for comparison in comparisons for row in comparison.rows()]
    for place, policy in enumerate(policies):
        points = [
            (moved, unevenness, str(row["trace"]))
            for row in rows
            if row["policy"] == policy
            and isinstance(moved := row["moved_ratio"], float)
            and isinstance(unevenness := row["unevenness_ratio"], float)
        ]
        axes.scatter(
            [each[0] for each in points],
            [each[1] for each in points],
            color=_HUES[place % len(_HUES)],
            label=policy,
            zorder=3,
        )
        for moved, unevenness, trace in points:
            if (moved, unevenness) != _REFERENCE:
                axes.annotate(
                    trace,
                    (moved, unevenness),
                    xytext=(5, 3),
                    textcoords="offset points",
                    fontsize=8,
                )
    target = f"target: {_TARGET[1]:g} of the unevenness, for {_TARGET[0]:g} times the load moved"
    axes.axvline(_TARGET[0], color="#8C8C8C", linewidth=0.8, label=target)
    axes.axhline(_TARGET[1], color="#8C8C8C", linewidth=0.8)
    axes.set_xscale("symlog", linthresh=_TICKS[4])
    most = 1.2 * max(
        [_TICKS[4], *(moved for row in rows if isinstance(moved := row["moved_ratio"], float))]
    )
    ticks = [tick for tick in _TICKS if tick <= most]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(0.0, most)
    axes.set_ylim(bottom=0.0)
    axes.set_xlabel("load moved, relative to the reference")
    axes.set_ylabel("unevenness, relative to the reference")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    axes.set_title("Lower is evener, further left moves less", loc="left", fontsize=14)
    return _png(figure)


def _draw_run(axes: Sequence[Axes], result: Result, place: int, label: str) -> None:
    moved = result.moved_by_step()
    counts = np.bincount(
        [min(len(moved) - 1, int(move.at_s // result.trace.step_s)) for move in result.moves],
        minlength=len(moved),
    )
    stride = max(1, len(moved) // _POINTS)
    minutes = [
        (start + stride / 2) * result.trace.step_s / 60 for start in range(0, len(moved), stride)
    ]
    for axis, values in zip(
        axes, (result.unevenness, result.excess, np.cumsum(moved), np.cumsum(counts)), strict=True
    ):
        means = [
            float(np.mean(values[start : start + stride])) for start in range(0, len(moved), stride)
        ]
        axis.plot(
            minutes,
            means,
            _LINES[place % len(_LINES)],
            color=_HUES[place % len(_HUES)],
            linewidth=1.4,
            label=label,
        )


def _png(figure: Figure) -> bytes:
    file = BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
