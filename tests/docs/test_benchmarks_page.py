"""The page about benchmarks shows the results that are kept."""

from __future__ import annotations

from tests.docs.benchmarks_page import PAGE, PLOTS, kept, plots, written

BYTES_MAX = 60_000


def test_the_page_has_the_table_of_the_results() -> None:
    """They differ only until `python -m tests.docs.benchmarks_page` is run."""
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, kept()) == page


def test_each_plot_is_there_and_small() -> None:
    for name in plots(kept()):
        assert (PLOTS / f"bench-{name}.png").stat().st_size <= BYTES_MAX
