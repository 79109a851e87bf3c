"""The page about benchmarks shows the results that are kept."""

from __future__ import annotations

from tests.docs.benchmarks_page import PAGE, PLOTS, Kept, written

BYTES_MAX = 60_000


def test_the_page_has_the_table_of_the_results() -> None:
    """They differ only until `python -m tests.docs.benchmarks_page` is run."""
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, Kept()) == page


def test_plots_are_small() -> None:
    plots = list(PLOTS.glob("bench-*.png"))
    assert len(plots) == 5
    assert all(plot.stat().st_size <= BYTES_MAX for plot in plots)
