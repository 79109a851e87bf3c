"""Write the page of a comparison: one HTML file with the table and the plots, which fetches
nothing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from equipoise.lab.comparing import Comparison
from equipoise.lab.plots import overview_plot, runs_plot

COLUMNS: Final = (
    "trace",
    "policy",
    "unevenness_ratio",
    "floor_ratio",
    "moved_ratio",
    "unevenness",
    "load_moved",
    "worst_mean",
    "worst_max",
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
more even one of TransferShedder and AvgShedder with their defaults. The floor is what an oracle
with hindsight reaches if it moves as much load as that reference. Figures are means over the
seeds; undone moves (back within 10 minutes) are a sum. The plots show the first seed.</p>
"""


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
        f" {', '.join(map(str, seeds))}.</p>\n"
        "<div"
        f' class="wide"><table><tr>{head}</tr>\n{body}\n</table></div>\n{images}\n</body></html>\n',
        encoding="utf-8",
    )
    return page


def _file_name(trace: str) -> str:
    """Return the name of a trace with only characters that every file system takes."""
    return "".join(each if each.isalnum() or each in "-_." else "_" for each in Path(trace).stem)


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
