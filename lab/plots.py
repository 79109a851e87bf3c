"""Draw the plots of a comparison with matplotlib, without a window."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from equipoise.lab.comparing import Comparison
from equipoise.lab.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
_TARGET: Final = (1.5, 0.6)


def runs_plot(comparison: Comparison) -> bytes:
    """Return a PNG of one trace: unevenness, the worst broker, load moved and moves over time, of
    the first seed.
    """
    figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    for place, outcome in enumerate(comparison.outcomes):
        _draw_run(axes.ravel().tolist(), outcome.results[0], place, outcome.policy)
    for each, title in zip(
        axes.ravel(),
        (
            "Unevenness: standard deviation of use / mean use",
            "Worst broker: its use / mean use",
            "Load moved since the start, share of all load",
            "Moves since the start",
        ),
        strict=True,
    ):
        each.set_title(title, loc="left", fontsize=11)
        each.grid(alpha=0.3)
        each.set_ylim(bottom=1.0 if title.startswith("Worst") else 0.0)
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
    policies = list(
        dict.fromkeys(
            outcome.policy for comparison in comparisons for outcome in comparison.outcomes
        )
    )
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
        axes, (result.unevenness, result.worst, np.cumsum(moved), np.cumsum(counts)), strict=True
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
