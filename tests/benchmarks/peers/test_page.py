"""The page with all benchmark results shows the results that are kept."""

from __future__ import annotations

import json

from tests.benchmarks.peers.page import PAGE, RESULTS, written


def test_the_page_has_the_table_of_the_results() -> None:
    page = PAGE.read_text()
    assert written(page, json.loads(RESULTS.read_text())) == page
